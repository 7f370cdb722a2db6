"""Planning is pure: positions, ends and limits in, plans out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir import Int64, StreamsBuilder, String
from weir.pipelines.spark.frontiers import Frontiers
from weir.pipelines.spark.planner import Limits, aligned_until, partition_lag, plan_task, total_lag
from weir.pipelines.spark.task import Task
from weir.pipelines.tasks.plan import Receipt, ReceiptStatus
from weir.pipelines.topology import Topology
from weir.state.types import BlobRef, FileEntry, StateId, TaskId

LIMITS = Limits(max_records=100, max_bytes=1 << 20, max_skew_ms=None)
STATE = StateId(3, 8)


def source_task(partition: int = 0, position: int = 10, *, visited: bool = True) -> Task:
    return Task(
        id=TaskId(0, partition),
        instance="first",
        topics=("in",),
        current=StateId(3, 7),
        committed=StateId(3, 5),
        positions={"in": {partition: position}},
        visited=visited,
    )


def topology() -> Topology:
    builder = StreamsBuilder()
    one, other = (builder.stream(topic, key=String("key"), value=Int64("n")) for topic in ("in", "other"))
    one.merge(other).group_by("n").count("counts").to_delta("out")
    return builder.build()


TOPOLOGY = topology()


def planned(task: Task, ends, **arguments):
    settings = dict(state=STATE, limits=LIMITS, now_ms=0, until_time_ms=None) | arguments
    return plan_task(task, ends=ends, frontiers=Frontiers(TOPOLOGY, {task.id: task}, ends), **settings)


def plan(task: Task, end: int, now_ms: int = 0):
    return planned(task, {("in", task.id.partition): end}, now_ms=now_ms)


def receipt(task: Task, **changes) -> Receipt:
    return replace(
        Receipt(task=task.id, plan_hash="h", status=ReceiptStatus.DONE, state=STATE, positions=task.positions),
        **changes,
    )


@pytest.mark.parametrize(("end", "reached"), [(11, 11), (110, 110), (500, 110)])
def test_a_range_reaches_to_the_end_but_takes_no_more_records_than_the_limit(end, reached):
    found = plan(source_task(), end)
    assert [(read.start, read.end) for read in found.ranges] == [(10, reached)]
    assert (found.expected, found.committed, found.state) == (StateId(3, 7), StateId(3, 5), STATE)


def test_a_task_waits_for_an_idle_topic_as_long_as_it_is_told_to():
    task = replace(source_task(), topics=("in", "other"), positions={"in": {0: 10}, "other": {0: 5}})

    def ranges(now_ms: int, other_end: int) -> list[str]:
        ends = {("in", 0): 20, ("other", 0): other_end}
        found = planned(task, ends, now_ms=now_ms, limits=replace(LIMITS, max_task_idle_ms=100))
        return [wanted.topic for wanted in found.ranges] if found else []

    assert ranges(1_000, 5) == ranges(1_099, 5) == []
    assert ranges(1_100, 5) == ["in"]
    assert ranges(1_200, 6) == ["in", "other"]
    assert ranges(1_300, 5) == []


@pytest.mark.parametrize(("max_task_idle_ms", "available"), [(0, 500), (None, None)])
def test_a_plan_says_how_much_the_brokers_have_unless_the_task_waits_for_nothing(max_task_idle_ms, available):
    found = planned(source_task(), {("in", 0): 500}, limits=replace(LIMITS, max_task_idle_ms=max_task_idle_ms))
    assert [(wanted.end, wanted.available) for wanted in found.ranges] == [(110, available)]


def test_a_task_without_input_gets_no_plan_unless_something_is_due():
    task = source_task()
    assert plan(task, 10) is None
    assert plan(source_task(visited=False), 10) is not None, "the first epoch of a generation visits every task"
    task.next_punctuation_ms = 1_000
    assert plan(task, 10, now_ms=999) is None
    assert plan(task, 10, now_ms=1_000) is not None


def test_pending_blobs_alone_are_a_reason_to_run():
    task = Task(id=TaskId(1, 0), instance="first", topics=(), visited=True)
    assert plan(task, 0) is None
    (edge,) = TOPOLOGY.edges
    blob = BlobRef(source="0_0", target="1_0", edge=edge.name, state=STATE, path="b", rows=1, size_bytes=10)
    task.pending.append(blob)
    assert plan(task, 0).blobs == (blob,)


def test_no_partition_runs_ahead_of_the_furthest_behind_by_more_than_the_skew():
    slow, fast = source_task(0), source_task(1)
    slow.source_times_ms, fast.source_times_ms = {"in-0": 1_000}, {"in-1": 9_000}
    ends = {("in", 0): 50, ("in", 1): 50}
    assert aligned_until([slow, fast], ends, 500) == 1_500
    assert aligned_until([slow, fast], ends, None) is None
    assert aligned_until([slow, fast], {("in", 0): 10, ("in", 1): 50}, 500) is None, (
        "a partition that has caught up holds no other back"
    )


def test_until_every_partition_was_read_once_each_takes_a_single_record():
    known, unread = source_task(0), source_task(1)
    known.source_times_ms = {"in-0": 1_000}
    assert aligned_until([known, unread], {("in", 0): 50, ("in", 1): 50}, 500) < 0


def test_accepting_a_receipt_moves_the_task_and_settling_forgets_what_is_durable():
    task = source_task()
    file = FileEntry(table="out", path="f", size_bytes=1, rows=1)
    moved = task.accept(receipt(task, positions={"in": {0: 20}}, files=(file,), counts={"records_in": 10}), now_ms=0)
    assert moved
    assert (task.current, task.positions, task.files, task.totals) == (
        STATE,
        {"in": {0: 20}},
        [file],
        {"records_in": 10},
    )
    task.settled()
    assert (task.committed, task.files) == (STATE, [])


def test_an_epoch_that_changed_nothing_is_no_reason_to_commit():
    task = source_task()
    assert not task.accept(receipt(task), now_ms=0)
    assert not task.accept(receipt(task, positions={}), now_ms=0), "a fresh store does not know any positions yet"
    assert task.positions == {"in": {0: 10}}


def test_lag_counts_offsets_and_is_never_negative():
    task = source_task()
    assert partition_lag(task, "in", {("in", 0): 4}) == 0
    assert total_lag([task, source_task(1, 5)], {("in", 0): 30, ("in", 1): 6}) == 21


def test_the_plan_hash_names_the_plan():
    one, other = plan(source_task(), 20), plan(source_task(), 21)
    assert one.plan_hash == plan(source_task(), 20).plan_hash != other.plan_hash
