"""A task that is restored in another slot continues there, whatever its old slot is still doing (PROTOCOL 27).

Results are compared with a plain loop over the records. Slots are threads; a call is held up until the test lets it go.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import polars as pl
import pytest

from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.threads import Gate, ThreadedPlace
from tests.waiting import wait_for
from weir import Application, Count, Json, StreamsBuilder, String, Sum
from weir.pipelines.spark import driver
from weir.state.commit.tables import read_table
from weir.state.types import TaskId

RECORDS, USERS, HELD = 400, 7, 123
MOVED, OTHER = TaskId(0, 0), TaskId(0, 1)
EXPECTED = {
    f"user-{partition}-{user}": (len(numbers), sum(numbers))
    for partition in range(2)
    for user in range(USERS)
    if (numbers := range(user, RECORDS, USERS))
}


@dataclass(frozen=True)
class Click:
    number: int
    partition: int


GATE = Gate()


@pytest.fixture(autouse=True)
def gate():
    global GATE
    GATE = Gate(HELD)
    yield GATE
    GATE.opened.set()


def called(click: Click) -> Click:
    if click.partition == MOVED.partition:
        GATE.passes(click.number)
    return click


@pytest.fixture
def place(tmp_path) -> ThreadedPlace:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).map_values(called)
    clicks.group_by_key().agg("clicks", clicks=Count(), total=Sum("number")).to_delta("totals")
    rows = {
        ("clicks", partition): [
            (
                b"user-%d-%d" % (partition, number % USERS),
                msgspec.json.encode(Click(number, partition)),
                1_000 * number,
            )
            for number in range(RECORDS)
        ]
        for partition in range(2)
    }
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=20))
    return ThreadedPlace(application, Topics(rows), tmp_path, max_records=10)


def totals(there: ThreadedPlace) -> dict[str, tuple[int, int]]:
    frame = pl.DataFrame(read_table(there.warehouse / "shop" / "totals")).sort("_epoch", "_seq", maintain_order=True)
    return {user: (clicks, total) for user, clicks, total in frame.select("user", "clicks", "total").rows()}


def test_a_task_goes_on_in_another_slot_while_its_old_slot_is_held_up(place, gate):
    run, stop = place.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    wait_for(lambda: place.positions("clicks")[1] == RECORDS, "the other partition is committed to its end")
    assert place.positions("clicks")[0] <= HELD
    slots = place.used[-1]
    assert (slots.slot_of[MOVED], slots.slot_of[OTHER]) == (0, 1)
    asked = place.desk.ask("restore", task=str(MOVED), slot="freest")
    wait_for(lambda: place.positions("clicks") == [RECORDS] * 2, "all is committed")
    assert not gate.opened.is_set(), "the first call is still held up"
    assert place.desk.answers[asked] == (f"task {MOVED} is restoring in slot 1", False)
    assert totals(place) == EXPECTED
    before = place.commit_before()
    gate.opened.set()
    wait_for(lambda: 0 not in slots._given, "the old slot has answered")
    stop.set()
    run.result(60)
    assert before.tasks[place.name_of(str(MOVED))].positions == {"clicks": {0: RECORDS}}
    assert totals(place) == EXPECTED, "what the first call has led to counts for nothing"
    assert gate.calls[HELD] == 2


def test_tasks_of_a_lost_executor_go_on_elsewhere_at_once_and_what_it_still_does_counts_for_nothing(
    place, gate, monkeypatch
):
    """It is only frozen: later it goes on with what it was at, while nobody waits for it or hears it."""
    run, stop = place.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    slots = place.used[-1]
    monkeypatch.setattr(slots, "executor_of", str)
    slots.lose(0)
    wait_for(lambda: place.positions("clicks") == [RECORDS] * 2, "all is committed")
    assert not gate.opened.is_set(), "the first call is still held up"
    assert set(slots.slot_of.values()) == {1}
    assert [str(done.request.task) for done in place.restores.done] == [str(MOVED)]
    assert totals(place) == EXPECTED
    gate.opened.set()
    slots._threads[0].submit(int).result(60)
    row = b"user-0-0", msgspec.json.encode(Click(7, 0)), 1_000 * RECORDS
    place.topics.rows["clicks", 0].append(row)
    wait_for(lambda: place.positions("clicks") == [RECORDS + 1, RECORDS], "the rest is committed")
    stop.set()
    run.result(60)
    clicks, total = EXPECTED["user-0-0"]
    assert totals(place) == EXPECTED | {"user-0-0": (clicks + 1, total + 7)}
    assert gate.calls[HELD] == 2


def test_with_one_slot_a_task_is_restored_where_it_is(place, gate):
    gate.opened.set()
    place.slot_count = 1
    place.run()
    place.topics.rows["clicks", 1].append((b"user-1-0", msgspec.json.encode(Click(7, 1)), 1_000 * RECORDS))
    asked = place.desk.ask("restore", task=str(MOVED), slot="freest")
    place.run()
    assert place.desk.answers[asked] == (f"task {MOVED} is restoring in slot 0", False)
    clicks, total = EXPECTED["user-1-0"]
    assert totals(place) == EXPECTED | {"user-1-0": (clicks + 1, total + 7)}


def test_tasks_move_with_their_stores_into_slots_that_are_added(place, gate):
    gate.opened.set()
    place.slot_count = 1
    run, stop = place.begin(until_caught_up=False)
    wait_for(lambda: place.positions("clicks") == [RECORDS] * 2, "all is committed")
    slots = place.used[-1]
    assert (slots.slot_of[MOVED], slots.slot_of[OTHER]) == (0, 0)
    asked = [place.desk.ask("slots", slots=wanted) for wanted in ("2", "2", "many")]
    wait_for(lambda: set(asked) <= place.desk.answers.keys(), "they are answered")
    assert [place.desk.answers[number] for number in asked] == [
        (f"2 slots instead of 1; moved: {min(_moved(slots))}", False),
        ("there are 2 slots already", False),
        ("'many' is not a number of slots; give one from 1 on", True),
    ]
    for partition in range(2):
        row = b"user-%d-0" % partition, msgspec.json.encode(Click(7, partition)), 1_000 * RECORDS
        place.topics.rows["clicks", partition].append(row)
    wait_for(lambda: place.positions("clicks") == [RECORDS + 1] * 2, "the rest is committed")
    stop.set()
    run.result(60)
    assert place.restores.done == []
    more = {
        f"user-{partition}-0": (EXPECTED[f"user-{partition}-0"][0] + 1, EXPECTED[f"user-{partition}-0"][1] + 7)
        for partition in range(2)
    }
    assert totals(place) == EXPECTED | more


def test_tasks_do_not_move_to_slots_of_other_executors_which_lack_their_stores(place, gate, monkeypatch):
    gate.opened.set()
    place.slot_count = 1
    run, stop = place.begin(until_caught_up=False)
    wait_for(lambda: place.positions("clicks") == [RECORDS] * 2, "all is committed")
    monkeypatch.setattr(place.used[-1], "executor_of", str)
    asked = place.desk.ask("slots", slots="2")
    wait_for(lambda: asked in place.desk.answers, "it is answered")
    assert place.desk.answers[asked] == ("2 slots instead of 1; moved: no task", False)
    stop.set()
    run.result(60)
    assert totals(place) == EXPECTED


def _moved(slots) -> list[TaskId]:
    return [task for task, slot in slots.slot_of.items() if slot == 1]


def test_slots_that_are_added_while_all_tasks_are_at_work_are_filled_once_they_rest(place, gate):
    place.slot_count = 1
    run, stop = place.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    asked = place.desk.ask("slots", slots="2")
    wait_for(lambda: asked in place.desk.answers, "it is answered")
    assert place.desk.answers[asked] == (
        "2 slots instead of 1; moved: no task; more tasks follow once they rest",
        False,
    )
    gate.opened.set()
    slots = place.used[-1]
    wait_for(lambda: set(slots.slot_of.values()) == {0, 1}, "one task has moved")
    wait_for(lambda: place.positions("clicks") == [RECORDS] * 2, "all is committed")
    stop.set()
    run.result(60)
    assert totals(place) == EXPECTED


def test_of_two_tasks_that_keep_a_slot_busy_one_moves(tmp_path, monkeypatch):
    """Four partitions in two slots, with nothing to choose between them; the records of two in one slot take long."""
    monkeypatch.setattr(driver, "EVEN_EVERY_S", 0.1)
    slow, count = (0, 2), 200

    def waits(click: Click) -> Click:
        if click.partition in slow:
            time.sleep(0.005)
        return click

    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).map_values(waits)
    clicks.group_by_key().agg("clicks", clicks=Count(), total=Sum("number")).to_delta("totals")
    rows = {
        ("clicks", partition): [
            (b"user-%d" % partition, msgspec.json.encode(Click(number, partition)), 1_000 * number)
            for number in range(count)
        ]
        for partition in range(4)
    }
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=20))
    place = ThreadedPlace(application, Topics(rows), tmp_path, max_records=10)
    run, stop = place.begin(until_caught_up=False)
    try:
        slots = place.used[-1]
        one, other = (TaskId(0, partition) for partition in slow)
        assert slots.slot_of[one] == slots.slot_of[other]
        wait_for(lambda: slots.slot_of[one] != slots.slot_of[other], "one has moved", 30)
        wait_for(lambda: place.positions("clicks") == [count] * 4, "all is committed", 30)
    finally:
        stop.set()
        run.result(60)
    assert place.restores.done == []
    assert totals(place) == {f"user-{partition}": (count, sum(range(count))) for partition in range(4)}
    begins, *moved = place.desk.assignments
    everything = {"slots": 2, "active": [f"0_{partition}" for partition in range(4)], "standby": []}
    assert (begins.reason, begins.moves) == ("a run begins", [])
    assert begins.executors == {"driver": {**everything, "previous": []}}
    slot = {f"0_{partition}": partition % 2 for partition in range(4)}
    for row in moved:
        assert row.executors == {"driver": {**everything, "previous": everything["active"]}}
        for move in row.moves:
            assert move["source"] == f"driver/{slot[move['task']]}"
            slot[move["task"]] = int(move["target"].removeprefix("driver/"))
            assert (move["role"], move["reason"]) == ("active", "moves to a slot that has less to do")
    assert slot == {str(task): slots.slot_of[task] for task in slots.slot_of}
