"""Sessions, record by record (Kafka Streams features, sections 4 and 18)."""

from datetime import timedelta

import pytest

from tests.pipelines.operators.programs import Click, driven, pipe, read_windows
from weir import (
    BufferConfig,
    Count,
    EmitStrategy,
    First,
    Last,
    SessionWindows,
    Sum,
    Suppressed,
    TopologyError,
)

GAP, GRACE = timedelta(milliseconds=10), timedelta(milliseconds=5)
SESSIONS = SessionWindows.of_inactivity_gap_and_grace(GAP, GRACE)
STRICT = SessionWindows.of_inactivity_gap_with_no_grace(GAP)
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


def counted(windows):
    return driven(lambda s: s.group_by_key().windowed_by(windows).count("c").to_stream().to_delta("out"))


def test_records_exactly_the_gap_apart_share_a_session_and_a_millisecond_more_splits_it():
    with counted(SESSIONS) as (topic, out, _):
        pipe(topic, 0, 10, 21)
        assert read_windows(out) == [(0, 0, 1, 0), (0, 0, None, 0), (0, 10, 2, 10), (21, 21, 1, 21)]


def test_a_merger_sends_a_tombstone_for_every_replaced_session_and_then_the_new_one_with_its_end_as_time():
    with counted(SESSIONS) as (topic, out, driver):
        pipe(topic, 0, 15, 7)
        assert read_windows(out) == [(0, 0, 1, 0), (15, 15, 1, 15), (0, 0, None, 0), (15, 15, None, 15), (0, 15, 3, 15)]
        assert driver.open_windows == 1


def test_a_record_inside_a_session_replaces_it_under_the_same_bounds():
    """Kafka Streams forwards that tombstone too, except for a second record at exactly the same time."""
    with counted(SESSIONS) as (topic, out, _):
        pipe(topic, 0, 8)
        out.read_rows()
        pipe(topic, 5)
        assert read_windows(out) == [(0, 8, None, 8), (0, 8, 3, 8)]
        pipe(topic, 40, 40)
        assert read_windows(out) == [(40, 40, 1, 40), (40, 40, 2, 40)]


@pytest.mark.parametrize(("stream_time", "is_late"), [(25, False), (26, True)])
def test_a_record_is_late_when_its_session_ends_before_stream_time_minus_gap_and_grace(stream_time, is_late):
    with counted(SESSIONS) as (topic, out, driver):
        pipe(topic, stream_time, user="b")
        out.read_rows()
        pipe(topic, 10)  # 10 < 26 - 10 - 5, but not < 25 - 15
        assert out.is_empty() is is_late
        assert driver.counts["late_records"] == is_late


def test_a_late_record_that_joins_an_open_session_counts():
    with counted(SESSIONS) as (topic, out, driver):
        pipe(topic, 12)
        pipe(topic, 25, user="b")
        out.read_rows()
        pipe(topic, 5)  # alone it would be late
        assert read_windows(out) == [(12, 12, None, 12), (5, 12, 2, 12)]
        assert driver.counts["late_records"] == 0


def test_a_closed_session_is_not_joined_so_that_a_final_result_stays_final():
    with driven(lambda s: s.group_by_key().windowed_by(STRICT).count("c").suppress(FINAL).to_delta("out")) as (
        topic,
        out,
        _,
    ):
        pipe(topic, 0)
        pipe(topic, 10, user="b")
        assert out.is_empty()
        pipe(topic, 11, user="b")
        assert read_windows(out) == [(0, 0, 1, 0)]
        pipe(topic, 5)
        pipe(topic, 60, user="b")
        assert read_windows(out) == [(5, 5, 1, 5), (10, 11, 2, 11)]


def test_final_sessions_come_by_end_then_key_and_the_store_forgets_them():
    program = lambda s: (
        s.group_by_key().windowed_by(SESSIONS).emit_strategy(EmitStrategy.on_window_close()).count("c").to_delta("out")
    )
    with driven(program) as (topic, out, driver):
        for user, time in (("b", 0), ("a", 9), ("b", 9), ("c", 3), ("z", 24)):
            pipe(topic, time, user=user)
        assert out.read_row()["user"] == "c"
        assert out.is_empty()
        pipe(topic, 1_000, user="z")
        assert [(row["user"], row["count"]) for row in out.read_rows()] == [("a", 1), ("b", 2), ("z", 1)]
        assert driver.open_windows == 1


def test_merged_states_follow_the_order_of_the_sessions():
    program = lambda s: (
        s.group_by_key()
        .windowed_by(SESSIONS)
        .agg("c", n=Count(), total=Sum("ms"), first=First("ms"), last=Last("ms"))
        .to_stream()
        .to_delta("out")
    )
    with driven(program) as (topic, out, _):
        pipe(topic, 15, 0, 7)
        assert out.read_rows()[-1] | {"window_start": 0, "window_end": 0} == dict(
            user="a", window_start=0, window_end=0, n=3, total=22, first=0, last=7
        )


def test_a_merger_function_starts_from_the_initializer_and_none_deletes_the_session():
    calls = []

    def add(key: str, click: Click, pages: str) -> str | None:
        return None if click.page == "end" else pages + click.page

    def merge(key: str, one: str, other: str) -> str:
        calls.append((key, one, other))
        return one + other

    with driven(
        lambda s: (
            s.group_by_key().windowed_by(SESSIONS).aggregate("c", lambda: "-", add, merge).to_stream().to_delta("out")
        )
    ) as (topic, out, driver):
        for page, time in (("x", 0), ("y", 15), ("z", 7), ("end", 8)):
            topic.pipe_input("a", Click(page), timestamp_ms=time)
        assert calls == [("a", "-", "-x"), ("a", "--x", "-y"), ("a", "-", "--x-yz")]
        assert read_windows(out, "value")[-3:] == [(0, 15, "--x-yz", 15), (0, 15, None, 15), (0, 15, None, 15)]
        assert driver.open_windows == 0


def test_null_values_are_folded_and_null_keys_are_dropped():
    with counted(SESSIONS) as (topic, out, driver):
        topic.pipe_input("a", None, timestamp_ms=1)
        topic.pipe_input(None, Click("x"), timestamp_ms=90)
        assert read_windows(out) == [(1, 1, 1, 1)]
        assert (driver.counts["null_keys"], driver.counts["null_values"]) == (1, 0)


def test_late_records_go_where_they_are_sent_with_the_bounds_of_the_closed_session():
    program = lambda s: s.group_by_key().windowed_by(SESSIONS, late_to=lambda late: late.to_delta("out")).count("c")
    with driven(program) as (topic, out, _):
        pipe(topic, 100, 3)
        assert [(*row[:2], row[3]) for row in read_windows(out, "page")] == [(3, 3, 3)]


def test_retention_keeps_closed_sessions_readable():
    kept = timedelta(milliseconds=30)
    with driven(lambda s: s.group_by_key().windowed_by(SESSIONS, retention=kept).count("c").to_delta("out")) as (
        topic,
        _,
        driver,
    ):
        pipe(topic, 0, 29)
        assert driver.open_windows == 2
        pipe(topic, 30)
        assert driver.open_windows == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: SessionWindows.of_inactivity_gap_with_no_grace(timedelta(0)),
        lambda: SessionWindows.of_inactivity_gap_and_grace(GAP, timedelta(seconds=-1)),
    ],
)
def test_sessions_that_make_no_sense_are_refused(make):
    with pytest.raises(TopologyError):
        make()
