"""Stream-stream joins, record by record (Kafka Streams features, 5 and 18), and against a model of its processor."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipelines.operators import two_topics
from tests.pipelines.operators.one_topic import Event
from weir import Application, JoinWindows, Json, StreamsBuilder, String, TopologyError
from weir.pipelines.operators import kept_records, memory_share
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Seen:
    n: int


@dataclass(frozen=True)
class Pair:
    left: int | None
    right: int | None


def pair(one: Seen | None, other: Seen | None) -> Pair:
    return Pair(one.n if one else None, other.n if other else None)


def ms(number):
    return timedelta(milliseconds=number)


WINDOWS = JoinWindows.of_time_difference_and_grace(ms(5), ms(2))


@contextmanager
def driven(join, windows=WINDOWS, retention=None, **source):
    """A function that pipes ``(topic, key, n, ms)`` and returns the results: key, left, right, ms."""
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, key=String("key"), value=Json(Seen), **source) for topic in ("left", "right"))
    getattr(left, join)(right, pair, windows=windows, store="met", retention=retention).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topics = {name: driver.create_input_topic(name) for name in ("left", "right")}
        out = driver.create_output_table("out")

        def pipe(topic, key, n, time_ms):
            topics[topic].pipe_input(key, None if n is None else Seen(n), timestamp_ms=time_ms)
            return read()

        def wait(duration_ms):
            driver.advance_wall_clock_time(ms(duration_ms))
            return read()

        def read():
            return [
                (r.row["key"], r.row["left"], r.row["right"], round(r.timestamp.timestamp() * 1000))
                for r in out.read_records()
            ]

        pipe.driver, pipe.wait = driver, wait
        yield pipe


def test_records_join_up_to_both_ends_of_the_window_with_the_greater_timestamp():
    with driven("join") as pipe:
        pipe("left", "a", 1, 100)
        assert pipe("right", "a", 2, 95) == [("a", 1, 2, 100)]
        assert pipe("right", "a", 3, 105) == [("a", 1, 3, 105)]
        assert pipe("right", "a", 4, 106) == []
        assert pipe("right", "b", 5, 100) == []


def test_before_and_after_are_mirrored_for_the_other_side():
    windows = JoinWindows.of_time_difference_and_grace(ms(0), ms(50)).before(ms(3)).after(ms(10))
    with driven("join", windows) as pipe:
        pipe("right", "a", 1, 100)
        assert pipe("left", "a", 2, 90) == [("a", 2, 1, 100)]
        assert pipe("left", "a", 3, 89) == []
        assert pipe("left", "a", 4, 103) == [("a", 4, 1, 103)]
        assert pipe("left", "a", 5, 104) == []


def test_all_pairs_are_forwarded_duplicates_included():
    with driven("join") as pipe:
        pipe("left", "a", 1, 100)
        pipe("left", "a", 1, 100)
        pipe("left", "a", 2, 99)
        assert pipe("right", "a", 9, 100) == [("a", 2, 9, 100), ("a", 1, 9, 100), ("a", 1, 9, 100)]


@pytest.mark.parametrize(
    ("join", "alone"), [("join", []), ("left_join", [("left", 1)]), ("outer_join", [("left", 1), ("right", 2)])]
)
def test_null_values_are_dropped_and_null_keys_forwarded_alone_on_an_outer_side(join, alone):
    with driven(join) as pipe:
        assert pipe("left", "a", None, 1) == pipe("right", "a", None, 1) == []
        found = [("left", 1)] if pipe("left", None, 1, 5) == [(None, 1, None, 5)] else []
        found += [("right", 2)] if pipe("right", None, 2, 5) == [(None, None, 2, 5)] else []
        assert found == alone
        counts = pipe.driver.counts
        assert (counts["null_values"], counts["null_keys"]) == (2, 2 - len(alone))


def test_a_record_without_a_match_waits_until_window_and_grace_are_over():
    with driven("left_join") as pipe:
        assert pipe("left", "a", 1, 100) == []
        assert pipe("right", "b", 2, 107) == []
        assert pipe("right", "b", 2, 108) == [("a", 1, None, 100)]
        assert pipe("left", "c", 3, 200) == []


def test_a_match_ends_the_wait():
    with driven("outer_join") as pipe:
        pipe("left", "a", 1, 100)
        assert pipe("right", "a", 2, 103) == [("a", 1, 2, 103)]
        assert pipe("right", "b", 3, 300) == []


def test_only_records_at_stream_time_release_waiting_records():
    with driven("left_join") as pipe:
        pipe("left", "a", 1, 100)
        assert pipe("left", None, 2, 300) == [(None, 2, None, 300)]
        assert pipe("right", "b", 3, 299) == []
        assert pipe("right", "b", 4, 300) == [("a", 1, None, 100)]


def test_waiting_records_leave_by_time_right_side_first_then_key_and_before_the_match():
    with driven("outer_join") as pipe:
        pipe("left", "b", 1, 100)
        pipe("left", "a", 2, 100)
        pipe("right", "c", 3, 100)
        pipe("right", "d", 4, 99)
        pipe("left", "z", 5, 106)
        assert pipe("right", "z", 6, 108) == [
            ("d", None, 4, 99),
            ("c", None, 3, 100),
            ("a", 2, None, 100),
            ("b", 1, None, 100),
            ("z", 5, 6, 108),
        ]


def test_a_late_record_without_a_match_is_forwarded_at_once_whatever_the_grace():
    with driven("left_join") as pipe:
        pipe("right", "b", 1, 106)
        assert pipe("left", "a", 2, 101) == []
        assert pipe("left", "a", 3, 100) == [("a", 3, None, 100)]


def test_a_late_record_joins_what_the_other_side_keeps_by_its_own_stream_time():
    with driven("join") as pipe:
        pipe("right", "a", 1, 100)
        pipe("left", "b", 2, 500)
        assert pipe("left", "a", 3, 100) == [("a", 3, 1, 100)]
        pipe("right", "b", 4, 112)
        assert pipe("left", "a", 5, 100) == []


def test_with_a_retention_a_late_record_joins_what_the_other_side_keeps_for_that_long():
    """Without it the sides would be kept for 12 ms: the difference of 5 ms twice, and the grace."""
    with driven("join", retention=ms(20)) as pipe:
        pipe("right", "a", 1, 100)
        pipe("right", "b", 2, 119)
        assert pipe("left", "a", 3, 100) == [("a", 3, 1, 100)]
        pipe("right", "b", 4, 120)
        assert pipe("left", "a", 5, 100) == []


def test_a_retention_changes_neither_windows_nor_when_waiting_records_leave():
    with driven("left_join", retention=ms(1_000)) as pipe:
        pipe("left", "a", 1, 100)
        assert pipe("right", "a", 2, 106) == []
        assert pipe("right", "b", 3, 107) == []
        assert pipe("right", "b", 4, 108) == [("a", 1, None, 100)]
        assert pipe("right", "a", 5, 101) == [("a", 1, 5, 101)]


def test_a_retention_shorter_than_the_windows_need_is_refused_and_that_length_is_taken():
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, key=String("key"), value=Json(Seen)) for topic in ("left", "right"))
    with pytest.raises(TopologyError, match=r"retention is 0:00:00\.011000, but the join needs .* 0:00:00\.012000"):
        left.join(right, windows=WINDOWS, store="met", retention=ms(11))
    with pytest.raises(TopologyError, match="retention is 12; pass a datetime"):
        left.join(right, windows=WINDOWS, store="met", retention=12)
    left.join(right, windows=WINDOWS, store="met", retention=ms(12))
    left.join(right, windows=WINDOWS, store="others")
    settings = builder.build().committed_form.settings
    assert settings["met-this-join-store"] == settings["others-this-join-store"] == {"retention": "0:00:00.012000"}
    table = builder.table("table", key=String("key"), value=Json(Seen), store="table")
    with pytest.raises(TopologyError, match="retention= for streams"):
        left.join(table, retention=ms(12))


def test_idle_input_releases_waiting_records_when_window_and_grace_are_over():
    """Idle for 100 ms, then up to 108 ms: the window of 5 and the grace of 2 must have passed."""
    with driven("left_join", idle_after=ms(100)) as pipe:
        pipe("left", "a", 1, 100)
        assert pipe.wait(107) == []
        assert pipe.wait(1) == [("a", 1, None, 100)]
        assert pipe.wait(3_600_000) == []
        assert pipe("right", "a", 3, 101) == []
    with driven("left_join") as pipe:
        pipe("left", "a", 1, 100)
        assert pipe.wait(3_600_000) == []


def test_a_record_of_either_side_ends_the_idle_time_of_both():
    with driven("outer_join", idle_after=ms(100)) as pipe:
        pipe("left", "a", 1, 100)
        assert pipe.wait(90) == []
        pipe("right", "b", 2, 100)
        assert pipe.wait(107) == []
        assert pipe.wait(1) == [("b", None, 2, 100), ("a", 1, None, 100)]


@pytest.mark.parametrize("afters", [(50, 100), (100, 50)])
def test_the_longer_idle_after_of_the_two_sources_counts(afters):
    builder = StreamsBuilder()
    left, right = (
        builder.stream(topic, key=String("key"), value=Json(Seen), idle_after=ms(after))
        for topic, after in zip(("left", "right"), afters, strict=True)
    )
    left.left_join(right, pair, windows=WINDOWS, store="met").to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        out = driver.create_output_table("out")
        driver.create_input_topic("left").pipe_input("a", Seen(1), timestamp_ms=100)
        driver.advance_wall_clock_time(ms(107))
        assert out.is_empty()
        driver.advance_wall_clock_time(ms(1))
        assert [row["left"] for row in out.read_rows()] == [1]


def test_idle_input_does_not_change_an_inner_join():
    with driven("join", idle_after=ms(100)) as pipe:
        pipe("left", "a", 1, 100)
        assert pipe.wait(3_600_000) == []
        assert pipe("right", "a", 2, 101) == [("a", 1, 2, 101)]


RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "b"]), st.integers(0, 99), st.integers(0, 30)),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@pytest.mark.parametrize("join", ["left_join", "outer_join"])
@settings(max_examples=examples(12))
@given(
    before=RECORDS,
    after=RECORDS,
    idle_ms=st.integers(1, 20),
    windows=st.sampled_from([WINDOWS, WINDOWS.before(ms(0)).after(ms(8)), WINDOWS.before(ms(1)).after(ms(0))]),
)
def test_idle_input_has_the_effect_of_records_of_both_sides_at_its_time(join, before, after, idle_ms, windows):
    """Except those records themselves: having their own key, they are forwarded alone or not at all."""
    newest = max(record[3] for record in before)
    with driven(join, windows, idle_after=ms(100)) as pipe, driven(join, windows) as told:
        for record in before:
            pipe(*record)
            told(*record)
        due = pipe.wait(100 + idle_ms)
        marked = told("left", "mark", 0, newest + idle_ms) + told("right", "mark", 0, newest + idle_ms)
        assert due == [row for row in marked if row[0] != "mark"]
        for record in after:
            assert pipe(*record) == [row for row in told(*record) if row[0] != "mark"]


def test_windows_and_a_store_name_are_required():
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, key=String("key"), value=Json(Seen)) for topic in ("left", "right"))
    with pytest.raises(TopologyError, match=r"pass JoinWindows\."):
        left.join(right, store="met")
    with pytest.raises(TopologyError, match="keeps both sides; name that"):
        left.join(right, windows=WINDOWS)
    with pytest.raises(TopologyError, match="end before they begin"):
        JoinWindows.of_time_difference_with_no_grace(ms(1)).before(ms(-2))


@dataclass
class Model:
    """The processor of Kafka Streams, record by record, without its throttling by the wall clock."""

    windows: JoinWindows
    outer: set[str]
    retention_ms: int = 0
    """How long each side is kept, if longer than before + after + grace."""
    kept: dict[str, list] = field(default_factory=lambda: {"left": [], "right": []})
    clocks: dict[str, int] = field(default_factory=lambda: {"left": -1 << 40, "right": -1 << 40})
    held: list = field(default_factory=list)
    stream_time: int = -1 << 40
    expired: int = 0

    def process(self, side, key, n, time):
        other = {"left": "right", "right": "left"}[side]
        after = {"left": self.windows.after_ms, "right": self.windows.before_ms}
        before = {"left": self.windows.before_ms, "right": self.windows.after_ms}
        self.stream_time = max(self.stream_time, time)
        if n is None:
            return []
        if key is None:
            return [(None, n, None, time) if side == "left" else (None, None, n, time)] if side in self.outer else []
        out = []
        kept_ms = max(1, self.windows.before_ms + self.windows.after_ms + self.windows.grace_ms, self.retention_ms)
        if time > self.clocks[side] - kept_ms:
            self.kept[side].append((key, time, n))
        else:
            self.expired += 1
        self.clocks[side] = max(self.clocks[side], time)
        if time == self.stream_time:
            for waiting in sorted(self.held, key=lambda row: row[:3]):
                at, is_left, its_key, its_n = waiting
                if at + after["left" if is_left else "right"] + self.windows.grace_ms < self.stream_time:
                    out.append((its_key, its_n, None, at) if is_left else (its_key, None, its_n, at))
                    self.held.remove(waiting)
        live = self.clocks[other] - kept_ms
        met = sorted(
            (
                (at, its_n)
                for its_key, at, its_n in self.kept[other]
                if its_key == key and at > live and time - before[side] <= at <= time + after[side]
            ),
            key=lambda row: row[0],
        )
        for at, its_n in met:
            self.held = [row for row in self.held if row[:3] != (at, other == "left", key)]
            numbers = (n, its_n) if side == "left" else (its_n, n)
            out.append((key, *numbers, max(time, at)))
        if not met and side in self.outer:
            if time + after[side] < self.stream_time:
                out.append((key, n, None, time) if side == "left" else (key, None, n, time))
            else:
                self.held.append((time, side == "left", key, n))
        return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("join", "outer"), [("join", set()), ("left_join", {"left"}), ("outer_join", {"left", "right"})]
)
@settings(max_examples=examples(25))
@given(
    records=st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.sampled_from(["a", "b", "a", None]),
            st.one_of(st.integers(0, 99), st.none()),
            st.integers(0, 30),
        ),
        max_size=25,
    ),
    windows=st.sampled_from([WINDOWS, WINDOWS.before(ms(0)).after(ms(8)), WINDOWS.before(ms(1)).after(ms(0))]),
    retention=st.sampled_from([None, ms(12), ms(15), ms(100)]),
)
def test_every_record_gives_what_kafka_streams_processor_gives(join, outer, records, windows, retention):
    model = Model(windows, outer, round(retention.total_seconds() * 1000) if retention else 0)
    with driven(join, windows, retention) as pipe:
        for record in records:
            assert pipe(*record) == model.process(*record)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("join", "outer"), [("join", set()), ("left_join", {"left"}), ("outer_join", {"left", "right"})]
)
@settings(max_examples=examples(25))
@given(
    records=two_topics.RECORDS,
    cuts=two_topics.CUTS,
    windows=st.builds(
        lambda before, after, grace: (
            JoinWindows.of_time_difference_and_grace(ms(0), ms(grace)).before(ms(before)).after(ms(after))
        ),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from([0, 2, 50]),
    ),
    more_ms=st.sampled_from([None, 0, 3, 40]),
    in_memory=st.fixed_dictionaries(
        {
            "ROWS_A_KEY": st.sampled_from([256, 4, 1, 0]),
            "READ_A_KEY": st.sampled_from([32, 2, 0]),
            "MOST_ROWS": st.sampled_from([1 << 19, 10, 4]),
            "MOST_BYTES": st.sampled_from([1 << 26, 600, 100]),
            "MOST_PARTS": st.sampled_from([64, 2, 1]),
        }
    ),
)
def test_any_cut_into_batches_gives_what_kafka_streams_processor_gives(
    join, outer, records, cuts, windows, more_ms, in_memory
):
    """Results in order, and how many records were too old for the store of their side, whichever of the records that a
    side holds are looked for in the store, and whichever are in memory."""

    def numbers(one: Event | None, other: Event | None) -> Pair:
        return Pair(one.amount if one else None, other.amount if other else None)

    least_ms = max(1, windows.before_ms + windows.after_ms + windows.grace_ms)
    retention = None if more_ms is None else ms(least_ms + more_ms)
    sub_topology = two_topics.build(
        lambda b: getattr(two_topics.left(b), join)(
            two_topics.right(b), numbers, windows=windows, store="met", retention=retention
        ).to_delta("out")
    )
    numbered = [(side, key, time, value and (number, "x")) for number, (side, key, time, value) in enumerate(records)]
    order = two_topics.picked(numbered, sub_topology.inputs)
    model, expected = Model(windows, outer, least_ms + (more_ms or 0)), []
    for (side, key, time, value), _ in order:
        expected += model.process(side, key, value and value[0], time)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in in_memory.items():
            patched.setattr(memory_share if hasattr(memory_share, name) else kept_records, name, value)
        found = two_topics.run(sub_topology, two_topics.batches(order, cuts))
    assert [
        (row["user"], row["left"], row["right"], round(row["_ts"].timestamp() * 1000))
        for row in found["facts"].get("out", [])
    ] == expected
    assert found["counts"].get("expired_records", 0) == model.expired


def test_a_record_too_old_for_its_store_is_counted_as_expired_there_by_each_sides_own_time():
    """Difference 5 ms, grace 2 ms: a side's store keeps a record for 12 ms of that side's stream time."""
    with driven("join") as pipe:
        pipe("left", "a", 1, 100)
        pipe("left", "a", 2, 89)
        pipe("right", "a", 3, 60)
        assert pipe.driver.counts["expired_records"] == 0
        pipe("left", "a", 4, 88)
        pipe("left", "b", 5, 40)
        drops = {r.name: r.value for r in pipe.driver.metrics() if r.group == "stream-task-metrics"}
        assert (drops["expired-window-record-drop-total"], drops["dropped-records-total"]) == (2, 2)
        assert drops["late-record-drop-total"] == 0
        assert [
            (r.tags["processor-node-id"], r.value)
            for r in pipe.driver.metrics()
            if r.name == "expired-window-record-drop-total" and r.group == "stream-processor-node-metrics"
        ] == [("KSTREAM-MERGE-0000000006", 2)]
