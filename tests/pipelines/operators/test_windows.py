"""Time windows, lateness and final results, record by record (Kafka Streams features, sections 4, 6 and 18)."""

from datetime import UTC, datetime, timedelta

import pytest
from polars import col

from tests.pipelines.operators.programs import Click, driven
from weir import BufferConfig, Count, Max, Suppressed, TimeWindows, TopologyError

TEN_SECONDS = TimeWindows.of_size_and_grace(timedelta(seconds=10), timedelta(seconds=5))
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


def ms(value: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)


def starts(rows):
    return [int(row["window_start"].timestamp() * 1000) for row in rows]


@pytest.mark.parametrize(("stream_time_ms", "count"), [(14_999, 2), (15_000, 1)])
@pytest.mark.parametrize("is_fused", [True, False])
def test_window_admits_records_until_its_end_plus_grace(stream_time_ms, count, is_fused):
    """KIP-328: 10 s windows, 5 s grace, so [0, 10_000) closes at stream time 15_000."""

    def program(clicks):
        counts = clicks.group_by_key().windowed_by(TEN_SECONDS).count("counts")
        (counts if is_fused else counts.filter(col("count") > 0)).suppress(FINAL).to_delta("out")

    with driven(program) as (topic, final, driver):
        topic.pipe_input("a", Click("x"), timestamp_ms=1_000)
        topic.pipe_input("b", Click("x"), timestamp_ms=stream_time_ms)  # moves stream time
        topic.pipe_input("a", Click("x"), timestamp_ms=9_000)  # out of order, perhaps late
        topic.pipe_input("b", Click("x"), timestamp_ms=60_000)  # closes every earlier window
        assert final.read_row() == dict(user="a", window_start=ms(0), window_end=ms(10_000), count=count)
        assert driver.counts["late_records"] == 2 - count


def test_a_hopping_record_is_late_for_some_windows_and_on_time_for_others():
    """Advance 4 s, no grace: at stream time 12 s the record at 9 s has missed [0, 10) but not [4, 14) and [8, 18)."""
    windows = TimeWindows.of_size_with_no_grace(timedelta(seconds=10)).advance_by(timedelta(seconds=4))
    with driven(lambda s: s.group_by_key().windowed_by(windows).count("c").to_delta("out")) as (topic, out, driver):
        topic.pipe_input("a", Click("x"), timestamp_ms=12_000)
        assert sorted(starts(out.read_rows())) == [4_000, 8_000, 12_000]
        topic.pipe_input("b", Click("x"), timestamp_ms=9_000)
        assert sorted(starts(out.read_rows())) == [4_000, 8_000]
        assert driver.counts["late_records"] == 1


def test_no_window_starts_before_1970():
    windows = TimeWindows.of_size_with_no_grace(timedelta(seconds=10)).advance_by(timedelta(seconds=3))
    with driven(lambda s: s.group_by_key().windowed_by(windows).count("c").to_delta("out")) as (topic, out, _):
        topic.pipe_input("a", Click("x"), timestamp_ms=4_000)
        assert sorted(starts(out.read_rows())) == [0, 3_000]


def test_a_drop_is_counted_once_per_closed_window():
    windows = TimeWindows.of_size_with_no_grace(timedelta(seconds=10)).advance_by(timedelta(seconds=5))
    with driven(lambda s: s.group_by_key().windowed_by(windows).count("c").to_delta("out")) as (topic, _, driver):
        topic.pipe_input("a", Click("x"), timestamp_ms=60_000)
        topic.pipe_input("a", Click("x"), timestamp_ms=7_000)  # in [0, 10) and [5, 15)
        assert driver.counts["late_records"] == 2


def test_another_key_closes_windows_but_a_null_key_does_not():
    program = lambda s: s.group_by_key().windowed_by(TEN_SECONDS).count("c").suppress(FINAL).to_delta("out")
    with driven(program) as (topic, out, driver):
        topic.pipe_input("a", Click("x"), timestamp_ms=1_000)
        topic.pipe_input(None, Click("x"), timestamp_ms=90_000)
        assert out.is_empty()
        assert driver.counts["null_keys"] == 1
        topic.pipe_input("b", Click("x"), timestamp_ms=15_000)
        assert out.read_row()["user"] == "a"


def test_a_filtered_record_does_not_move_stream_time():
    program = lambda s: (
        s.filter(col("page") == "x").group_by_key().windowed_by(TEN_SECONDS).count("c").suppress(FINAL).to_delta("out")
    )
    with driven(program) as (topic, out, _):
        topic.pipe_input("a", Click("x"), timestamp_ms=1_000)
        topic.pipe_input("a", Click("other"), timestamp_ms=90_000)
        assert out.is_empty()


def test_a_null_value_reaches_a_windowed_aggregation_and_counts():
    program = lambda s: s.group_by_key().windowed_by(TEN_SECONDS).agg("c", n=Count(), slowest=Max("ms")).to_delta("out")
    with driven(program) as (topic, out, driver):
        topic.pipe_input("a", Click("x", 7), timestamp_ms=1_000)
        topic.pipe_input("a", None, timestamp_ms=2_000)
        assert [(row["n"], row["slowest"]) for row in out.read_rows()] == [(1, 7), (2, 7)]
        assert driver.counts["null_values"] == 0


def test_final_results_come_once_by_window_end_then_key_with_the_greatest_time_folded_in():
    program = lambda s: s.group_by_key().windowed_by(TEN_SECONDS).count("c").suppress(FINAL).to_delta("out")
    with driven(program) as (topic, out, driver):
        for user, time in (("b", 12_000), ("b", 8_000), ("a", 3_000), ("b", 5_000), ("a", 13_000)):
            topic.pipe_input(user, Click("x"), timestamp_ms=time)
        assert driver.open_windows == 4
        topic.pipe_input("z", Click("x"), timestamp_ms=60_000)
        records = out.read_records()
        assert [(record.row["user"], *starts([record.row]), record.row["count"]) for record in records] == [
            ("a", 0, 1),
            ("b", 0, 2),
            ("a", 10_000, 1),
            ("b", 10_000, 1),
        ]
        assert [record.timestamp for record in records] == [ms(3_000), ms(8_000), ms(13_000), ms(12_000)]
        topic.pipe_input("z", Click("x"), timestamp_ms=61_000)
        assert out.is_empty()
        assert driver.open_windows == 1


def test_wall_clock_closes_nothing():
    program = lambda s: s.group_by_key().windowed_by(TEN_SECONDS).count("c").suppress(FINAL).to_delta("out")
    with driven(program) as (topic, out, driver):
        topic.pipe_input("a", Click("x"), timestamp_ms=1_000)
        driver.advance_wall_clock_time(timedelta(days=1))
        assert out.is_empty()


def test_a_suppression_swallows_tombstones():
    program = lambda s: (
        s.group_by_key().windowed_by(TEN_SECONDS).count("c").filter(col("count") < 2).suppress(FINAL).to_delta("out")
    )
    with driven(program) as (topic, out, _):
        for user, time in (("a", 1_000), ("a", 2_000), ("b", 3_000), ("c", 60_000)):
            topic.pipe_input(user, Click("x"), timestamp_ms=time)
        assert [row["user"] for row in out.read_rows()] == ["b"]


def test_open_windows_can_be_read_until_they_close():
    with driven(lambda s: s.group_by_key().windowed_by(TEN_SECONDS).count("c").to_delta("out")) as (topic, _, driver):
        topic.pipe_input("a", Click("x"), timestamp_ms=1_000)
        topic.pipe_input("a", Click("x"), timestamp_ms=11_000)
        store = driver.get_window_store("c")
        assert store.fetch("a", ms(0)) == 1
        assert [windowed.window_start for windowed, _ in store.fetch_all("a")] == [ms(0), ms(10_000)]
        topic.pipe_input("b", Click("x"), timestamp_ms=15_000)
        assert store.fetch("a", ms(0)) is None
        assert store.fetch("a", ms(10_000)) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeWindows.of_size_with_no_grace(timedelta(0)),
        lambda: TimeWindows.of_size_and_grace(timedelta(seconds=1), timedelta(seconds=-1)),
        lambda: TimeWindows.of_size_with_no_grace(timedelta(microseconds=1500)),
        lambda: TEN_SECONDS.advance_by(timedelta(seconds=11)),
        lambda: TEN_SECONDS.advance_by(timedelta(0)),
    ],
)
def test_windows_that_make_no_sense_are_refused(make):
    with pytest.raises(TopologyError):
        make()
