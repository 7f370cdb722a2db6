"""The driver's decisions: when to commit, what to restore, where to stop, whom to answer."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from threading import Event

import pytest

from tests.pipelines.spark.inline import InlineRestores, InlineSlots, Place, Topics
from tests.pipelines.spark.sales import Sale, application, expected, sales, totals
from weir import Application, Json, StreamsBuilder, String
from weir.pipelines.publishing.state import SinkState
from weir.pipelines.spark import driver as module
from weir.pipelines.spark.errors import BadRecordError, PartitionCountError, TaskFailedError, TopologyChangedError
from weir.pipelines.tasks.plan import ReceiptStatus
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table


@pytest.fixture
def place(tmp_path):
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    return Place(application(), topics, tmp_path, max_records=30)


def test_a_run_until_caught_up_reads_everything_and_a_second_finds_nothing_to_do(place):
    first = place.run()
    assert (first.reason, first.records_in, first.totals["records_in"]) == ("caught_up", 200, 200)
    assert totals(place) == expected(place)
    second = place.run()
    assert (second.generation, second.records_in, second.totals["records_in"]) == (2, 0, 200)
    assert totals(place) == expected(place)


def test_a_run_continues_from_the_last_commit(place):
    place.run()
    place.topics.rows["sales", 0] += sales(50, 0)
    again = place.run()
    assert (again.records_in, again.totals["records_in"]) == (50, 250)
    assert totals(place) == expected(place)


def test_a_restore_can_be_requested_and_an_unknown_task_is_named(place):
    place.run()
    good, bad = place.desk.ask("restore", task="0_0"), place.desk.ask("restore", task="7_7")
    place.topics.rows["sales", 0] += sales(20, 0)
    place.run()
    assert place.desk.answers[good] == ("task 0_0 is restoring in slot 0", False)
    assert place.desk.answers[bad] == ("there is no task '7_7'; the tasks are 0_0, 0_1", True)
    assert totals(place) == expected(place)


@pytest.mark.parametrize(("for_s", "is_shortly"), [("3600", False), ("0", True)])
def test_commits_can_be_further_apart_for_a_while(place, for_s, is_shortly):
    """The program commits after each epoch."""
    undisturbed = place.run().commits
    assert undisturbed > 3
    place.topics.rows["sales", 0] += sales(100, 0)
    place.topics.rows["sales", 1] += sales(100, 1)
    asked = place.desk.ask("pace", interval_ms="3600000", for_s=for_s)
    bad = place.desk.ask("pace", interval_ms="soon", for_s="1")
    commits = place.run().commits
    assert (commits > 3) is is_shortly
    assert place.desk.answers[asked] == (
        f"commits every 3600 s instead of every 0.001 s, for {int(for_s):,} s",
        False,
    )
    assert place.desk.answers[bad][1], "it is refused, and the run goes on"
    assert totals(place) == expected(place)


def test_a_bad_record_stops_the_run_with_everything_before_it_in_its_partition_committed(place):
    """Also what its own epoch has read, which is offsets 60 to 69."""
    place.topics.rows["sales", 1][70] = (b"shop-1", b'{"amount": "ten"}', 5_000)
    with pytest.raises(BadRecordError, match=r"topic 'sales', partition 1, offset 70: value: .*int.*_dead_lett") as bad:
        place.run()
    assert "; all records before it in its partition are committed." in str(bad.value)
    assert newest_commit(place.warehouse, "sales").tasks[place.name_of("0_1")].positions == {"sales": {1: 70}}
    with pytest.raises(BadRecordError, match="offset 70"):
        place.run()


def test_a_record_on_which_a_function_fails_stops_the_run_with_the_earlier_epochs_committed(place):
    """Offset 70 is in the epoch that reads offsets 60 to 89."""
    builder = StreamsBuilder()
    builder.stream("sales", key=String("shop"), value=Json(Sale)).filter(_fails_at_70).to_delta("kept")
    place.application = Application("sales", builder, commit_interval=timedelta(milliseconds=1))
    del place.topics.rows["sales", 0][70:]
    with pytest.raises(TaskFailedError, match=r"offset 70, .*all earlier epochs are committed, and a new start rep"):
        place.run()
    assert newest_commit(place.warehouse, "sales").tasks[place.name_of("0_1")].positions == {"sales": {1: 60}}


def _fails_at_70(key: str, sale: Sale) -> bool:
    return 1 // (70 - sale.amount) >= 0


def test_dead_letters_keep_bad_records_and_the_run_continues(place):
    place.application = application(on_error="dead_letter")
    place.topics.rows["sales", 0][3] = (b"shop-0", b"{not json", 5_000)
    place.topics.rows["sales", 1][70] = (b"shop-1", b"{}", -7)
    place.run()
    letters = read_table(place.warehouse / "sales" / "_dead_letters").sort("partition")
    assert letters.select("topic", "partition", "offset", "value").rows() == [
        ("sales", 0, 3, b"{not json"),
        ("sales", 1, 70, b"{}"),
    ]
    assert "negative timestamp" in letters["reason"][1] or "amount" in letters["reason"][1]
    assert sum(count for _, count in totals(place).values()) == 198


def test_requests_commit_pause_resume_and_stop(place):
    place.application = application(commit_interval=timedelta(hours=1))
    desk, stop = place.desk, Event()
    asked = [desk.ask("commit"), desk.ask("pause")]
    seen = []

    def on_progress(progress):
        if not seen or seen[-1] != progress.state:
            seen.append(progress.state)
        if progress.state == "paused" and len(asked) == 2:
            asked.append(desk.ask("resume"))
            asked.append(desk.ask("stop"))

    summary = place.driver(on_progress=on_progress).run(stop)
    assert summary.reason == "stopped"
    assert [desk.answers[request][0].split()[0] for request in asked] == ["nothing", "paused", "running", "stopping"]
    assert "paused" in seen
    assert seen[-1] == "stopped"
    assert newest_commit(place.warehouse, "sales").reason == "stop"


class SlowlyStarting:
    """Sinks that tell how they are doing once for each report of the driver, the first time after a few."""

    def __init__(self, reports):
        self._reports = -reports

    @property
    def tells(self):
        return max(0, self._reports)

    @property
    def states(self):
        return [SinkState(sink="totals", target="topic: totals")] if self.tells else []

    def keep_alive(self):
        self._reports += 1

    def decide(self, decision):
        assert self.tells >= 2, "what it told first may be from before the request"
        return f"{decision.action} {decision.sink}"


def test_what_is_asked_of_a_sink_waits_until_it_has_told_how_it_is_doing_and_nothing_else_waits(place, monkeypatch):
    monkeypatch.setattr(module, "QUIET_REPORT_EVERY_S", 0.5)
    place.publishing, desk, answered = SlowlyStarting(3), place.desk, []
    retry, commit = desk.ask("sink", sink="totals", action="retry"), desk.ask("commit")

    def on_progress(progress):
        answered.append((retry in desk.answers, commit in desk.answers))
        if retry in desk.answers and len(desk.asked) == 2:
            desk.ask("stop")

    place.driver(on_progress=on_progress).run(Event())
    assert desk.answers[retry] == ("retry totals", False)
    assert (False, True) in answered


def test_what_is_asked_of_a_sink_that_an_application_does_not_have_is_refused(place):
    asked = place.desk.ask("sink", sink="totals", action="retry")
    place.run()
    assert place.desk.answers[asked] == ("the application has no sinks outside the warehouse", True)


def test_uncommitted_bytes_cause_a_commit_before_the_interval_is_over(place):
    place.application = application(commit_interval=timedelta(hours=1))
    place.application.uncommitted_max_bytes = 1
    assert place.run().commits >= 4


def test_another_topology_or_partition_count_is_refused_with_the_way_out(place):
    place.run()
    place.application = application(store="other")
    with pytest.raises(TopologyChangedError, match="weir reset sales"):
        place.run()
    place.application = application()
    place.topics.rows["sales", 2] = sales(5, 0)
    with pytest.raises(PartitionCountError, match="sales: 3 partitions"):
        place.run()
    assert newest_commit(place.warehouse, "sales").generation == 1, "a refused start claims nothing"


def test_partitions_stay_together_in_event_time_while_they_catch_up(place):
    place.application = application(max_skew=timedelta(milliseconds=100))
    place.topics.rows["sales", 1] = [
        (key, value, 1_000 + (time - 1_000) * 3) for key, value, time in place.topics.rows["sales", 1]
    ]
    driver = place.driver()
    coordinator, skews = driver._coordinator, []
    accept = coordinator.run_epoch

    def watched(*args, **others):
        result = accept(*args, **others)
        times = {name: time for task in coordinator.tasks.values() for name, time in task.source_times_ms.items()}
        behind = [task for task in coordinator.tasks.values() if task.positions["sales"][task.id.partition] < 100]
        if len(times) == len(behind) == 2:
            skews.append(abs(times["sales-0"] - times["sales-1"]))
        return result

    coordinator.run_epoch = watched
    driver.run(Event(), until_caught_up=True)
    assert len(skews) > 5
    assert max(skews) <= 100 + 30
    assert totals(place) == expected(place)


def test_a_run_reports_its_metrics_including_those_of_restores(place):
    place.run()
    place.desk.ask("restore", task="0_0")
    place.topics.rows["sales", 0] += [*sales(20, 0), (None, b'{"amount": 1}', 2_000)]
    told = []
    place.driver(on_progress=lambda progress: told.append(progress.readings)).run(Event(), until_caught_up=True)
    found = {
        (reading.name, reading.tags.get("task-id", "")): reading.value
        for reading in told[-1]
        if "processor-node-id" not in reading.tags
    }
    assert (found["process-total", ""], found["process-total", "0_0"]) == (21, 21)
    assert (found["dropped-records-total", "0_0"], found["record-lateness-max", "0_0"]) == (1, 990)
    assert found["restore-total", "0_0"] == 5
    assert found["active-restoring-tasks", ""] == 0
    assert found["commit-total", ""] >= 1
    assert found["commit-latency-max", ""] >= found["commit-latency-avg", ""] > 0


def test_a_run_reports_how_old_records_are_when_they_are_committed(place):
    now_ms = time.time_ns() // 1_000_000
    minute, hour = now_ms - 60_000, now_ms - 3_600_000
    for partition in (0, 1):
        times = [hour] * 3 + [minute] * 97
        place.topics.rows["sales", partition] = [
            (key, value, time_ms) for (key, value, _), time_ms in zip(sales(100, partition), times, strict=True)
        ]
    told = []
    place.driver(on_progress=lambda progress: told.append(progress.readings)).run(Event(), until_caught_up=True)
    found = {reading.name: reading.value for reading in told[-1]}
    passed_ms = time.time_ns() // 1_000_000 - now_ms
    assert 60_000 <= found["freshness-p50"] <= 60_000 + passed_ms
    assert 3_600_000 <= found["freshness-p99"] <= 3_600_000 + passed_ms


def test_a_run_reports_how_far_apart_its_commits_are_while_records_wait(place):
    place.max_records = 1
    place.topics.rows = {("sales", partition): sales(40, partition) for partition in (0, 1)}
    place.application = application(commit_interval=timedelta(milliseconds=20))
    told, began_s = [], []
    driver = place.driver(on_progress=lambda progress: told.append(progress.readings))
    commit = driver._coordinator.commit

    def noted(*args, **others):
        began_s.append(time.monotonic())
        commit(*args, **others)

    driver._coordinator.commit = noted
    driver.run(Event(), until_caught_up=True)
    found = {reading.name: reading.value for reading in told[-1]}
    apart_ms = [1000 * (after - before) for before, after in pairwise(began_s)]
    assert len(apart_ms) > 3
    assert found["commit-interval-avg"] == pytest.approx(sum(apart_ms) / len(apart_ms), rel=0.5, abs=30)
    assert found["commit-interval-max"] == pytest.approx(max(apart_ms), rel=0.5, abs=30)


def test_a_run_that_has_nothing_to_do_rests_and_is_there_when_a_punctuation_is_due(place, monkeypatch):
    """Also while a punctuation is due that has to wait, here for the end of a pause."""
    rests = []

    class Stop(Event):
        def wait(self, timeout=None):
            rests.append(timeout)
            if len(rests) == 10:
                task.next_punctuation_ms = 1
            if len(rests) == 15:
                task.next_punctuation_ms = time.time_ns() // 1_000_000 + 60
            if len(rests) == 16:
                self.set()
            return super().wait(0)

    place.application = application(commit_interval=timedelta(seconds=10))
    place.run()
    place.desk.ask("pause")
    driver = place.driver()
    task = next(iter(driver._coordinator.tasks.values()))
    driver.run(Stop())
    assert all(0.1 < rest <= 0.25 for rest in rests[5:10])
    assert all(0 < rest <= 0.02 for rest in rests[10:15])
    assert 0.02 <= rests[15] <= 0.06


@pytest.mark.parametrize("until_caught_up", [True, False])
def test_a_run_rests_while_a_restore_takes_long(place, monkeypatch, until_caught_up):
    """It used to loop without rest for as long as a restore took, on a core of its own."""
    finished, looks, rests = InlineRestores.finished, [], []

    class Stop(Event):
        def wait(self, timeout=None):
            rests.append(timeout)
            return super().wait(0)

    def after_a_while(restores):
        if restores.waiting:
            looks.append(len(rests))
            driver._beat._looked_s -= 60.0  # as it is after a minute
            if len(looks) < 20:
                return []
            if not until_caught_up:
                stop.set()
        return finished(restores)

    place.run()
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(20, partition)
    monkeypatch.setattr(InlineRestores, "finished", after_a_while)
    place.desk.ask("restore", task="0_0")
    driver, stop = place.driver(), Stop()
    driver.run(stop, until_caught_up=until_caught_up)
    assert len(looks) == 20
    assert len(set(looks)) > 15, "it rests between two looks, unless something else is due"


def test_a_task_that_has_just_been_restored_and_writes_too_late_is_restored_once_more(place, monkeypatch):
    """A worker that is frozen as it begins to write does so under an epoch that was committed meanwhile. That used to
    count as a restore that is no good, and ended the run."""
    run, late = InlineSlots.run, []

    def one_too_late(slots, plans):
        receipts = run(slots, plans)
        for number, receipt in enumerate(receipts):
            task = coordinator.tasks[receipt.task]
            if str(receipt.task) == "0_0" and task.is_restored and not late:
                late.append(receipt)
                receipts[number] = replace(receipt, state=coordinator.committed_id)
        return receipts

    place.run()
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(100, partition)
    place.desk.ask("restore", task="0_0")
    driver = place.driver()
    coordinator = driver._coordinator
    monkeypatch.setattr(InlineSlots, "run", one_too_late)
    driver.run(Event(), until_caught_up=True)
    assert [str(done.request.task) for done in place.restores.done] == ["0_0", "0_0"]
    assert totals(place) == expected(place)


def test_a_task_whose_slot_is_on_another_executor_since_its_restore_is_restored_there(place, monkeypatch):
    """Its store is not there. On the same executor, that would count as a restore that is no good, and end the run."""
    run, gone = InlineSlots.run, []

    def elsewhere(slots, plans):
        receipts = run(slots, plans)
        for number, receipt in enumerate(receipts):
            if str(receipt.task) == "0_0" and driver._coordinator.tasks[receipt.task].is_restored and not gone:
                gone.append(receipt)
                receipts[number] = replace(receipt, status=ReceiptStatus.NEEDS_RESTORE, error="it has no instance")
        return receipts

    place.run()
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(100, partition)
    place.desk.ask("restore", task="0_0")
    driver = place.driver()
    monkeypatch.setattr(InlineSlots, "run", elsewhere)
    monkeypatch.setattr(InlineSlots, "executor_of", lambda slots, slot: "2" if gone else "1")
    driver.run(Event(), until_caught_up=True)
    assert [str(done.request.task) for done in place.restores.done] == ["0_0", "0_0"]
    assert totals(place) == expected(place)
