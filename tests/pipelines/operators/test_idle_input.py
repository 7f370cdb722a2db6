"""Idle input that closes windows where the program asks for it with ``idle_after``."""

from datetime import timedelta

import polars as pl
import pytest

from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from tests.pipelines.operators.programs import read_windows
from tests.pipelines.operators.stop_events import UntilTrue
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
    read_table,
)
from weir.pipelines.tasks.processor import TaskProcessor
from weir.testing import TopologyTestDriver

MS = timedelta(milliseconds=1)
TEN = TimeWindows.of_size_and_grace(10 * MS, 5 * MS)
UNBOUNDED = BufferConfig.unbounded()
FINAL = Suppressed.until_window_closes(UNBOUNDED)
AFTER = 100 * MS


def application(program, **source):
    builder = StreamsBuilder()
    program(builder.stream("in", key=String("user"), value=String("page"), **source))
    return Application("idle", builder, commit_interval=MS)


PROGRAMS = {
    "a window": lambda s: s.group_by_key().windowed_by(TEN, idle_after=AFTER).count("c").suppress(FINAL),
    "a window on close": lambda s: (
        s.group_by_key().windowed_by(TEN, idle_after=AFTER).emit_strategy(EmitStrategy.on_window_close()).count("c")
    ),
    "a suppression": lambda s: s.group_by_key().windowed_by(TEN).count("c").suppress(FINAL.with_idle_after(AFTER)),
    "a suppression of its own": lambda s: (
        s.group_by_key()
        .windowed_by(TEN)
        .count("c")
        .filter(lambda key, count: True)
        .suppress(FINAL.with_idle_after(AFTER))
    ),
    "a strict buffer": lambda s: (
        s.group_by_key()
        .windowed_by(TEN)
        .count("c")
        .suppress(
            Suppressed.until_window_closes(BufferConfig.max_records(9).shut_down_when_full()).with_idle_after(AFTER)
        )
    ),
    "a source": lambda s: s.group_by_key().windowed_by(TEN).count("c").suppress(FINAL),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_window_closes_once_its_input_has_been_idle_long_enough(name):
    """[0, 10) with 5 ms of grace and a newest record at 7 closes after 100 ms plus 8 ms."""
    source = {"idle_after": AFTER} if name == "a source" else {}
    program = PROGRAMS[name]
    with TopologyTestDriver(application(lambda s: program(s).to_delta("out"), **source)) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")
        topic.pipe_records([("a", "x", 3), ("b", "x", 7)])
        driver.advance_wall_clock_time(107 * MS)
        assert out.is_empty()
        driver.advance_wall_clock_time(MS)
        assert read_windows(out) == [(0, 10, 1, 3), (0, 10, 1, 7)]
        topic.pipe_input("a", "x", timestamp_ms=9)  # stream time is 15 now
        driver.advance_wall_clock_time(1_000 * MS)
        assert driver.counts["late_records"] == 1
        assert out.is_empty()


def test_a_record_ends_the_idle_time_and_idle_input_changes_nothing_unless_asked_for():
    program = PROGRAMS["a window"]
    with TopologyTestDriver(application(lambda s: program(s).to_delta("out"))) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")
        topic.pipe_input("a", "x", timestamp_ms=3)
        driver.advance_wall_clock_time(90 * MS)
        topic.pipe_input("a", "x", timestamp_ms=2)
        driver.advance_wall_clock_time(90 * MS)
        assert out.is_empty()
        driver.advance_wall_clock_time(22 * MS)
        assert read_windows(out) == [(0, 10, 2, 3)]
    with TopologyTestDriver(application(lambda s: PROGRAMS["a source"](s).to_delta("out"))) as driver:
        driver.create_input_topic("in").pipe_input("a", "x", timestamp_ms=3)
        driver.advance_wall_clock_time(timedelta(days=1))
        assert driver.create_output_table("out").is_empty()


@pytest.mark.parametrize("says_so", ["a window", "a source", "a suppression"])
def test_final_results_after_a_filter_come_once_when_their_window_closes(says_so):
    """What ends the idle time of the window, here a null key, ends it for the suppression that waits for it too."""
    own = {"idle_after": AFTER}
    program = lambda s: (
        s.group_by_key()
        .windowed_by(TEN, **own if says_so == "a window" else {})
        .count("c")
        .filter(lambda key, count: True)
        .suppress(FINAL.with_idle_after(AFTER) if says_so == "a suppression" else FINAL)
        .to_delta("out")
    )
    with TopologyTestDriver(application(program, **own if says_so == "a source" else {})) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")
        topic.pipe_input("a", "x", timestamp_ms=3)
        driver.advance_wall_clock_time(90 * MS)
        topic.pipe_input(None, "x", timestamp_ms=3)
        driver.advance_wall_clock_time(60 * MS)
        topic.pipe_input("a", "x", timestamp_ms=4)
        assert out.is_empty()
        driver.advance_wall_clock_time(110 * MS)
        assert out.is_empty()
        driver.advance_wall_clock_time(MS)
        assert read_windows(out) == [(0, 10, 2, 4)]


@pytest.mark.parametrize("name", ["a suppression of its own", "a strict buffer"])
def test_a_final_result_comes_once_if_only_its_suppression_sets_idle_after(name):
    """Records after the idle time are late for the window, however far the next record moves stream time."""
    with TopologyTestDriver(application(lambda s: PROGRAMS[name](s).to_delta("out"))) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")
        topic.pipe_input("a", "x", timestamp_ms=3)
        driver.advance_wall_clock_time(500 * MS)
        assert read_windows(out) == [(0, 10, 1, 3)]
        topic.pipe_records([("a", "x", 4), ("b", "x", 2_000)])
        driver.advance_wall_clock_time(500 * MS)
        assert read_windows(out) == [(2_000, 2_010, 1, 2_000)]
        assert driver.counts["late_records"] == 1


def test_the_longest_idle_after_of_the_topics_upstream_counts():
    """Topics set 50 and 100 ms: [0, 10) with 5 ms of grace and a newest record at 3 closes after 112 ms."""
    builder = StreamsBuilder()
    streams = [
        builder.stream(name, key=String("user"), value=String("page"), idle_after=after * MS)
        for name, after in (("in", 100), ("also", 50))
    ]
    streams[0].merge(streams[1]).group_by_key().windowed_by(TEN).count("c").suppress(FINAL).to_delta("out")
    with TopologyTestDriver(Application("idle", builder)) as driver:
        out = driver.create_output_table("out")
        driver.create_input_topic("in").pipe_input("a", "x", timestamp_ms=3)
        driver.advance_wall_clock_time(111 * MS)
        assert out.is_empty()
        driver.advance_wall_clock_time(MS)
        assert read_windows(out) == [(0, 10, 1, 3)]


@pytest.mark.parametrize(
    ("windows", "idle_ms", "closed"),
    [
        (SessionWindows.of_inactivity_gap_and_grace(10 * MS, 5 * MS), 116, [(3, 3, 1, 3)]),
        (SlidingWindows.of_time_difference_and_grace(10 * MS, 5 * MS), 113, [(0, 10, 1, 3)]),
    ],
)
def test_sessions_and_sliding_windows_close_too(windows, idle_ms, closed):
    program = lambda s: (
        s.group_by_key().windowed_by(windows, idle_after=AFTER).count("c").suppress(FINAL).to_delta("out")
    )
    with TopologyTestDriver(application(program)) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")
        topic.pipe_input("a", "x", timestamp_ms=3)
        driver.advance_wall_clock_time((idle_ms - 1) * MS)
        assert out.is_empty()
        driver.advance_wall_clock_time(MS)
        assert read_windows(out) == closed
        assert driver.open_windows == (1 if isinstance(windows, SlidingWindows) else 0)


def test_a_time_limit_ends_while_the_input_is_idle():
    limit = Suppressed.until_time_limit(30 * MS, BufferConfig.max_records(9)).with_idle_after(AFTER)
    program = lambda s: s.group_by_key().count("c").suppress(limit).to_delta("out")
    with TopologyTestDriver(application(program)) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")
        topic.pipe_records([("a", "x", 3), ("b", "x", 7)])
        driver.advance_wall_clock_time(126 * MS)
        assert [row["user"] for row in out.read_rows()] == ["a"]
        driver.advance_wall_clock_time(4 * MS)
        assert [row["user"] for row in out.read_rows()] == ["b"]


def test_windows_closed_by_idle_input_are_forwarded_downstream_and_through_a_repartition():
    program = lambda s: PROGRAMS["a window"](s).to_stream().group_by(n="count").count("sizes").to_delta("out")
    with TopologyTestDriver(application(program)) as driver:
        driver.create_input_topic("in").pipe_input("a", "x", timestamp_ms=3)
        driver.advance_wall_clock_time(timedelta(seconds=1))
        assert driver.create_output_table("out").read_rows() == [dict(n=1, count=1)]


def test_rows_released_by_idle_input_join_a_table_that_changes_in_the_same_batch():
    builder = StreamsBuilder()
    held = Suppressed.until_time_limit(10 * MS, UNBOUNDED).with_idle_after(AFTER)
    table = builder.table("names", key=String("key"), value=String("name"), store="names")
    stream = builder.stream("in", key=String("key"), value=String("value"))
    stream.to_table("values").suppress(held).to_stream().left_join(table).to_delta("out")
    processor, session = TaskProcessor(builder.build().sub_topologies[0]), MemorySession()
    one = pl.DataFrame(
        {"key": ["a"], "_ts": [1], "_partition": [0], "_offset": [0], "_deleted": [False]},
        schema_overrides={"_partition": pl.Int32},
    )
    named = one.with_columns(name=pl.lit("Ann"))

    clocks = processor.run(in_turn({"names": named, "in": one.with_columns(value=pl.lit("x"))}), session, {}, 0).clocks
    other = in_turn({"names": named.with_columns(key=pl.lit("b"))})
    output = processor.run(other, session, clocks, 1_000, lets_idle=True)

    assert output.sinks["out"].select("key", "value", "name").rows() == [("a", "x", "Ann")]


def finals(place):
    table = place.warehouse / "idle" / "out"
    return set(read_table(table)["user"]) if table.exists() else set()


def test_an_idle_topic_closes_its_windows_and_a_run_that_catches_up_does_not(tmp_path):
    app = application(lambda s: PROGRAMS["a window"](s).to_delta("out"))
    place = Place(app, Topics({("in", 0): [(b"a", b"x", 3)]}), tmp_path)
    place.run()
    place.run()
    assert finals(place) == set()
    place.driver().run(UntilTrue(lambda: finals(place)))
    assert finals(place) == {"a"}


def test_one_idle_partition_among_busy_ones_closes_its_windows(tmp_path):
    topics = Topics({("in", 0): [(b"idle", b"x", 3)], ("in", 1): [(b"busy", b"x", 3)]})
    place = Place(application(lambda s: PROGRAMS["a window"](s).to_delta("out")), topics, tmp_path, max_records=1)
    clock = iter(range(4, 100_000))

    def is_done() -> bool:
        topics.rows["in", 1].append((b"busy", b"x", next(clock)))
        return "idle" in finals(place)

    place.driver().run(UntilTrue(is_done))
    assert "idle" in finals(place)


def test_idle_after_must_be_positive():
    with pytest.raises(TopologyError, match="idle_after"):
        FINAL.with_idle_after(timedelta(0))
