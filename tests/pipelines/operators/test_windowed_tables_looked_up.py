"""Windowed tables in joins and groupings: looked up by key and window, for as long as their store keeps the window."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.operators import one_topic, two_topics
from tests.pipelines.operators.programs import in_ms
from weir import (
    Application,
    Int64,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
)
from weir.pipelines.operators.changes import ADDED, REPLACED
from weir.testing import TopologyTestDriver


def ms(number):
    return timedelta(milliseconds=number)


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from(["a", "a", "a", "b", "b", None]),
        st.integers(0, 40),
        st.one_of(st.none(), st.tuples(st.integers(0, 9), st.just("x"))),
    ),
    min_size=16,
    max_size=25,
)
"""Many records of few keys, so that most meet others."""
CUTS = st.sets(st.integers(1, 24), min_size=2, max_size=8)


@dataclass
class Counts:
    """Counts by key and window of 10 ms with a grace, record by record."""

    grace_ms: int
    kept_ms: int
    """How long a window is kept after its start."""
    rows: dict = field(default_factory=dict)
    stream_time: int = -1

    def take(self, key, time):
        """The window's row, (start, count, time), after a record; None if it is late."""
        self.stream_time = max(self.stream_time, time)
        start = time - time % 10
        if start + 10 + self.grace_ms <= self.stream_time:
            return None
        count, at = self.rows.get((key, start), (0, -1))
        self.rows[key, start] = count + 1, max(at, time)
        return start, count + 1, max(at, time)

    def find(self, key, start):
        return self.rows.get((key, start)) if start + self.kept_ms > self.stream_time else None


WINDOWS = st.tuples(st.sampled_from([0, 5, 25]), st.sampled_from([None, 0, 7, 60]))
"""Grace, and by how much the retention exceeds what the windows need; None for no retention."""


def model_of(grace_ms, more_ms):
    return Counts(grace_ms, 10 + grace_ms + (more_ms or 0))


def counted(stream, grace_ms, more_ms, store):
    windows = TimeWindows.of_size_and_grace(ms(10), ms(grace_ms))
    retention = None if more_ms is None else ms(10 + grace_ms + more_ms)
    return stream.group_by_key().windowed_by(windows, retention=retention).count(store)


def taken(sub_topology, records):
    """The records in the order in which a task takes them, and those that have a key."""
    order = two_topics.picked(records, sub_topology.inputs)
    return order, [(side, key, time) for (side, key, time, _), _ in order if key is not None]


def joined_rows(model, join, records):
    """What a join of both tables forwards: key, start, the left and the right count, time."""
    for side, key, time in records:
        if (row := model[side].take(key, time)) is None:
            continue
        start, count, at = row
        other = model["right" if side == "left" else "left"].find(key, start)
        if other is None and (join == "join" or (join == "left_join" and side == "right")):
            continue
        pair = (count, other and other[0])
        yield key, start, *(pair if side == "left" else pair[::-1]), max(at, other[1] if other else at)


@pytest.mark.slow
@pytest.mark.parametrize("join", ["join", "left_join", "outer_join"])
@settings(max_examples=examples(40))
@given(records=RECORDS, cuts=CUTS, left=WINDOWS, right=WINDOWS)
def test_windowed_tables_join_by_key_and_window_whatever_the_batches(join, records, cuts, left, right):
    sub_topology = two_topics.build(
        lambda b: (
            getattr(counted(two_topics.left(b), *left, "one"), join)(
                counted(two_topics.right(b), *right, "two").map_values(other="count")
            )
            .to_stream()
            .to_delta("out")
        )
    )
    order, given_keys = taken(sub_topology, records)
    expected = list(joined_rows({"left": model_of(*left), "right": model_of(*right)}, join, given_keys))
    found = two_topics.run(sub_topology, two_topics.batches(order, cuts))["facts"].get("out", [])
    assert [
        (row["user"], in_ms(row["window_start"]), row["count"], row["other"], in_ms(row["_ts"])) for row in found
    ] == expected


@pytest.mark.slow
@pytest.mark.parametrize("join", ["join", "left_join"])
@settings(max_examples=examples(40))
@given(records=RECORDS, cuts=CUTS, windows=WINDOWS)
def test_a_stream_with_a_windowed_key_joins_a_windowed_table_whatever_the_batches(join, records, cuts, windows):
    """The stream is the updates of another table of windows, which are kept for longer."""
    sub_topology = two_topics.build(
        lambda b: getattr(counted(two_topics.left(b), 25, None, "one").to_stream(), join)(
            counted(two_topics.right(b), *windows, "two").filter(col("count") != 2).map_values(other="count")
        ).to_delta("out")
    )
    order, given_keys = taken(sub_topology, records)
    model, expected = {"left": model_of(25, None), "right": model_of(*windows)}, []
    for side, key, time in given_keys:
        row = model[side].take(key, time)
        if side == "left" and row is not None:
            other = model["right"].find(key, row[0])
            other = None if other is None or other[0] == 2 else other[0]
            if other is not None or join == "left_join":
                expected.append((key, row[0], row[1], other, row[2]))
    found = two_topics.run(sub_topology, two_topics.batches(order, cuts))["facts"].get("out", [])
    assert [
        (row["user"], in_ms(row["window_start"]), row["count"], row["other"], in_ms(row["_ts"])) for row in found
    ] == expected


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(records=one_topic.RECORDS, cuts=one_topic.CUTS, windows=WINDOWS)
def test_a_windowed_table_is_grouped_by_what_its_updates_take_out_and_put_in(records, cuts, windows):
    """Two groups: whether a window has more than one record."""
    sub_topology = one_topic.build(
        lambda s: (
            counted(s, *windows, "one").group_by(many=col("count") > 1).agg("n", n=one_topic.Count()).to_delta("o")
        )
    )
    model, expected = model_of(*windows), []
    for key, time, _ in records:
        row = None if key is None else model.take(key, time)
        if row is None:
            continue
        _, count, at = row
        if count > 1:
            same = count > 2
            expected.append((count - 1 > 1, count - 1, REPLACED if same else 1, at))
        expected.append((count > 1, count, ADDED, at))
    found = one_topic.run(sub_topology, one_topic.batches(records, cuts))["edges"]
    assert [(row["many"], row["count"], row["_change"], row["_ts"]) for row in found] == expected


@pytest.mark.parametrize("cuts", [set(), {2}, {3}, {1, 2, 3}])
def test_a_window_that_has_closed_is_not_found_even_within_a_batch(cuts):
    """The right table's window ends at 10 without a grace, so the record of 12 closes it; the left one's is open."""
    sub_topology = two_topics.build(
        lambda b: (
            counted(two_topics.left(b), 25, None, "one")
            .left_join(counted(two_topics.right(b), 0, None, "two").map_values(other="count"))
            .to_stream()
            .to_delta("out")
        )
    )
    records = [("right", "a", 1), ("left", "a", 2), ("right", "a", 12), ("left", "a", 13), ("left", "a", 3)]
    order = two_topics.picked([(*record, (1, "x")) for record in records], sub_topology.inputs)
    assert [row[:3] for row, _ in order] == records
    found = two_topics.run(sub_topology, two_topics.batches(order, cuts))["facts"]["out"]
    assert [(in_ms(row["window_start"]), row["count"], row["other"]) for row in found] == [
        (0, 1, 1),
        (10, 1, 1),
        (0, 2, None),
    ]


def test_groups_of_windows_are_what_their_windows_were_last():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Int64("n"))
    per_window = counted(clicks, 5, None, "windows").group_by(at="window_start")
    per_window.agg("busy", users=one_topic.Count(), clicks=one_topic.Sum("count")).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic = driver.create_input_topic("clicks")
        for user, time in (("a", 1), ("b", 2), ("a", 3), ("a", 12), ("b", 4), ("a", 30), ("b", 5)):
            topic.pipe_input(user, 1, timestamp_ms=time)
        found = {in_ms(key.at): row for key, row in driver.get_key_value_store("busy").all()}
    assert found == {
        0: {"users": 2, "clicks": 4},
        10: {"users": 1, "clicks": 1},
        30: {"users": 1, "clicks": 1},
    }


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (SessionWindows.of_inactivity_gap_and_grace(ms(10), ms(5)), [(1, 1, 1, 1), (1, 1, None, None), (1, 5, 2, 2)]),
        (
            SlidingWindows.of_time_difference_and_grace(ms(10), ms(5)),
            [(0, 10, 1, 1), (0, 10, 2, 1), (2, 12, 1, 1), (0, 10, 2, 2)],
        ),
        (UnlimitedWindows.of(), [(0, None, 1, 1), (0, None, 2, 1), (0, None, 2, 2)]),
    ],
)
def test_windows_of_every_kind_join(windows, expected):
    """Both tables get the same records at 1 and 5, the left ones first; each pair has the bounds and the counts."""
    builder = StreamsBuilder()
    left, right = (builder.stream(topic, key=String("user"), value=Int64("n")) for topic in ("left", "right"))
    one, two = (
        stream.group_by_key().windowed_by(windows).count(store) for stream, store in ((left, "one"), (right, "two"))
    )
    one.join(two.map_values(other="count")).to_stream().to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        for time in (1, 5):
            for topic in ("left", "right"):
                driver.create_input_topic(topic).pipe_input("a", 1, timestamp_ms=time)
        rows = driver.create_output_table("out").read_rows()
    bounds = [
        (in_ms(row["window_start"]), None if windows == UnlimitedWindows.of() else in_ms(row["window_end"]))
        for row in rows
    ]
    found = [(*each, row["count"], row["other"]) for each, row in zip(bounds, rows, strict=True)]
    assert found == expected


def by_minute(builder, topic="clicks"):
    return (
        builder.stream(topic, key=String("user"), value=Int64("n"))
        .group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda b, own: own.join(own.map_values(again="seen")).group_by("user").count("n"),
        lambda b, own: own.to_stream().join(own.left_join(own.map_values(again="seen"))),
        lambda b, own: own.join(
            b.table("t", key=String("id"), value=Int64("m"), store="t"), foreign_key="user", store="fk"
        ),
    ],
)
def test_what_cannot_be_looked_up_later_is_refused_and_can_be_kept_first(program):
    def counts(builder):
        return by_minute(builder).agg("counts", seen=one_topic.Count())

    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match=r"keep them first, with \.to_stream\(\)\.to_table"):
        program(builder, counts(builder))
