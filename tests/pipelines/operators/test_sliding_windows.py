"""Sliding and unlimited windows to the record (Kafka Streams features, sections 4 and 18)."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import (
    BufferConfig,
    EmitStrategy,
    SlidingWindows,
    Suppressed,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
)
from tests.pipelines.operators.programs import Click, driven
from tests.pipelines.operators.test_session_windows import in_ms, pipe, told

TEN, GRACE = timedelta(milliseconds=10), timedelta(milliseconds=5)
SLIDING = SlidingWindows.of_time_difference_and_grace(TEN, GRACE)
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


def counted(windows, **options):
    return driven(lambda s: s.group_by_key().windowed_by(windows, **options).count("c").to_stream().to_delta("out"))


def test_a_record_makes_the_window_that_ends_with_it_and_the_one_behind_the_record_before_it():
    with counted(SLIDING) as (topic, out, _):
        pipe(topic, 20, 26)
        assert told(out) == [(10, 20, 1, 20), (21, 31, 1, 26), (16, 26, 2, 26)]


def test_both_ends_of_a_window_are_in_it():
    with counted(SLIDING) as (topic, out, _):
        pipe(topic, 20, 30)
        assert told(out)[-1] == (20, 30, 2, 30)
        pipe(topic, 41)  # 11 after: together with 30 no more
        assert told(out) == [(31, 41, 1, 41)]


def test_no_window_starts_before_1970():
    with counted(SLIDING) as (topic, out, _):
        pipe(topic, 3, 5)
        assert told(out) == [(0, 10, 1, 3), (4, 14, 1, 5), (0, 10, 2, 5)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 45), min_size=1, max_size=9))
def test_the_windows_are_the_distinct_sets_of_records_within_the_difference(times):
    """With grace for all; a model that tries every start."""
    model = defaultdict(int)
    for start in {max(0, time - 10) for time in times} | {time + 1 for time in times}:
        if count := sum(start <= time <= start + 10 for time in times):
            model[start] = count
    with counted(SlidingWindows.of_time_difference_and_grace(TEN, timedelta(seconds=1))) as (topic, out, _):
        pipe(topic, *times)
        newest = {in_ms(row["window_start"]): row["count"] for row in out.read_rows()}
    assert newest == model


@pytest.mark.parametrize(("stream_time", "late"), [(25, 0), (26, 1), (35, 1), (36, 1)])
def test_a_window_is_closed_to_a_record_when_it_ends_before_stream_time_minus_grace(stream_time, late):
    """Of the record at 20 the window [10, 20] is closed from stream time 26 on; from 36 on no window can take it."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, stream_time, user="b")
        out.read_rows()
        pipe(topic, 20)
        assert told(out) == ([] if late else [(10, 20, 1, 20)])
        assert driver.counts["late_records"] == late


def test_a_record_that_no_open_window_takes_leaves_no_trace_and_one_that_a_window_takes_opens_the_next():
    """At stream time 30 windows that end before 25 are closed: 22 is taken by [16, 26], 20 by nothing."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 26)
        pipe(topic, 30, user="b")
        out.read_rows()
        pipe(topic, 22)
        assert told(out) == [(16, 26, 2, 26), (23, 33, 1, 26)]
        assert driver.counts["late_records"] == 1  # [12, 22]
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 30, user="b")
        out.read_rows()
        pipe(topic, 20)
        assert driver.counts["late_records"] == 1
        pipe(topic, 25)  # a trace of 20 would have opened [21, 31]
        assert told(out) == [(15, 25, 1, 25)]


@pytest.mark.parametrize("user", ["a", "b"])
def test_the_window_behind_a_record_opens_until_it_is_closed_itself(user):
    """At stream time 36 windows that end before 31 are closed; the one behind 20 ends at 31, with 25 in it."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 20)
        pipe(topic, 36, user="c")
        out.read_rows()
        pipe(topic, 25, user=user)
        assert told(out) == ([(21, 31, 1, 25)] if user == "a" else [])
        assert driver.counts["late_records"] == 1  # [15, 25]


def test_null_keys_and_null_values_are_dropped():
    with counted(SLIDING) as (topic, out, driver):
        topic.pipe_input("a", None, timestamp_ms=90)
        topic.pipe_input(None, Click("x"), timestamp_ms=90)
        pipe(topic, 20)
        assert told(out) == [(10, 20, 1, 20)]
        assert (driver.counts["null_keys"], driver.counts["null_values"]) == (1, 1)


@pytest.mark.parametrize("program", [
    lambda s: s.group_by_key().windowed_by(SLIDING).count("c").suppress(FINAL).to_delta("out"),
    lambda s: s.group_by_key().windowed_by(SLIDING).emit_strategy(EmitStrategy.on_window_close()).count("c").to_delta(
        "out")])
def test_final_results_come_once_by_window_then_key_with_the_greatest_time_folded_in(program):
    with driven(program) as (topic, out, _):
        pipe(topic, 20, 18)
        pipe(topic, 25, user="b")
        assert told(out) == [(8, 18, 1, 18)]  # 18 + 5 < 25; Kafka Streams' suppression has <= at the very same time
        pipe(topic, 26, user="b")
        assert told(out) == [(10, 20, 2, 20)]
        pipe(topic, 99, user="b")
        assert told(out) == [(15, 25, 1, 25), (16, 26, 2, 26), (19, 29, 1, 20), (26, 36, 1, 26)]


def test_late_records_go_where_they_are_sent_once_for_each_closed_window():
    windows = TimeWindows.of_size_with_no_grace(TEN).advance_by(GRACE)
    program = lambda s: s.group_by_key().windowed_by(windows, late_to=lambda late: late.to_delta("out")).count(  # noqa: E731
        "c").suppress(FINAL)
    with driven(program) as (topic, out, driver):
        pipe(topic, 60, 7)
        assert [(*row[:2], row[3]) for row in told(out, "page")] == [(0, 10, 7), (5, 15, 7)]
        assert driver.counts["late_records"] == 2
        assert out.is_empty()


def test_the_window_without_an_end_never_closes_and_takes_nothing_from_before_its_start():
    start = datetime(1970, 1, 1, 0, 0, 0, 5_000, UTC)
    with counted(UnlimitedWindows.start_on(start)) as (topic, out, driver):
        pipe(topic, 5, 4, 10**12, 6)
        records = out.read_records()
        assert [record.row["count"] for record in records] == [1, 2, 3]
        assert {record.row["window_start"] for record in records} == {start}
        assert {record.row["window_end"].year for record in records} == {9999}
        assert (driver.counts["late_records"], driver.open_windows) == (0, 1)


@pytest.mark.parametrize("is_final", [True, False])
def test_a_window_store_keeps_windows_for_its_retention_from_their_start(is_final):
    def program(clicks):
        counts = clicks.group_by_key().windowed_by(
            TimeWindows.of_size_and_grace(TEN, GRACE), retention=timedelta(milliseconds=40)).count("c")
        (counts.suppress(FINAL) if is_final else counts).to_delta("out")

    with driven(program) as (topic, out, driver):
        pipe(topic, 3, 16, 39)
        store = driver.get_window_store("c")
        assert [value for _, value in store.fetch_all("a")] == [1, 1, 1]
        pipe(topic, 40)
        assert [in_ms(windowed.window_start) for windowed, _ in store.fetch_all("a")] == [10, 30, 40]
        if is_final:
            assert [row[:3] for row in told(out)] == [(0, 10, 1), (10, 20, 1)]


@pytest.mark.parametrize(("windows", "retention"), [
    (TimeWindows.of_size_and_grace(TEN, GRACE), 14), (SLIDING, 15), (UnlimitedWindows.of(), 10**9)])
def test_a_retention_that_is_shorter_than_windows_are_open_is_refused(windows, retention):
    with pytest.raises(TopologyError, match="retention"), counted(windows, retention=timedelta(milliseconds=retention)):
        pass


@pytest.mark.parametrize("make", [
    lambda: SlidingWindows.of_time_difference_with_no_grace(timedelta(0)),
    lambda: SlidingWindows.of_time_difference_and_grace(TEN, timedelta(seconds=-1)),
    lambda: UnlimitedWindows.start_on(datetime(1969, 1, 1, tzinfo=UTC)),
    lambda: UnlimitedWindows.start_on(datetime(1990, 1, 1)),
])
def test_windows_that_make_no_sense_are_refused(make):
    with pytest.raises(TopologyError):
        make()
