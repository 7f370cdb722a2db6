"""No task waits for a call that another one is in, and what the call has done counts once, whenever it returns.

Results are compared with a plain loop over the records. Slots are threads; a call is held up until the test lets it go.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.faults.dying import KilledError
from tests.orchestration.readings import minutes, running
from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.threads import Gate, ThreadedPlace, WorkerKilledError
from tests.waiting import wait_for
from weir import Application, Count, Json, Processor, Record, StreamsBuilder, String, Sum
from weir.orchestration.sensors.stalled import stall_reason
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.spark import driver as driver_module
from weir.pipelines.spark.control import ControlPanel
from weir.state.commit.log import COMMITS, commits_above
from weir.state.commit.tables import file_actions, read_table
from weir.state.types import TaskId

RECORDS, USERS, HELD = 400, 7, 123
SLOW = "0_0"


@dataclass(frozen=True)
class Click:
    number: int
    is_slow: bool


GATE = Gate()


@pytest.fixture(autouse=True)
def gate():
    global GATE
    GATE = Gate(HELD, each_time=True)
    yield GATE
    GATE.opened.set()


def called(click: Click) -> Click:
    if click.is_slow:
        GATE.passes(click.number)
    return click


def rows(is_slow: bool) -> list[tuple[bytes, bytes, int]]:
    return [
        (b"user-%d" % (number % USERS), msgspec.json.encode(Click(number, is_slow)), 1_000 * number)
        for number in range(RECORDS)
    ]


def apart(builder: StreamsBuilder) -> None:
    for topic in ("slow", "fast"):
        clicks = builder.stream(topic, key=String("user"), value=Json(Click)).map_values(called)
        clicks.to_delta(f"{topic}_seen")
        clicks.group_by_key().agg(topic, clicks=Count(), total=Sum("number")).to_delta(topic)


def place(folder, make=apart, *, commit_ms=20, max_records=50, snapshot_rows=0) -> ThreadedPlace:
    builder = StreamsBuilder()
    make(builder)
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=commit_ms))
    topics = Topics({("slow", 0): rows(True), ("fast", 0): rows(False)})
    return ThreadedPlace(application, topics, folder, max_records=max_records, snapshot_rows=snapshot_rows)


def totals(there: ThreadedPlace, table: str) -> dict[str, tuple[int, int]]:
    frame = pl.DataFrame(read_table(there.warehouse / "shop" / table)).sort("_epoch", "_seq", maintain_order=True)
    return {user: (clicks, total) for user, clicks, total in frame.select("user", "clicks", "total").rows()}


EXPECTED = {
    f"user-{user}": (len(numbers), sum(numbers)) for user in range(USERS) if (numbers := range(user, RECORDS, USERS))
}


def test_the_others_are_committed_while_one_call_is_held_up_and_its_work_counts_once(tmp_path, gate):
    there = place(tmp_path, max_records=10, snapshot_rows=30)
    run, _ = there.begin()
    wait_for(gate.is_in.is_set, "the call is being made")
    wait_for(lambda: there.positions("fast") == [RECORDS], "the fast topic is committed to its end")
    before = there.commit_before()
    assert there.positions("slow")[0] <= HELD
    assert totals(there, "fast") == EXPECTED
    gate.opened.set()
    summary = run.result(60)
    assert (summary.reason, summary.records_in) == ("caught_up", 2 * RECORDS)
    assert gate.calls == Counter(range(RECORDS)), "nothing was done twice"
    assert there.commit_before().epoch > before.epoch
    assert there.commit_before().tasks[there.name_of(SLOW)].snapshot is not None
    finish(there)


def assert_epochs_follow_commits(there: ThreadedPlace) -> None:
    """What a commit names belongs to epochs after the commit before: whoever reads since a commit misses nothing."""
    folder = there.warehouse / "shop"
    table = DeltaTable(folder / COMMITS.name)
    before, checked = 0, 0
    for record in commits_above(folder / COMMITS.name, file_actions(table), 0):
        for file in record.files:
            epochs = pl.read_parquet(folder / file.table / file.path, columns=["_epoch"])["_epoch"]
            assert before < epochs.min() <= epochs.max() <= record.epoch, file
            checked += 1
        before = record.epoch
    assert checked


def finish(there: ThreadedPlace) -> None:
    """Run until all is read, and compare everything with the plain loop, also after the stores are lost."""
    GATE.opened.set()
    there.begin()[0].result(60)
    assert not there.restores.done, "what no commit holds is rolled back, not lost"
    for topic in ("slow", "fast"):
        assert totals(there, topic) == EXPECTED
        seen = pl.DataFrame(read_table(there.warehouse / "shop" / f"{topic}_seen"))["number"]
        assert sorted(seen) == list(range(RECORDS)), f"every record of {topic} once"
    assert_epochs_follow_commits(there)
    shutil.rmtree(there.state_folder)
    for (topic, _), log in there.topics.rows.items():
        log += [(b"user-0", msgspec.json.encode(Click(RECORDS, topic == "slow")), 1_000 * RECORDS)]
    there.begin()[0].result(60)
    for topic in ("slow", "fast"):
        clicks, total = EXPECTED["user-0"]
        assert totals(there, topic) == EXPECTED | {"user-0": (clicks + 1, total + RECORDS)}


class Kill:
    """Dies at a step, once: while the call is held up, after it, or in what the held-up task itself does after it."""

    def __init__(self, gate: Gate, step: str, when: str, victim: type[BaseException]) -> None:
        self._gate, self._step, self.when, self.victim = gate, step, when, victim
        self.has_struck = False

    def __call__(self, name: str) -> None:
        gate = self._gate
        if name != self._step or self.has_struck or not gate.is_in.is_set():
            return
        is_now = {
            "in the call": not gate.opened.is_set(),
            "after it": gate.opened.is_set(),
            "its own": gate.opened.is_set() and threading.get_ident() == gate.thread,
        }
        if is_now[self.when]:
            self.has_struck = True
            raise self.victim(name)


KILLS = {
    "the driver at the pivot, in the call": ("pivot appended", "in the call", KilledError),
    "the driver at the tables, in the call": ("table appended", "in the call", KilledError),
    "the worker before it writes": ("renewed", "its own", WorkerKilledError),
    "the worker before it changes its store": ("files written", "its own", WorkerKilledError),
    "the worker before its receipt": ("state written", "its own", WorkerKilledError),
    "the driver before it writes": ("renewed", "its own", KilledError),
    "the driver before it changes its store": ("files written", "its own", KilledError),
    "the driver before the receipt": ("state written", "its own", KilledError),
    "the driver after the receipt, at the pivot": ("pivot appended", "after it", KilledError),
    "the driver after the receipt, at the tables": ("table appended", "after it", KilledError),
}


@pytest.mark.faults
@pytest.mark.parametrize("kill", KILLS)
def test_killed_at_any_step_every_record_counts_once(tmp_path, gate, kill):
    there, strikes = place(tmp_path, commit_ms=100, max_records=10), Kill(gate, *KILLS[kill])
    run, _ = there.begin(strikes)
    wait_for(gate.is_in.is_set, "the call is being made")
    if strikes.when != "in the call":
        wait_for(lambda: there.positions("fast") == [RECORDS], "many commits have passed")
        gate.opened.set()
    if strikes.victim is KilledError:
        with pytest.raises(KilledError):
            run.result(60)
        gate.opened.set()
        there.used[-1].driver_dies()
    else:
        run.result(60)
    assert strikes.has_struck
    finish(there)


@pytest.mark.faults
def test_a_rollback_leads_to_what_was_committed_during_the_call(tmp_path, gate):
    """The call began while its task's epochs before were not committed, and the driver dies before its receipt."""
    there = place(tmp_path, commit_ms=3_600_000, max_records=10)
    run, _ = there.begin(Kill(gate, "state written", "its own", KilledError))
    wait_for(gate.is_in.is_set, "the call is being made")
    before = there.positions("slow")
    asked = there.desk.ask("commit")
    wait_for(lambda: asked in there.desk.answers, "it is committed")
    assert there.positions("slow") > before
    gate.opened.set()
    with pytest.raises(KilledError):
        run.result(60)
    there.used[-1].driver_dies()
    finish(there)


def test_a_stop_does_not_wait_for_a_call_and_the_next_run_repeats_it(tmp_path, gate, caplog):
    there = place(tmp_path)
    run, stop = there.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    wait_for(lambda: there.positions("fast") == [RECORDS], "the fast topic is committed to its end")
    began_s = time.monotonic()
    stop.set()
    with caplog.at_level(logging.WARNING):
        assert run.result(60).reason == "stopped"
    assert time.monotonic() - began_s < 10
    assert not gate.opened.is_set()
    assert f"task {SLOW} has not answered: the run ends without it" in caplog.text
    assert there.positions("slow")[0] <= HELD
    gate.opened.set()
    there.used[-1].driver_dies()
    finish(there)
    assert gate.calls[HELD] == 2


class Farewell(Processor[str, Click, str, str]):
    """Forwards how many records it has seen once it is closed, and takes its time for that."""

    def init(self, context):
        self.context, self.seen = context, 0

    def process(self, record):
        self.seen += 1

    def close(self):
        GATE.hold()
        self.context.forward(Record("all", str(self.seen), datetime(1970, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_is_forwarded_at_the_end_belongs_to_the_last_commit_however_long_closing_takes(
    tmp_path, gate, monkeypatch, is_stopped
):
    monkeypatch.setattr(driver_module, "HURRY_S", 0.05)

    def closing(builder: StreamsBuilder) -> None:
        fast = builder.stream("fast", key=String("user"), value=Json(Click))
        fast.process(Farewell, name="farewell").to_delta("seen")

    there = place(tmp_path, closing)
    run, stop = there.begin(until_caught_up=not is_stopped)
    if is_stopped:
        wait_for(lambda: there.positions("fast") == [RECORDS], "all is committed")
        stop.set()
    wait_for(gate.is_in.is_set, "it is being closed")
    time.sleep(0.3)
    assert not run.done()
    gate.opened.set()
    assert run.result(60).reason == ("stopped" if is_stopped else "caught_up")
    assert read_table(there.warehouse / "shop" / "seen")["value"].to_list() == [str(RECORDS)]


def test_requests_are_answered_and_a_pause_begins_while_a_call_is_held_up(tmp_path, gate):
    there = place(tmp_path, commit_ms=3_600_000)
    run, stop = there.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    asked = [there.desk.ask("commit"), there.desk.ask("pause")]
    wait_for(lambda: set(asked) <= there.desk.answers.keys(), "both are answered")
    assert not gate.opened.is_set()
    assert [there.desk.answers[number][1] for number in asked] == [False, False]
    committed = there.commit_before()
    gate.opened.set()
    wait_for(lambda: there.used[-1].is_free(TaskId.parse(SLOW)), "what the call has done is taken up in the pause")
    asked = there.desk.ask("commit")
    wait_for(lambda: asked in there.desk.answers, "that is committed")
    assert there.positions("slow")[0] > HELD
    assert there.commit_before().epoch > committed.epoch
    stop.set()
    run.result(60)
    finish(there)
    assert gate.calls == Counter(range(RECORDS + 1)), "nothing was done twice"


def test_a_task_that_is_restored_meanwhile_begins_again_and_its_call_counts_for_nothing(tmp_path, gate):
    there = place(tmp_path)
    run, stop = there.begin(until_caught_up=False)
    wait_for(gate.is_in.is_set, "the call is being made")
    wait_for(lambda: there.positions("fast") == [RECORDS], "the fast topic is committed to its end")
    asked = there.desk.ask("restore", task=SLOW)
    wait_for(lambda: there.restores.done, "the task is restored")
    assert not there.desk.answers[asked][1]
    gate.opened.set()
    wait_for(lambda: there.positions("slow") == [RECORDS], "the slow topic is committed to its end")
    assert gate.calls[HELD] == 2
    stop.set()
    run.result(60)
    there.restores.done.clear()
    finish(there)


def test_a_receipt_under_an_epoch_that_was_committed_is_refused(tmp_path, gate):
    """A worker that Spark had given up writes before its successor, under the epoch that it was told."""
    there = place(tmp_path)
    gate.opened.set()
    driver = there.driver()
    slots = there.used[-1]
    take, stale = slots._take, []

    def late():
        receipts = take()
        if not stale and driver._coordinator.commits > 2:
            for at, receipt in enumerate(receipts):
                if str(receipt.task) == SLOW:
                    stale.append(receipt)
                    receipts[at] = replace(receipt, state=driver._coordinator.committed_id)
        return receipts

    slots._take = late
    driver.run(threading.Event(), until_caught_up=True)
    assert stale
    assert [str(restored.request.task) for restored in there.restores.done] == [SLOW]
    finish(there)


def listed(builder: StreamsBuilder) -> None:
    """The numbers of a user in the order in which they are taken, behind two repartitions."""

    def add(user: str, click: Click, found: list[int]) -> list[int]:
        return [*found, click.number * 2 + click.is_slow]

    slow, fast = (
        builder.stream(topic, key=String("user"), value=Json(Click)).map_values(called).repartition(f"moved-{topic}")
        for topic in ("slow", "fast")
    )
    slow.merge(fast).group_by_key().aggregate("listed", list, add).to_delta("listed")


def test_what_stands_behind_a_repartition_waits_and_takes_rows_in_their_order(tmp_path, gate):
    there = place(tmp_path, listed)
    there.slot_count = 3
    run, _ = there.begin()
    wait_for(gate.is_in.is_set, "the call is being made")
    wait_for(lambda: there.positions("fast") > there.positions("slow"), "the other topic is read on")
    gate.opened.set()
    run.result(60)
    expected = {
        f"user-{user}": [number for each in range(user, RECORDS, USERS) for number in (2 * each + 1, 2 * each)]
        for user in range(USERS)
    }
    frame = pl.DataFrame(read_table(there.warehouse / "shop" / "listed")).sort("_epoch", "_seq", maintain_order=True)
    found = {row["user"]: row for row in frame.iter_rows(named=True)}
    assert {
        user: next(value for value in row.values() if isinstance(value, list)) for user, row in found.items()
    } == expected
    assert_epochs_follow_commits(there)


def test_a_driver_whose_only_task_is_held_up_works_and_is_not_taken_for_a_stalled_one(tmp_path, gate):
    there, states = place(tmp_path), list[str]()
    there.desk.report = lambda progress, tasks, ends: states.append(progress.state)
    run, _ = there.begin()
    wait_for(gate.is_in.is_set, "the call is being made")
    wait_for(lambda: there.positions("fast") == [RECORDS], "the fast topic is committed to its end")
    wait_for(lambda: "working" in states[-1:], "nothing is done but the call")
    states.clear()
    wait_for(lambda: len(states) > 2, "it goes on reporting")
    gate.opened.set()
    run.result(60)
    held = states[:2]
    assert held == ["working", "working"]
    limit_s = Thresholds().stalled_max_s
    for state, is_stalled in (("running", True), (held[0], False)):
        reason = stall_reason(running(state=state), minutes([50] * 4, [7] * 4), limit_s, limit_s, 0)
        assert bool(reason) is is_stalled


def test_a_worker_that_gives_no_sign_is_named_and_waiting_for_it_is_work(tmp_path, gate, monkeypatch, caplog):
    """As in a call that lets no other thread of its process run; the next commit is an hour away."""
    for name, limit_s in {"FRESH_S": 0.2, "SIGN_EVERY_S": 0.1}.items():
        monkeypatch.setattr(f"weir.pipelines.spark.under_way.{name}", limit_s)
    there, states, reasons = place(tmp_path, commit_ms=3_600_000), list[str](), list[str]()

    def report(progress, tasks, ends):
        states.append(progress.state)
        reasons.extend(ControlPanel(None)._row(task, ends, is_paused=False).reason for task in tasks)

    there.desk.report = report
    with caplog.at_level(logging.WARNING):
        run, _ = there.begin()
        wait_for(gate.is_in.is_set, "the call is being made")
        states.clear()
        wait_for(lambda: len(states) > 3, "it goes on reporting")
        gate.opened.set()
        run.result(60)
    assert set(states[:3]) == {"working"}
    said = "has given no sign of life for 0 s"
    assert said in reasons
    assert f"task {SLOW} {said}" in caplog.text
    assert not any(reasons[-2:]), "it has answered"
