"""Rows wait for what may come before them, nothing waits for ever, and a stop keeps or drains what waits."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from threading import Event

import polars as pl
import pytest
from polars import col

from tests.pipelines.spark.away import put_away, put_back
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BufferConfig, Count, JoinWindows, Json, StreamsBuilder, String, Suppressed, TimeWindows
from weir.pipelines.spark.errors import PendingRowsError
from weir.pipelines.spark.frontiers import Frontiers
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.task import Task
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import KEYED_FORMAT_VERSION
from weir.state.commit.tables import read_table
from weir.state.types import TaskId

MINUTE_MS, GRACE_MS = 60_000, 30_000
LIMITS = Limits(max_records=50, max_bytes=1 << 20, max_skew_ms=None)


@dataclass(frozen=True)
class Click:
    page: str


def program(*, passes="x", after=False, **settings) -> Application:
    """Final counts of clicks per page and minute, with half a minute of grace."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=MINUTE_MS), timedelta(milliseconds=GRACE_MS))
    final = (
        clicks.filter(col("page") != passes)
        .group_by("page")
        .windowed_by(windows)
        .agg("minutes", clicks=Count())
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    )
    (final.to_stream().filter(col("clicks") > 1) if after else final).to_delta("minutes")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1), **settings)


def clicks(times, page="a"):
    return [(b"u", json.dumps({"page": page}).encode(), time_ms) for time_ms in times]


def merged(rows):
    """The records of all partitions in the order in which they are taken: by the greatest time of the partition so
    far, then the partition, then the offset."""
    found = []
    for (_, partition), records in rows.items():
        greatest = -1
        for offset, (_, value, time_ms) in enumerate(records):
            greatest = max(greatest, time_ms)
            found.append((greatest, partition, offset, json.loads(value)["page"], time_ms))
    return sorted(found)


def final_counts(rows):
    """Closed windows of one page per task, which takes one record after the other."""
    counts, closed, stream_time = Counter(), {}, -1
    for *_, page, time_ms in merged(rows):
        stream_time = max(stream_time, time_ms)
        start = time_ms - time_ms % MINUTE_MS
        if start + MINUTE_MS + GRACE_MS > stream_time:
            counts[page, start] += 1
        closed |= {key: n for key, n in counts.items() if key[1] + MINUTE_MS + GRACE_MS <= stream_time}
    return closed


def found(place):
    table = read_table(place.warehouse / "clicks" / "minutes")
    return {(row["page"], int(row["window_start"].timestamp() * 1000)): row["clicks"] for row in table.to_dicts()}


def uneven(densities, count, seed=1):
    """Partitions over the same time, whose records are so many times as many; out of order by up to two minutes."""
    random, span = Random(seed), count * 100
    return Topics(
        {
            ("clicks", partition): clicks(
                max(0, time - random.randrange(2 * MINUTE_MS) * (random.random() < 0.3))
                for time in sorted(random.randrange(span) for _ in range(count * density // max(densities)))
            )
            for partition, density in enumerate(densities)
        }
    )


def waiting_bytes(coordinator):
    found = Counter()
    for task in coordinator.tasks.values():
        for blob in task.pending:
            found[blob.source] += blob.size_bytes
    return max(found.values(), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 20, 20_000])
def test_partitions_of_very_different_density_wait_within_the_limit_and_all_are_counted(tmp_path, limit):
    topics = uneven([1, 10, 100, 1_000], 40_000)
    place = Place(program(), topics, tmp_path, max_records=4_000)
    driver = place.driver()
    driver._limits = replace(driver._limits, max_pending_bytes=limit)
    coordinator, run_epoch, most = driver._coordinator, driver._coordinator.run_epoch, [0]

    def watched(*arguments, **others):
        result = run_epoch(*arguments, **others)
        most[0] = max(most[0], waiting_bytes(coordinator))
        return result

    coordinator.run_epoch = watched
    driver.run(Event(), until_caught_up=True)
    assert found(place) == final_counts(topics.rows)
    one_epoch = 4_000 * 40
    assert most[0] <= limit + one_epoch


@pytest.mark.parametrize("pace", [3, 40])
def test_a_record_far_in_the_future_does_not_starve_its_partition(tmp_path, pace):
    """Under steady load, what follows it is taken within two epochs."""
    future = 4_102_444_800_000
    topics = Topics({("clicks", 0): clicks([future]), ("clicks", 1): clicks([1])})
    place = Place(program(), topics, tmp_path)
    coordinator = place.driver()._coordinator
    for epoch in range(1, 8):
        for partition in (0, 1):
            times = range(epoch * 1_000, epoch * 1_000 + pace)
            topics.rows["clicks", partition] += clicks(times, page=f"p{partition}")
        coordinator.run_epoch(topics.end_offsets(list(topics.rows)), LIMITS, now_ms=epoch)
        waiting = sum(blob.rows for task in coordinator.tasks.values() for blob in task.pending)
        assert waiting <= 2 * 2 * pace
    read = sum(task.positions["clicks"][task.id.partition] for task in coordinator.tasks.values() if task.topics)
    assert read == 2 + 7 * 2 * pace


def half_read(place, **settings):
    """A driver of which partition 0 has read everything and partition 1, being restored, nothing."""
    coordinator = place.driver()._coordinator
    put_away(coordinator.tasks[TaskId(0, 1)])
    ends = place.topics.end_offsets(list(place.topics.rows))
    coordinator.run_epoch(ends, LIMITS, now_ms=0)
    return coordinator, ends


@pytest.fixture
def topics():
    return Topics({("clicks", 0): clicks(range(0, 40_000, 1_000)), ("clicks", 1): clicks(range(500, 40_000, 1_000))})


def taken(coordinator):
    return sum(task.totals.get("records_in", 0) for task in coordinator.tasks.values() if not task.topics)


def test_rows_wait_for_a_partition_whose_task_is_being_restored_and_status_names_it(tmp_path, topics):
    place = Place(program(), topics, tmp_path)
    coordinator, ends = half_read(place)
    for now_ms in (100, 1_500):
        coordinator.run_epoch(ends, LIMITS, now_ms=now_ms)
    assert taken(coordinator) == 0
    (waits,) = {task.waits for task in coordinator.tasks.values() if task.waits}
    assert waits == "rows wait for task 0_1, which is being restored"
    put_back(coordinator.tasks[TaskId(0, 1)])
    coordinator.run_epoch(ends, LIMITS, now_ms=1_600)
    assert taken(coordinator) == 80
    assert not any(task.waits for task in coordinator.tasks.values())
    assert "sources_given_up" not in coordinator.totals()


def test_after_the_longest_wait_the_others_go_on_and_it_is_counted(tmp_path, topics):
    place = Place(program(max_source_wait=timedelta(seconds=1)), topics, tmp_path)
    coordinator, ends = half_read(place)
    coordinator.run_epoch(ends, LIMITS, now_ms=999)
    assert taken(coordinator) == 0
    coordinator.run_epoch(ends, LIMITS, now_ms=1_001)
    assert taken(coordinator) == 40
    assert coordinator.totals()["sources_given_up"] == 1
    put_back(coordinator.tasks[TaskId(0, 1)])
    coordinator.run_epoch(ends, LIMITS, now_ms=1_100)
    assert taken(coordinator) == 80
    assert coordinator.totals()["sources_given_up"] == 1


def test_with_no_waiting_rows_are_taken_as_they_come(tmp_path, topics):
    place = Place(program(max_task_idle=None), topics, tmp_path)
    coordinator = place.driver()._coordinator
    put_away(coordinator.tasks[TaskId(0, 1)])
    limits = replace(LIMITS, max_task_idle_ms=None)
    coordinator.run_epoch(topics.end_offsets(list(topics.rows)), limits, now_ms=0)
    assert taken(coordinator) == 40


def test_a_task_without_rows_lets_those_behind_it_move(tmp_path):
    """Of three stages, a task of the second gets no rows: what the third waits for is the first one's progress."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    counts = stream.group_by("page").count("by_page").to_stream()
    counts.group_by(times=col("count")).count("by_count").to_delta("minutes")
    application = Application("clicks", builder)
    topics = Topics({("clicks", 0): clicks(range(100)), ("clicks", 1): clicks(range(0, 200, 2), page="a")})
    coordinator = Place(application, topics, tmp_path, max_records=10).driver()._coordinator
    ends, limits = topics.end_offsets(list(topics.rows)), replace(LIMITS, max_records=10)
    for _ in range(3):
        coordinator.run_epoch(ends, limits, now_ms=0)
    frontiers = Frontiers(application.topology, coordinator.tasks, ends)
    slower = min(task.clocks["_merge:clicks"] for task in coordinator.tasks.values() if task.topics)
    marks = frontiers.marks(coordinator.tasks[TaskId(2, 0)], reads=())
    assert {mark.merge_ms for mark in marks} == {slower}
    last = sum(task.totals.get("records_in", 0) for id, task in coordinator.tasks.items() if id.sub_topology == 2)
    assert last > 0


def stopped_half_way(place, **request):
    """Stop a run after its third commit."""
    commits = []

    def step(name):
        commits.extend([name] if name == "pivot appended" else [])
        if len(commits) == 3 and name == "pivot appended":
            place.desk.ask("stop", **request)
            driver._clock.requests = 0.0  # answered at once

    driver = place.driver(on_step=step)
    driver.run(Event())
    return newest_commit(place.warehouse, "clicks")


@pytest.fixture
def behind(tmp_path):
    """One partition has ten times the records of the other over the same time, so rows of the latter wait."""
    return Place(program(), uneven([1, 10], 3_000), tmp_path, max_records=20)


def finish(place, **options):
    """Run until caught up, in large epochs: what waited in small ones waits no differently for how the rest is read."""
    place.max_records = 1_000
    place.run(**options)


@pytest.mark.slow
def test_a_stop_commits_the_rows_that_wait_and_the_next_run_takes_them(behind):
    commit = stopped_half_way(behind)
    assert commit.pending_blobs
    finish(behind)
    assert found(behind) == final_counts(behind.topics.rows)


@pytest.mark.slow
def test_a_stop_that_drains_leaves_no_rows_and_changes_no_result(behind):
    commit = stopped_half_way(behind, drain="yes")
    assert not commit.pending_blobs
    lag = sum(map(len, behind.topics.rows.values())) - sum(
        offset for task in commit.tasks.values() for offsets in task.positions.values() for offset in offsets.values()
    )
    assert lag > 1_000, "it has not simply read everything"
    finish(behind)
    assert found(behind) == final_counts(behind.topics.rows)


@pytest.mark.slow
def test_a_commit_says_how_many_rows_of_a_blob_were_taken_and_an_older_weir_refuses_it(behind):
    driver = behind.driver()
    coordinator, ends = driver._coordinator, behind.topics.end_offsets(list(behind.topics.rows))
    limits = replace(LIMITS, max_records=20)
    while not any(blob.taken for task in coordinator.tasks.values() for blob in task.pending):
        assert coordinator.run_epoch(ends, limits, now_ms=0) is not None
    coordinator.commit("a test")
    commit = newest_commit(behind.warehouse, "clicks")
    assert any(0 < blob.taken < blob.rows for blob in commit.pending_blobs)
    assert commit.format_version == KEYED_FORMAT_VERSION == 3
    finish(behind)
    assert found(behind) == final_counts(behind.topics.rows)
    assert newest_commit(behind.warehouse, "clicks").format_version == 1


@pytest.mark.slow
def test_another_program_takes_waiting_rows_along_if_their_target_is_as_it_was(behind):
    assert stopped_half_way(behind).pending_blobs
    behind.application = program(passes="y")
    finish(behind)
    assert found(behind) == final_counts(behind.topics.rows)


@pytest.mark.slow
def test_another_program_without_the_target_is_refused_until_a_stop_has_drained(behind):
    """Both ways out that the message offers."""
    assert stopped_half_way(behind).pending_blobs
    old = behind.application
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream.group_by("page").count("others").to_delta("others")
    other = Application("clicks", builder)
    behind.application = other
    with pytest.raises(PendingRowsError, match=r"weir stop clicks --drain.*--until-caught-up"):
        behind.run(accept_state_loss=True)
    behind.application, behind.desk.asked = old, []
    behind.desk.ask("stop", drain="yes")
    behind.driver().run(Event())
    behind.application = other
    finish(behind, accept_state_loss=True)


def test_the_frontier_of_a_topic_is_its_next_record(tmp_path, topics):
    application = program()
    task = Task(id=TaskId(0, 1), instance="first", topics=("clicks",), positions={"clicks": {1: 7}}, visited=True)
    task.clocks = {"_merge:clicks": 70}
    target = Task(id=TaskId(1, 0), instance="first", topics=(), visited=True)
    tasks = {task.id: task, target.id: target}
    (mark,) = Frontiers(application.topology, tasks, {("clicks", 1): 9}).marks(target, reads=())
    assert (mark.merge_ms, mark.origin & (1 << 43) - 1, mark.partition) == (70, 7, 1)
    assert Frontiers(application.topology, tasks, {("clicks", 1): 7}).marks(target, reads=()) == ()


def test_rows_sent_in_one_epoch_on_two_edges_become_takeable_together(tmp_path):
    """A stream that joins itself sends each record on two edges; neither row of a record is taken without the other."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click)).map(key="page", value={"user": "user"})
    windows = JoinWindows.of_time_difference_with_no_grace(timedelta(0))
    stream.left_join(stream, windows=windows, store="pairs").to_delta("pairs")
    application = Application("clicks", builder, commit_interval=timedelta(milliseconds=1))
    times = range(0, 400, 10)
    topics = Topics({("clicks", 0): clicks(times), ("clicks", 1): clicks(times, page="b")})
    place = Place(application, topics, tmp_path, max_records=7)
    place.run()
    pairs = read_table(place.warehouse / "clicks" / "pairs")
    assert pairs.height == 80
    assert not pairs.select(pl.any_horizontal(pl.col("^.*user.*$").is_null())).to_series().any()
