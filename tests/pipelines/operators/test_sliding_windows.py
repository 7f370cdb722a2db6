"""Sliding and unlimited windows, record by record (Kafka Streams features, sections 4 and 18)."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipelines.operators.programs import Click, driven, in_ms, pipe, read_windows
from weir import (
    BufferConfig,
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    Sum,
    Suppressed,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
)

MS = timedelta(milliseconds=1)
TEN, GRACE = 10 * MS, 5 * MS
SLIDING = SlidingWindows.of_time_difference_and_grace(TEN, GRACE)
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


def counted(windows, **options):
    return driven(lambda s: s.group_by_key().windowed_by(windows, **options).count("c").to_stream().to_delta("out"))


def test_a_record_opens_the_window_that_ends_with_it_and_the_one_after_the_record_before_it():
    with counted(SLIDING) as (topic, out, _):
        pipe(topic, 20, 26)
        assert read_windows(out) == [(10, 20, 1, 20), (21, 31, 1, 26), (16, 26, 2, 26)]


def test_both_ends_of_a_window_are_in_it():
    with counted(SLIDING) as (topic, out, _):
        pipe(topic, 20, 30)
        assert read_windows(out)[-1] == (20, 30, 2, 30)
        pipe(topic, 41)  # 11 after 30, so no longer in one window
        assert read_windows(out) == [(31, 41, 1, 41)]


def test_no_window_starts_before_1970():
    with counted(SLIDING) as (topic, out, _):
        pipe(topic, 3, 5)
        assert read_windows(out) == [(0, 10, 1, 3), (4, 14, 1, 5), (0, 10, 2, 5)]


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 45), min_size=1, max_size=9))
def test_the_windows_are_the_distinct_sets_of_records_within_the_difference(times):
    """With enough grace for all records; the model tries every start."""
    model = defaultdict(int)
    for start in {max(0, time - 10) for time in times} | {time + 1 for time in times}:
        if count := sum(start <= time <= start + 10 for time in times):
            model[start] = count
    with counted(SlidingWindows.of_time_difference_and_grace(TEN, timedelta(seconds=1))) as (topic, out, _):
        pipe(topic, *times)
        newest = {in_ms(row["window_start"]): row["count"] for row in out.read_rows()}
    assert newest == model


def expected(records, difference, grace):
    """What each record (user and time) gives by a model that keeps every record and forms every distinct set.

    A record is late for its own window, and for those that an earlier record found open. Rows as ``read_windows`` gives
    them, with the sum of 2**number over the records, and the bounds of windows that the record is late for.
    """
    stream_time, kept, opened = 0, defaultdict(list), set()
    for number, (user, time) in enumerate(records):
        stream_time, held = max(stream_time, time), kept[user]
        open_from, own = stream_time - grace - difference, max(0, time - difference)

        def within(start, held=held):
            return [each for each in held if start <= each[0] <= start + difference]

        formed = {start for each, _ in held for start in (max(0, each - difference), each + 1) if within(start)}
        over = {own} | {start for start in formed if start <= time <= start + difference}
        after = {each + 1 for each, _ in held if own <= each < time}
        missed = {start for start in over if start < open_from and (start == own or (user, start) in opened)}
        late = missed if time >= open_from else {own}
        takers = {start for start in over | after if start >= open_from} if time >= open_from else set()
        if takers:
            held.append((time, 1 << number))
            takers |= {time + 1} - formed if within(time + 1) else set()
            opened |= {(user, start) for start in takers}
        yield (
            {
                (start, start + difference, sum(bit for _, bit in within(start)), max(within(start))[0])
                for start in takers
            },
            {(start, start + difference) for start in late},
        )


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=3, max_size=20),
    difference=st.sampled_from([1, 3, 7, 10]),
    grace=st.sampled_from([0, 1, 5, 12]),
)
def test_with_little_grace_windows_hold_every_record_that_was_kept_and_no_other(records, difference, grace):
    """Updates and late records one by one; and final results, the last update of each window."""
    windows = SlidingWindows.of_time_difference_and_grace(*(timedelta(milliseconds=ms) for ms in (difference, grace)))
    newest = {}
    with driven(
        lambda s: (
            s.group_by_key()
            .windowed_by(windows, late_to=lambda late: late.to_delta("late"))
            .agg("c", total=Sum("ms"))
            .to_stream()
            .to_delta("out")
        )
    ) as (topic, out, driver):
        late = driver.create_output_table("late")
        for number, ((user, time), (rows, bounds)) in enumerate(
            zip(records, expected(records, difference, grace), strict=True)
        ):
            topic.pipe_input(user, Click("x", 1 << number), timestamp_ms=time)
            assert sorted(read_windows(out, "total")) == sorted(rows)
            assert sorted(row[:2] for row in read_windows(late, "page")) == sorted(bounds)
            newest |= {(user, start): (start, end, total, at) for start, end, total, at in rows}
    with driven(
        lambda s: s.group_by_key().windowed_by(windows).agg("c", total=Sum("ms")).suppress(FINAL).to_delta("out")
    ) as (topic, out, _):
        for number, (user, time) in enumerate(records):
            topic.pipe_input(user, Click("x", 1 << number), timestamp_ms=time)
        pipe(topic, 999, user="z")
        assert sorted(read_windows(out, "total")) == sorted(newest.values())


def test_a_record_only_in_closed_windows_opens_none_after_it():
    """At stream time 26 windows that end before 21 are closed: [6, 16], which contains 13, and its own [3, 13]."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 16)
        pipe(topic, 26, user="b")
        out.read_rows()
        pipe(topic, 13)
        assert out.is_empty()
        assert driver.counts["late_records"] == 2
        assert driver.open_windows == 2


def test_a_kept_record_is_in_every_window_that_opens_later_and_overlaps_it():
    """34 is late for its own window but in [34, 41]; 38 opens [31, 38], which contains both."""
    windows = SlidingWindows.of_time_difference_and_grace(timedelta(milliseconds=7), GRACE)
    with counted(windows) as (topic, out, driver):
        pipe(topic, 41, 34)
        out.read_rows()
        pipe(topic, 38)
        assert read_windows(out) == [(34, 41, 3, 41), (35, 42, 2, 41), (31, 38, 2, 38), (39, 46, 1, 41)]
        assert driver.counts["late_records"] == 1  # [27, 34]


def test_closed_windows_in_the_store_do_not_include_records_that_were_late_for_them():
    """At stream time 28 the record at 20 is late for [10, 20], which never opens, and for [11, 21], which holds 17."""
    with counted(SLIDING, retention=timedelta(milliseconds=90)) as (topic, _, driver):
        pipe(topic, 10, 17, 28)
        pipe(topic, 20)
        assert driver.counts["late_records"] == 2  # its own [10, 20], and [11, 21] after 10
        assert {
            in_ms(windowed.window_start): count for windowed, count in driver.get_session_store("c").fetch("a")
        } == {0: 1, 7: 2, 11: 1, 18: 2, 21: 1}


def test_at_the_last_moment_a_record_goes_into_the_window_that_starts_with_it_and_opens_the_next():
    """At stream time 35 windows that end before 30 are closed; [20, 30] is not, nor is [21, 31]."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 30)
        pipe(topic, 35, user="b")
        out.read_rows()
        pipe(topic, 20)
        assert read_windows(out) == [(20, 30, 2, 30), (21, 31, 1, 30)]
        assert driver.counts["late_records"] == 1  # [10, 20]


def test_a_record_is_not_late_for_a_window_that_never_opened_except_its_own():
    """With no grace, both 12 are late for [2, 12] alone, and not for [3, 13], which begins after 2; 40 is kept in the
    unseen [30, 40], for which 39 is not late."""
    windows = SlidingWindows.of_time_difference_with_no_grace(TEN)
    with driven(
        lambda s: s.group_by_key().windowed_by(windows, late_to=lambda late: late.to_delta("out")).count("c")
    ) as (topic, out, _):
        pipe(topic, 2, 22, 12, 12)
        assert [row[:2] for row in read_windows(out, "page")] == [(2, 12), (2, 12)]
        pipe(topic, 41, 40, 39, user="b")
        assert [row[:2] for row in read_windows(out, "page")] == [(30, 40), (29, 39)]


def test_late_records_of_sliding_windows_have_the_bounds_of_each_window_that_they_missed():
    with driven(
        lambda s: s.group_by_key().windowed_by(SLIDING, late_to=lambda late: late.to_delta("out")).count("c")
    ) as (topic, out, _):
        pipe(topic, 16, 26, 13)  # at stream time 26 windows that end before 21 are closed
        assert [row[:2] for row in read_windows(out, "page")] == [(3, 13), (6, 16)]
        pipe(topic, 60, 13, 3)  # no window that contains them is open
        assert [row[:2] for row in read_windows(out, "page")] == [(3, 13), (0, 10)]


@pytest.mark.parametrize(("stream_time", "late"), [(25, 0), (26, 1), (35, 1), (36, 1)])
def test_a_window_is_closed_to_a_record_when_it_ends_before_stream_time_minus_grace(stream_time, late):
    """The window [10, 20] of the record at 20 is closed from stream time 26 on; from 36 on no window can take it."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, stream_time, user="b")
        out.read_rows()
        pipe(topic, 20)
        assert read_windows(out) == ([] if late else [(10, 20, 1, 20)])
        assert driver.counts["late_records"] == late


def test_a_record_outside_open_windows_leaves_no_trace_and_one_inside_opens_the_next():
    """At stream time 30 windows that end before 25 are closed: 22 is in [16, 26], 20 in no open window."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 26)
        pipe(topic, 30, user="b")
        out.read_rows()
        pipe(topic, 22)
        assert read_windows(out) == [(16, 26, 2, 26), (23, 33, 1, 26)]
        assert driver.counts["late_records"] == 1  # [12, 22]
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 30, user="b")
        out.read_rows()
        pipe(topic, 20)
        assert driver.counts["late_records"] == 1
        pipe(topic, 25)  # a trace of 20 would have opened [21, 31]
        assert read_windows(out) == [(15, 25, 1, 25)]


@pytest.mark.parametrize("user", ["a", "b"])
def test_the_window_after_a_record_opens_until_it_is_closed_itself(user):
    """At stream time 36 windows that end before 31 are closed; the one after 20 ends at 31 and contains 25."""
    with counted(SLIDING) as (topic, out, driver):
        pipe(topic, 20)
        pipe(topic, 36, user="c")
        out.read_rows()
        pipe(topic, 25, user=user)
        assert read_windows(out) == ([(21, 31, 1, 25)] if user == "a" else [])
        assert driver.counts["late_records"] == 1  # [15, 25]


def test_null_keys_and_null_values_are_dropped():
    with counted(SLIDING) as (topic, out, driver):
        topic.pipe_input("a", None, timestamp_ms=90)
        topic.pipe_input(None, Click("x"), timestamp_ms=90)
        pipe(topic, 20)
        assert read_windows(out) == [(10, 20, 1, 20)]
        assert (driver.counts["null_keys"], driver.counts["null_values"]) == (1, 1)


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.group_by_key().windowed_by(SLIDING).count("c").suppress(FINAL).to_delta("out"),
        lambda s: (
            s.group_by_key()
            .windowed_by(SLIDING)
            .emit_strategy(EmitStrategy.on_window_close())
            .count("c")
            .to_delta("out")
        ),
    ],
)
def test_final_results_come_once_by_window_then_key_with_the_greatest_time_folded_in(program):
    with driven(program) as (topic, out, _):
        pipe(topic, 20, 18)
        pipe(topic, 25, user="b")
        assert read_windows(out) == [(8, 18, 1, 18)]  # 18 + 5 < 25; Kafka Streams' suppression compares with <=
        pipe(topic, 26, user="b")
        assert read_windows(out) == [(10, 20, 2, 20)]
        pipe(topic, 99, user="b")
        assert read_windows(out) == [(15, 25, 1, 25), (16, 26, 2, 26), (19, 29, 1, 20), (26, 36, 1, 26)]


def test_late_records_go_where_they_are_sent_once_for_each_closed_window():
    windows = TimeWindows.of_size_with_no_grace(TEN).advance_by(GRACE)
    program = lambda s: (
        s.group_by_key().windowed_by(windows, late_to=lambda late: late.to_delta("out")).count("c").suppress(FINAL)
    )
    with driven(program) as (topic, out, driver):
        pipe(topic, 60, 7)
        assert [(*row[:2], row[3]) for row in read_windows(out, "page")] == [(0, 10, 7), (5, 15, 7)]
        assert driver.counts["late_records"] == 2
        assert out.is_empty()


def test_the_unlimited_window_never_closes_and_excludes_records_before_its_start():
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
        counts = (
            clicks.group_by_key()
            .windowed_by(TimeWindows.of_size_and_grace(TEN, GRACE), retention=timedelta(milliseconds=40))
            .count("c")
        )
        (counts.suppress(FINAL) if is_final else counts).to_delta("out")

    with driven(program) as (topic, out, driver):
        pipe(topic, 3, 16, 39)
        store = driver.get_window_store("c")
        assert [value for _, value in store.fetch_all("a")] == [1, 1, 1]
        pipe(topic, 40)
        assert [in_ms(windowed.window_start) for windowed, _ in store.fetch_all("a")] == [10, 30, 40]
        if is_final:
            assert [row[:3] for row in read_windows(out)] == [(0, 10, 1), (10, 20, 1)]


@pytest.mark.parametrize(
    ("windows", "retention"),
    [
        (TimeWindows.of_size_and_grace(TEN, GRACE), 14),
        (SLIDING, 24),
        (UnlimitedWindows.of(), 10**9),
        (SessionWindows.of_inactivity_gap_and_grace(TEN, GRACE), 14),
    ],
)
def test_a_retention_shorter_than_the_windows_need_is_refused(windows, retention):
    with pytest.raises(TopologyError, match="retention"), counted(windows, retention=timedelta(milliseconds=retention)):
        pass


@pytest.mark.parametrize(
    "windows",
    [
        TimeWindows.of_size_and_grace(TEN, GRACE),
        SLIDING,
        SessionWindows.of_inactivity_gap_and_grace(TEN, GRACE),
    ],
)
@pytest.mark.parametrize("is_final", [True, False])
def test_a_late_record_never_reaches_the_store_so_none_has_expired_there(windows, is_final):
    """The store keeps windows for 90 ms: the first late record is younger, the second older."""

    def program(clicks):
        counts = clicks.group_by_key().windowed_by(windows, retention=timedelta(milliseconds=90)).count("c")
        (counts.suppress(FINAL) if is_final else counts).to_delta("out")

    with driven(program) as (topic, _, driver):
        pipe(topic, 45, 15, 205, 15)
        drops = {r.name: r.value for r in driver.metrics() if r.group == "stream-task-metrics"}
        assert (drops["late-record-drop-total"], drops["dropped-records-total"]) == (2, 2)
        assert drops["expired-window-record-drop-total"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("windows", "retention"),
    [
        (TimeWindows.of_size_and_grace(TEN, GRACE), 15),
        (SlidingWindows.of_time_difference_and_grace(MS, GRACE), 7),
        (SLIDING, 25),
        (SessionWindows.of_inactivity_gap_and_grace(TEN, GRACE), 15),
    ],
)
def test_the_least_retention_keeps_all_that_a_record_may_still_join(windows, retention):
    """Kafka Streams features, section 4: size + grace, twice the difference + grace, gap + grace."""
    draw, now_ms, times = Random(3), 100, []
    for _ in range(200):
        now_ms += draw.choice((0, 0, 1, 4, 15))
        times.append(now_ms - draw.choice((0, *range(22))))

    def updates(retention):
        with counted(windows, retention=timedelta(milliseconds=retention)) as (topic, out, driver):
            pipe(topic, *times)
            return read_windows(out), driver.counts["late_records"]

    assert updates(retention) == updates(10_000)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SlidingWindows.of_time_difference_with_no_grace(timedelta(0)),
        lambda: SlidingWindows.of_time_difference_and_grace(TEN, timedelta(seconds=-1)),
        lambda: UnlimitedWindows.start_on(datetime(1969, 1, 1, tzinfo=UTC)),
        lambda: UnlimitedWindows.start_on(datetime(1990, 1, 1)),
    ],
)
def test_windows_that_make_no_sense_are_refused(make):
    with pytest.raises(TopologyError):
        make()
