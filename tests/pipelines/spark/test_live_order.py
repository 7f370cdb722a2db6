"""The order of rows while input keeps coming, some of it is idle, and some of it cannot be read."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event

import pytest
from polars import col

from tests.pipelines.spark.away import put_away, put_back
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BufferConfig, Count, Json, StreamsBuilder, String, Suppressed, TimeWindows
from weir.infra.kafka.columns import RECORD_SCHEMA
from weir.infra.kafka.raw_records import RawRecords
from weir.pipelines.spark.errors import BadRecordError
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.stalls import GIVEN_UP
from weir.state.commit.tables import read_table
from weir.state.types import TaskId

pytestmark = pytest.mark.slow

SECOND_MS, MINUTE_MS = 1_000, 60_000
LIMITS = Limits(max_records=50, max_bytes=1 << 20, max_skew_ms=None)
MAX_WAIT = timedelta(seconds=2)


@dataclass(frozen=True)
class Click:
    page: str


@dataclass(frozen=True)
class Owner:
    owner: str


@dataclass(frozen=True)
class Left:
    n: int


@dataclass(frozen=True)
class Right:
    m: int


def clicks(times, user=None, page="p"):
    return [((user or f"u{time}").encode(), json.dumps({"page": page}).encode(), time) for time in times]


def click_stream():
    builder = StreamsBuilder()
    return builder, builder.stream("clicks", key=String("user"), value=Json(Click))


def by_page(**settings):
    """Clicks per page."""
    builder, stream = click_stream()
    stream.group_by("page").count("c").to_delta("out")
    return Application("clicks", builder, **settings)


def step(coordinator, topics, now_ms, limits=LIMITS, **others):
    return coordinator.run_epoch(topics.end_offsets(list(topics.rows)), limits, now_ms=now_ms, **others)


def waiting(coordinator):
    return sum(blob.rows - blob.taken for task in coordinator.tasks.values() for blob in task.pending)


@pytest.mark.parametrize("restores", [False, True], ids=["both run", "the one behind is restored"])
def test_a_window_that_closes_because_its_input_is_idle_does_not_overtake_a_backlog(tmp_path, restores):
    """What no record caused has the key of the last row that the task has taken."""
    builder, stream = click_stream()
    windows, longer = (TimeWindows.of_size_with_no_grace(timedelta(minutes=minutes)) for minutes in (1, 10))
    per_minute = (
        stream.group_by_key()
        .windowed_by(windows, idle_after=timedelta(seconds=1))
        .agg("minutes", clicks=Count())
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_stream()
    )
    per_minute.group_by(g=col("clicks") * 0).windowed_by(longer).agg("longer", users=Count()).to_delta("out")
    busy = clicks(range(0, 32 * MINUTE_MS, 20 * SECOND_MS), user="a")
    topics = Topics({("clicks", 0): busy, ("clicks", 1): clicks([30 * MINUTE_MS], user="b")})
    place = Place(Application("clicks", builder), topics, tmp_path)
    coordinator, limits = place.driver()._coordinator, replace(LIMITS, max_records=12)
    for epoch in range(16):
        is_away = restores and 0 < epoch < 5
        (put_away if is_away else put_back)(coordinator.tasks[TaskId(0, 0)])
        step(coordinator, topics, 2 * MINUTE_MS * epoch, limits, is_live=epoch > 0 or not restores)
    coordinator.commit("a test")
    assert coordinator.totals().get("late_records", 0) == 0
    rows = read_table(place.warehouse / "clicks" / "out").sort("_epoch", "_seq").to_dicts()
    found = {int(row["window_start"].timestamp()) // 60: row["users"] for row in rows}
    assert found == {0: 10, 10: 10, 20: 10, 30: 3}


def test_rows_of_a_source_that_has_one_new_record_are_not_taken_before_older_ones(tmp_path):
    """It was read to its end, so how far it has come is known from what it sent."""
    builder, stream = click_stream()
    stream.map(key="page", value={"user": "user"}).repartition(name="r").to_delta("out")
    topics = Topics({("clicks", 0): clicks([70, 71]), ("clicks", 1): clicks([100])})
    place = Place(Application("clicks", builder), topics, tmp_path)
    coordinator = place.driver()._coordinator
    older, newer = (coordinator.tasks[TaskId(0, partition)] for partition in (0, 1))
    put_away(older)
    step(coordinator, topics, 0)
    put_back(older)
    put_away(newer)
    topics.rows["clicks", 1] += clicks([101])
    step(coordinator, topics, 1)
    put_back(newer)
    step(coordinator, topics, 2)
    step(coordinator, topics, 3)
    coordinator.commit("a test")
    rows = read_table(place.warehouse / "clicks" / "out").sort("_epoch", "_seq")
    assert rows["user"].to_list() == ["u70", "u71", "u100", "u101"]


def test_what_a_live_partition_sends_is_bounded_beside_a_long_backlog(tmp_path):
    live, limit, one_epoch = 10**9, 20_000, 5_000
    topics = Topics({("clicks", 0): clicks(range(5_000)), ("clicks", 1): clicks([live])})
    coordinator = Place(by_page(), topics, tmp_path).driver()._coordinator
    limits, most = replace(LIMITS, max_records=100, max_pending_bytes=limit), 0
    for epoch in range(25):
        topics.rows["clicks", 1] += clicks(range(live + 20 * epoch, live + 20 * epoch + 20))
        step(coordinator, topics, epoch, limits)
        of_live = [blob for task in coordinator.tasks.values() for blob in task.pending if blob.source.endswith("_1")]
        most = max(most, sum(blob.size_bytes for blob in of_live))
    assert 0 < most <= limit + one_epoch
    assert coordinator.tasks[TaskId(0, 0)].positions["clicks"] == {0: 25 * 100}, "the backlog is read at full pace"


@pytest.mark.parametrize("commits", [False, True], ids=["without commits", "with a commit after every epoch"])
def test_visits_after_commits_read_no_further_than_the_pace(tmp_path, commits):
    """Two epochs pass before the pace is known; that is what may wait, and as much again."""
    topics = Topics({("clicks", 0): clicks(range(8_000), "u"), ("clicks", 1): clicks(range(0, 40_000, 10), "u")})
    coordinator = Place(by_page(), topics, tmp_path).driver()._coordinator
    limits, most = replace(LIMITS, max_records=300), 0
    for epoch in range(9):
        step(coordinator, topics, epoch, limits)
        if commits:
            coordinator.commit("a test")
        most = max(most, waiting(coordinator))
    assert 0 < most <= 2 * (2 * 300)


def test_a_source_that_does_not_move_is_named_and_given_up_although_rows_keep_arriving(tmp_path):
    """A task of the second of three stages is restored while those before it go on."""
    builder, stream = click_stream()
    counts = stream.group_by("page").count("by_page").to_stream()
    counts.group_by(times=col("count")).count("by_count").to_delta("out")

    def pages(times):
        return [click for time in times for click in clicks([time], page=f"p{time % 7}")]

    topics = Topics({("clicks", partition): pages(range(40)) for partition in (0, 1)})
    application = Application("clicks", builder, max_source_wait=MAX_WAIT)
    coordinator = Place(application, topics, tmp_path).driver()._coordinator
    step(coordinator, topics, 0)
    assert waiting(coordinator) == 0
    away = coordinator.tasks[TaskId(1, 0)]
    put_away(away)

    def go_on(seconds):
        for now_ms in range(seconds.start * SECOND_MS, seconds.stop * SECOND_MS, 250):
            for partition in (0, 1):
                topics.rows["clicks", partition] += pages(range(now_ms, now_ms + 7))
            step(coordinator, topics, now_ms)

    def waiting_last():
        last = (task for task in coordinator.tasks.values() if task.id.sub_topology == 2)
        return sum(blob.rows for task in last for blob in task.pending)

    go_on(range(1, 3))
    assert waiting_last() > 0
    assert {task.waits for task in coordinator.tasks.values() if task.waits} == {
        "rows wait for task 1_0, which is being restored"
    }
    arrived = len(away.pending)
    go_on(range(3, 6))
    assert len(away.pending) > arrived, "rows kept arriving"
    assert coordinator.totals()[GIVEN_UP] == 1
    assert waiting_last() == 0


@dataclass
class Away(Topics):
    """Topics of which one has records that cannot be read."""

    unreadable: str = ""

    def reader(self, topic, partition):
        found = super().reader(topic, partition)
        read = found.read

        def read_if_there(start, end, **others):
            if topic == self.unreadable:
                return RawRecords(topic, partition, RECORD_SCHEMA.to_frame(), start, None)
            return read(start, end, **others)

        found.read = read_if_there
        return found


def with_pages(tmp_path, *, moved):
    """Clicks that meet the pages they are of; the pages cannot be read. If ``moved``, the clicks come from another
    task."""
    builder, stream = click_stream()
    pages = builder.table("pages", key=String("page"), value=Json(Owner), store="pages")
    if moved:
        stream = stream.map(key="page", value={"user": "user"})
    stream.left_join(pages).to_delta("out")
    application = Application("clicks", builder, max_source_wait=MAX_WAIT)
    owners = [(b"p", b'{"owner":"o"}', time) for time in range(5)]
    topics = Away({("clicks", 0): clicks(range(10, 40)), ("pages", 0): owners}, unreadable="pages")
    return topics, Place(application, topics, tmp_path)


@pytest.mark.parametrize("moved", [True, False], ids=["rows of another task", "two topics of one task"])
def test_a_topic_that_cannot_be_read_is_named_and_given_up(tmp_path, moved):
    topics, place = with_pages(tmp_path, moved=moved)
    coordinator = place.driver()._coordinator
    (task,) = (task for task in coordinator.tasks.values() if "pages" in task.topics)

    def taken():
        sent = sum(each.positions["clicks"][0] for each in coordinator.tasks.values() if "clicks" in each.topics)
        return sent - sum(blob.rows - blob.taken for blob in task.pending)

    for now_ms in range(0, 1_750, 250):
        step(coordinator, topics, now_ms)
    assert taken() == 0
    assert str(task.id) in task.waits
    for now_ms in range(1_750, 4_000, 250):
        step(coordinator, topics, now_ms)
    assert taken() == 30
    assert coordinator.totals()[GIVEN_UP] == 1
    topics.unreadable = ""
    step(coordinator, topics, 4_000)
    assert task.positions["pages"] == {0: 5}


@pytest.mark.parametrize(("left_bad", "right_bad", "first"), [(10, 30, ("left", 10)), (30, 10, ("right", 10))])
def test_of_two_topics_with_a_bad_record_each_the_run_stops_at_the_first_one(tmp_path, left_bad, right_bad, first):
    builder = StreamsBuilder()
    left = builder.stream("left", key=String("k"), value=Json(Left))
    right = builder.table("right", key=String("k"), value=Json(Right), store="right")
    left.join(right).to_delta("out")

    def records(name, bad):
        return [(b"k", b"{bad" if time == bad else json.dumps({name: time}).encode(), time) for time in range(40)]

    topics = Topics({("left", 0): records("n", left_bad), ("right", 0): records("m", right_bad)})
    place = Place(Application("a", builder, on_error="fail"), topics, tmp_path)
    driver, epochs = place.driver(), []
    run_epoch = driver._coordinator.run_epoch

    def bounded(*arguments, **others):
        epochs.append(len(epochs))
        assert len(epochs) <= 10, "the run goes on although there is nothing it can take"
        return run_epoch(*arguments, **others)

    driver._coordinator.run_epoch = bounded
    with pytest.raises(BadRecordError) as stopped:
        driver.run(Event(), until_caught_up=True)
    assert (stopped.value.record.topic, stopped.value.record.offset) == first
    pairs = read_table(place.warehouse / "a" / "out").sort("n").select("n", "m").rows()
    assert pairs[:9] == [(time, time) for time in range(9)]
    assert len(pairs) <= 10, "nothing after the bad record is taken"
