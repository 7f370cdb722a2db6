"""The number of slots changes while a run goes on, by a request or because executors join and leave.

Results are compared with a plain loop over the records. Slots are threads, or take turns where executors matter.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Event

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.dying import KilledError
from tests.pipelines.spark.inline import InlineSlots, Place, Topics
from tests.pipelines.spark.sales import application
from tests.pipelines.spark.sales import expected as sales_expected
from tests.pipelines.spark.sales import totals as sales_totals
from tests.pipelines.spark.threads import Gate, ThreadedPlace, WorkerKilledError
from tests.waiting import wait_for
from weir import Application, Count, Json, StreamsBuilder, String, Sum
from weir.pipelines.spark import driver, standbys
from weir.pipelines.spark.assignors import Assignors
from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.parts import RunSpec
from weir.pipelines.spark.slot_count import SlotCount
from weir.pipelines.tasks.plan import Receipt, TaskPlan
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache
from weir.state.types import TaskId

RECORDS, USERS, PARTITIONS, HELD = 200, 5, 6, 77
EXPECTED = {
    f"user-{partition}-{user}": (len(numbers), sum(numbers))
    for partition in range(PARTITIONS)
    for user in range(USERS)
    if (numbers := range(user, RECORDS, USERS))
}
HELD_TASK = TaskId(0, 2)


@dataclass(frozen=True)
class Click:
    number: int
    partition: int


GATE = Gate()


@pytest.fixture(autouse=True)
def gate():
    global GATE
    GATE = Gate()
    yield GATE
    GATE.opened.set()


def called(click: Click) -> Click:
    if click.partition == HELD_TASK.partition:
        GATE.passes(click.number)
    return click


def place_of(folder, slots: int) -> ThreadedPlace:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).map_values(called)
    clicks.group_by_key().agg("clicks", clicks=Count(), total=Sum("number")).to_delta("totals")
    topics = Topics({("clicks", partition): rows(partition, range(RECORDS)) for partition in range(PARTITIONS)})
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=20))
    return ThreadedPlace(application, topics, folder, max_records=10, slot_count=slots)


def rows(partition: int, numbers: Collection[int]) -> list:
    return [
        (
            b"user-%d-%d" % (partition, number % USERS),
            msgspec.json.encode(Click(number, partition)),
            1_000 * number,
        )
        for number in numbers
    ]


def totals(there: ThreadedPlace) -> dict[str, tuple[int, int]]:
    frame = pl.DataFrame(read_table(there.warehouse / "shop" / "totals")).sort("_epoch", "_seq", maintain_order=True)
    return {user: (clicks, total) for user, clicks, total in frame.select("user", "clicks", "total").rows()}


def asked(there: ThreadedPlace, kind: str, **arguments: str) -> tuple[str, bool]:
    number = there.desk.ask(kind, **arguments)
    wait_for(lambda: number in there.desk.answers, f"{kind} is answered")
    return there.desk.answers[number]


def test_tasks_leave_slots_that_end_with_their_stores_and_come_back_to_new_ones(tmp_path):
    there = place_of(tmp_path, 3)
    run, stop = there.begin(until_caught_up=False)
    wait_for(lambda: there.positions("clicks") == [RECORDS] * PARTITIONS, "all is committed")
    slots = there.used[-1]
    leaving = sorted(task for task, slot in slots.slot_of.items() if slot == 2)
    assert asked(there, "slots", slots="2") == (
        f"2 slots instead of 3; moved: {', '.join(map(str, leaving))}",
        False,
    )
    assert (slots.count, len(slots._threads)) == (2, 2)
    assert Counter(slots.slot_of.values()) == {0: 3, 1: 3}
    assert asked(there, "slots", slots="1")[0].startswith("1 slot instead of 2; moved: ")
    assert set(slots.slot_of.values()) == {0}
    assert asked(there, "slots", slots="4")[0].startswith("4 slots instead of 1; moved: ")
    assert sorted(Counter(slots.slot_of.values()).values()) == [1, 1, 2, 2]
    for partition in range(PARTITIONS):
        there.topics.rows["clicks", partition] += rows(partition, [RECORDS])
    wait_for(lambda: there.positions("clicks") == [RECORDS + 1] * PARTITIONS, "the rest is committed")
    stop.set()
    run.result(60)
    assert there.restores.done == []
    user = RECORDS % USERS
    more = {
        f"user-{partition}-{user}": (len(numbers), sum(numbers))
        for partition in range(PARTITIONS)
        if (numbers := range(user, RECORDS + 1, USERS))
    }
    assert totals(there) == EXPECTED | more
    reasons = {move["reason"] for row in there.desk.assignments for move in row.moves}
    assert {"its slot ends", "moves into a slot that had none"} <= reasons
    assert there.desk.assignments[-1].executors["driver"]["slots"] == 4


def test_a_task_that_is_at_work_leaves_its_slot_once_it_rests(tmp_path, gate):
    gate.held = HELD
    there = place_of(tmp_path, 3)
    run, stop = there.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    slots = there.used[-1]
    assert slots.slot_of[HELD_TASK] == 2
    answer, failed = asked(there, "slots", slots="1")
    assert not failed
    assert answer.endswith("; more tasks follow once they rest")
    wait_for(lambda: len(slots._threads) == 3 and Counter(slots.slot_of.values())[1] == 0, "those of slot 1 have left")
    assert slots.slot_of[HELD_TASK] == 2
    gate.opened.set()
    wait_for(lambda: len(slots._threads) == 1, "both slots have ended")
    wait_for(lambda: there.positions("clicks") == [RECORDS] * PARTITIONS, "all is committed")
    stop.set()
    run.result(60)
    assert there.restores.done == []
    assert totals(there) == EXPECTED


def test_a_slot_that_is_to_end_stays_if_it_is_wanted_again(tmp_path, gate):
    gate.held = HELD
    there = place_of(tmp_path, 3)
    run, stop = there.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    slots, thread = there.used[-1], there.used[-1]._threads[2]
    asked(there, "slots", slots="2")
    assert asked(there, "slots", slots="3")[0].startswith("3 slots instead of 2; ")
    gate.opened.set()
    wait_for(lambda: there.positions("clicks") == [RECORDS] * PARTITIONS, "all is committed")
    stop.set()
    run.result(60)
    assert (slots.count, slots._threads[2]) == (3, thread)
    assert totals(there) == EXPECTED


def test_a_paused_task_leaves_a_slot_that_ends_and_stays_paused(tmp_path):
    there = place_of(tmp_path, 3)
    run, stop = there.begin(until_caught_up=False)
    wait_for(lambda: there.positions("clicks") == [RECORDS] * PARTITIONS, "all is committed")
    assert asked(there, "pause", tasks=str(HELD_TASK)) == (f"paused {HELD_TASK} after epoch {epoch(there)}", False)
    assert f"{HELD_TASK}" in asked(there, "slots", slots="1")[0]
    there.topics.rows["clicks", HELD_TASK.partition] += rows(HELD_TASK.partition, [RECORDS])
    there.topics.rows["clicks", 1] += rows(1, [RECORDS])
    wait_for(lambda: there.positions("clicks")[1] == RECORDS + 1, "another task goes on")
    assert there.positions("clicks")[HELD_TASK.partition] == RECORDS
    asked(there, "resume")
    wait_for(lambda: there.positions("clicks")[HELD_TASK.partition] == RECORDS + 1, "it goes on as well")
    stop.set()
    run.result(60)


def epoch(there: ThreadedPlace) -> int:
    commit = there.commit_before()
    assert commit is not None
    return commit.epoch


class Strikes:
    """Asks for other numbers of slots all the time, and kills once, at a step that is drawn."""

    def __init__(self, there: ThreadedPlace, seed: int, victim: type[BaseException]) -> None:
        self._there, self._rng, self._victim = there, random.Random(seed), victim
        self._steps, self._at, self._lock = 0, self._rng.randrange(20, 600), threading.Lock()
        self.has_struck = False

    def __call__(self, name: str) -> None:
        with self._lock:
            self._steps += 1
            if self._steps % 15 == 0:
                self._there.desk.ask("slots", slots=self._rng.choice("1234"))
            is_now = not self.has_struck and self._steps >= self._at
            if is_now and (self._victim is KilledError or name in ("files written", "state written")):
                self.has_struck = True
                raise self._victim(name)


@pytest.mark.faults
@pytest.mark.parametrize("victim", [KilledError, WorkerKilledError])
@pytest.mark.parametrize("seed", range(2))
def test_killed_while_slots_come_and_go_every_record_counts_once(tmp_path, victim, seed):
    there = place_of(tmp_path, 2)
    strikes = Strikes(there, seed, victim)
    run, _ = there.begin(strikes)
    if victim is WorkerKilledError:
        run.result(60)
    else:
        with pytest.raises(KilledError):
            run.result(60)
        there.used[-1].driver_dies()
        TaskStoreCache.close_all()
        there.begin(Strikes(there, -seed, WorkerKilledError))[0].result(60)
    assert strikes.has_struck
    assert sum(answer.startswith(tuple("1234")) for answer, _ in there.desk.answers.values()) > 2, "slots have changed"
    assert totals(there) == EXPECTED


@dataclass
class ClusterSlots(InlineSlots):
    """Slots on executors, which all are this process with one folder."""

    there: list[str] = field(default_factory=lambda: ["1", "2"])
    is_leaving: set[str] = field(default_factory=set)
    homes: list[str] = field(default_factory=lambda: ["1", "2", "1", "2"])
    count: int = 4
    most: int = 100
    epochs: int = 0
    on_epoch: Callable[[], None] = lambda: None

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        self.epochs += 1
        self.on_epoch()
        return super().run(plans)

    def executor_of(self, slot: int) -> str:
        return self.homes[slot]

    def executors(self) -> Sequence[str]:
        return [each for each in self.there if each not in self.is_leaving]

    def lost(self) -> Sequence[int]:
        return [slot for slot, home in enumerate(self.homes) if home not in self.there]

    def leaving(self) -> Sequence[int]:
        return [slot for slot, home in enumerate(self.homes) if home in self.is_leaving]

    def go(self, slot: int, executor: str) -> None:
        self.homes[slot] = executor

    def scale(self, count: int) -> None:
        if count > self.most:
            raise RunError(f"there can be at most {self.most} slots")
        while len(self.homes) < count:
            self.homes.append(min(self.executors(), key=self.homes.count))
        self.count = count

    def end_unused(self, used: Collection[int]) -> bool:
        while len(self.homes) > self.count and len(self.homes) - 1 not in used:
            self.homes.pop()
        return len(self.homes) > self.count


class ClusterPlace(Place):
    """Four slots on two executors, for which they were planned."""

    def spec(self, **accepts: bool) -> RunSpec:
        return replace(super().spec(**accepts), slots=4, counts=SlotCount(slots=4, executors=2, planned=2))

    def slots(self, spec: RunSpec, on_step: Callable[[str], None]) -> ClusterSlots:
        self.used = ClusterSlots(self.runner(spec, on_step))
        return self.used


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> ClusterPlace:
    monkeypatch.setattr(driver, "EVEN_EVERY_S", 0.0)
    monkeypatch.setattr(driver, "JOIN_LIMIT_S", 0.0)
    monkeypatch.setattr(standbys, "FOLLOW_EVERY_S", 0.0)
    topics = Topics(
        {
            ("sales", partition): [
                (b"shop-%d-%d" % (partition, number % 5), msgspec.json.encode({"amount": number}), 1_000 + number)
                for number in range(1_200)
            ]
            for partition in range(PARTITIONS)
        }
    )
    return ClusterPlace(application(), topics, tmp_path, max_records=20, assignors=Assignors(probing_interval_s=0.0))


@pytest.mark.parametrize("how", ["is decommissioned", "is lost"])
def test_an_executor_that_was_not_planned_brings_slots_and_takes_them_with_it(cluster, how):
    run = cluster.driver()
    slots, tasks, seen = cluster.used, run._coordinator.tasks.values(), list[tuple[str, int]]()

    def shares() -> Counter[str]:
        return Counter(slots.homes[task.slot] for task in tasks)

    def on_epoch() -> None:
        if slots.epochs == 5:
            slots.there.append("3")
        if len(slots.there) == 3 and shares() == {"1": 2, "2": 2, "3": 2} and not seen:
            assert Counter(slots.homes) == {"1": 2, "2": 2, "3": 2}
            seen.append(("joined", slots.count))
            if how == "is lost":
                slots.there.remove("3")
            else:
                slots.is_leaving.add("3")

    slots.on_epoch = on_epoch
    run.run(Event(), until_caught_up=True)
    assert seen == [("joined", 6)]
    assert slots.count == len(slots.homes) == 4
    assert Counter(slots.homes) == {"1": 2, "2": 2}
    assert shares() == {"1": 3, "2": 3}
    assert sales_totals(cluster) == sales_expected(cluster)


def test_on_a_cluster_slots_are_asked_for_within_what_the_executors_have_room_for(cluster):
    run = cluster.driver()
    slots, tasks = cluster.used, run._coordinator.tasks.values()
    slots.most = 6
    numbers = ("0", "1", "7", "6", "2")
    asked_at = dict(zip((5, 10, 15, 20, 40), numbers, strict=True))
    requests, counts = dict[str, int](), dict[str, Counter[str]]()

    def on_epoch() -> None:
        if (wanted := asked_at.get(slots.epochs)) is not None:
            requests[wanted] = cluster.desk.ask("slots", slots=wanted)
        if slots.epochs == 39:
            counts["6"] = Counter(slots.homes)

    slots.on_epoch = on_epoch
    run.run(Event(), until_caught_up=True)
    answers = {wanted: cluster.desk.answers[request] for wanted, request in requests.items()}
    assert answers["0"] == ("'0' is not a number of slots; give one from 1 on", True)
    assert answers["1"] == (
        "each of the 2 executors needs a slot; ask for 2 slots, or have executors leave first",
        True,
    )
    assert answers["7"] == ("there can be at most 6 slots", True)
    assert answers["6"][0].startswith("6 slots instead of 4; moved: ")
    assert counts["6"] == {"1": 3, "2": 3}
    assert answers["2"][0].startswith("2 slots instead of 6; moved: ")
    assert slots.homes == ["1", "2"]
    assert {task.slot for task in tasks} == {0, 1}
    assert run.slot_count.at(2) == 2, "so many has the next generation of the run"
    assert cluster.restores.done == [], "each stays on its executor"
    assert sales_totals(cluster) == sales_expected(cluster)


def test_if_there_is_no_room_for_the_slots_of_one_that_joins_it_gets_some_of_the_others(cluster, caplog):
    run = cluster.driver()
    slots = cluster.used
    slots.most, slots.there = 4, ["1", "2", "3"]
    with caplog.at_level(logging.WARNING):
        run.run(Event(), until_caught_up=True)
    assert sorted(Counter(slots.homes).values()) == [1, 1, 2]
    assert caplog.text.count("there can be at most 4 slots") == 1
    assert sales_totals(cluster) == sales_expected(cluster)


@given(slots=st.integers(1, 40), planned=st.integers(1, 8), wanted=st.integers(1, 40), there=st.integers(1, 12))
def test_as_many_as_were_asked_for_are_there_and_each_executor_has_one_at_least(slots, planned, wanted, there):
    count = SlotCount(slots=slots, executors=planned, planned=planned)
    assert count.at(planned) == slots
    wanted = max(wanted, planned, there)
    asked_for = count.asked(wanted, there)
    assert asked_for.at(there) == wanted
    numbers = [asked_for.at(number) for number in range(1, 20)]
    assert numbers == sorted(numbers)
    assert all(slots >= executors for executors, slots in enumerate(numbers[planned - 1 :], planned))
