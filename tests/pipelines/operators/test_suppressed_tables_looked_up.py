"""Suppressed tables in joins and groupings: what they have forwarded counts, not what they hold back (KIP-328)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.operators import one_topic, two_topics
from tests.pipelines.operators.one_topic import Count, Event
from tests.pipelines.operators.programs import in_ms
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    Int64,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.migrate.errors import NotMovedError
from weir.pipelines.migrate.stores import format_of, keepers
from weir.pipelines.operators.changes import ADDED, REMOVED, REPLACED
from weir.state.commit.tables import read_rows
from weir.testing import TopologyTestDriver

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


@dataclass(frozen=True)
class Both:
    left: int | None
    right: int | None


def both(one: Event | None, other: Event | None) -> Both:
    return Both(one.amount if one else None, other.amount if other else None)


@dataclass
class Held:
    """A suppressed table, record by record: what it holds back and what it has forwarded."""

    limit_ms: int
    most: int
    restarts: bool
    stream_time: int = -1
    held: dict = field(default_factory=dict)
    shown: dict = field(default_factory=dict)
    """By key, number and time."""

    def take(self, key, time, number):
        """The updates that a record makes leave: key, number or None, time, and what was shown before."""
        self.stream_time = max(self.stream_time, time)
        place_of = max if self.restarts else min
        place = place_of(time, self.held[key][0]) if key in self.held else time
        self.held[key] = place, time, key, number
        while self.held and (
            min(self.held.values(), key=lambda row: row[:3])[0] <= self.stream_time - self.limit_ms
            or len(self.held) > self.most
        ):
            _, at, name, newest = self.held.pop(min(self.held.values(), key=lambda row: row[:3])[2])
            before = self.shown.pop(name, None)
            if newest is not None:
                self.shown[name] = newest, at
            yield name, newest, at, before


HOLDS = st.tuples(st.sampled_from([0, 4, 15]), st.sampled_from([1, 2, 99]), st.booleans())


def suppressed(limit_ms, most, restarts):
    limit = timedelta(milliseconds=limit_ms)
    return Suppressed.until_time_limit(limit, BufferConfig.max_records(most), restart_on_update=restarts)


@pytest.mark.slow
@settings(max_examples=examples(80))
@given(records=RECORDS, cuts=CUTS, holds=HOLDS)
def test_a_join_sees_what_a_suppressed_table_has_forwarded_whatever_the_batches(records, cuts, holds):
    numbered = [(side, key, time, value and (n, "x")) for n, (side, key, time, value) in enumerate(records)]
    sub_topology = two_topics.build(
        lambda b: (
            two_topics.left(b)
            .to_table("one")
            .suppress(suppressed(*holds))
            .outer_join(two_topics.right(b).to_table("two"), both)
            .to_stream()
            .to_delta("out")
        )
    )
    order = two_topics.picked(numbered, sub_topology.inputs)
    held, right, expected = Held(*holds), {}, []

    def joined(key, left, other, at, had):
        if left is None and other is None and had is None:
            return
        met = [each for each in (left, other) if each is not None]
        expected.append((key, left and left[0], other and other[0], max([at, *(each[1] for each in met)])))

    for (side, key, time, value), _ in order:
        if key is None:
            continue
        number = value and value[0]
        if side == "left":
            for name, newest, at, before in held.take(key, time, number):
                joined(name, None if newest is None else (newest, at), right.get(name), at, before)
        else:
            before = right.pop(key, None)
            if number is not None:
                right[key] = number, time
            joined(key, held.shown.get(key), right.get(key), time, before)
    found = two_topics.run(sub_topology, two_topics.batches(order, cuts))["facts"].get("out", [])
    assert [(row["user"], row["left"], row["right"], in_ms(row["_ts"])) for row in found] == expected


@pytest.mark.slow
@settings(max_examples=examples(80))
@given(records=one_topic.RECORDS, cuts=one_topic.CUTS, holds=HOLDS)
def test_a_grouping_takes_out_what_was_forwarded_before_whatever_the_batches(records, cuts, holds):
    numbered = [(key, time, value and (n, "x")) for n, (key, time, value) in enumerate(records)]
    sub_topology = one_topic.build(
        lambda s: s.to_table("t").suppress(suppressed(*holds)).group_by(odd=col("amount") % 2).agg("n", n=Count())
    )
    held, expected = Held(*holds), []
    for key, time, value in numbered:
        if key is None:
            continue
        for _, newest, at, before in held.take(key, time, value and value[0]):
            if before is not None:
                same = newest is not None and newest % 2 == before[0] % 2
                expected.append((before[0], REPLACED if same else REMOVED, at))
            if newest is not None:
                expected.append((newest, ADDED, at))
    found = one_topic.run(sub_topology, one_topic.batches(numbered, cuts))["edges"]
    assert [(row["amount"], row["_change"], row["_ts"]) for row in found] == expected


def test_a_stream_meets_what_a_suppressed_table_of_windows_has_forwarded():
    builder = StreamsBuilder()
    ten = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=50))

    def counts(topic):
        stream = builder.stream(topic, key=String("user"), value=Int64("n"))
        return stream.group_by_key().windowed_by(ten).count(topic)

    held = counts("held").map_values(other="count").suppress(suppressed(5, 99, False).with_name("waiting"))
    counts("asks").to_stream().left_join(held).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        found = []
        for topic, time in [("held", 1), ("asks", 1), ("held", 6), ("asks", 2), ("held", 7), ("asks", 3), ("held", 14)]:
            driver.create_input_topic(topic).pipe_input("a", 1, timestamp_ms=time)
            found += [row["other"] for row in driver.create_output_table("out").read_rows()]
        driver.create_input_topic("asks").pipe_input("a", 1, timestamp_ms=4)
        found += [row["other"] for row in driver.create_output_table("out").read_rows()]
        assert found == [None, 2, 2, 3]
        held_now = driver.get_key_value_store("waiting-store").all()
        assert [(key.key, n) for key, n in held_now] == [("a", {"other": 1})]
    node, store = keepers(builder.build().sub_topologies[0])["waiting-store"]
    with pytest.raises(NotMovedError, match="keeps what it has forwarded"):
        format_of(node, store, None)


@pytest.mark.parametrize("loses_disk", [False, True])
def test_a_suppression_goes_on_when_it_is_joined_and_when_it_no_longer_is(tmp_path, loses_disk):
    """What it holds when the join is added counts as never forwarded, until it is."""

    def application(is_joined):
        builder = StreamsBuilder()
        held = builder.table("in", key=String("user"), value=Int64("n"), store="all").suppress(
            suppressed(10, 99, False).with_name("held")
        )
        held.to_stream().to_delta("forwarded")
        if is_joined:
            other = builder.table("other", key=String("id"), value=Int64("m"), store="other")
            held.join(other).to_stream().to_delta("out")
        return Application("test", builder, commit_interval=timedelta(milliseconds=1))

    def records(*rows):
        return [(key.encode(), n.to_bytes(8, "big"), at) for key, n, at in rows]

    topics = Topics({("in", 0): records(("a", 1, 0), ("b", 2, 10), ("a", 3, 11)), ("other", 0): []})
    place = Place(application(False), topics, tmp_path)
    for is_joined, more, others in (
        (True, [("c", 4, 12)], [("a", 7, 12), ("b", 8, 12)]),
        (True, [("b", 5, 21), ("c", 6, 22)], [("b", 9, 22)]),
        (False, [("d", 7, 60)], []),
    ):
        place.run()
        if loses_disk:
            for data in place.state_folder.glob("*/*/data.mdb"):
                data.unlink()
        place.application = application(is_joined)
        place.topics.rows["in", 0] += records(*more)
        place.topics.rows["other", 0] += records(*others)
    place.run()
    forwarded = read_rows(place.warehouse / "test" / "forwarded").sort("_epoch", "_seq")
    assert forwarded.select("user", "n").rows() == [("a", 1), ("b", 5), ("a", 3), ("c", 6)]
    out = read_rows(place.warehouse / "test" / "out").sort("_epoch", "_seq").select("user", "n", "m").rows()
    assert out == [("b", 5, 8), ("a", 3, 7), ("b", 5, 9)]


FINAL_RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "b"]), st.integers(0, 40)), max_size=20
)


def final_counts(stream, store, value):
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=50))
    counts = stream.group_by_key().windowed_by(windows).agg(store, **{value: Count()})
    return counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(records=FINAL_RECORDS)
def test_final_results_are_joined_and_grouped_as_plain_counting_says(records):
    builder = StreamsBuilder()
    left = final_counts(builder.stream("left", key=String("user"), value=Int64("x")), "lefts", "l")
    right = final_counts(builder.stream("right", key=String("user"), value=Int64("x")), "rights", "r")
    left.join(right).to_stream().to_delta("joined")
    left.left_join(right).to_stream().to_delta("lefts_joined")
    left.group_by(at="window_start").agg("windows", users=Count(), records=Sum("l")).to_delta("windows")
    with TopologyTestDriver(Application("test", builder)) as driver:
        for side, user, time in [*records, ("left", "end", 1_000), ("right", "end", 1_000)]:
            driver.create_input_topic(side).pipe_input(user, 1, timestamp_ms=time)
        found = {name: driver.create_output_table(name).read_rows() for name in ("joined", "lefts_joined", "windows")}
    counts = {
        side: Counter((user, time // 10 * 10) for s, user, time in records if s == side) for side in ("left", "right")
    }
    both = {at: (count, counts["right"][at]) for at, count in counts["left"].items() if at in counts["right"]}
    assert {(row["user"], in_ms(row["window_start"])): (row["l"], row["r"]) for row in found["joined"]} == both
    assert len(found["joined"]) == len(both), "each pair comes once"
    newest = {(row["user"], in_ms(row["window_start"])): (row["l"], row["r"]) for row in found["lefts_joined"]}
    assert newest == {at: (count, counts["right"].get(at)) for at, count in counts["left"].items()}
    windows: dict[int, list[int]] = {}
    for (_, start), count in counts["left"].items():
        windows.setdefault(start, []).append(count)
    assert {in_ms(row["at"]): (row["users"], row["records"]) for row in found["windows"]} == {
        start: (len(each), sum(each)) for start, each in windows.items()
    }


def test_a_stream_is_joined_with_final_results_and_they_are_kept_once():
    builder = StreamsBuilder()
    final = final_counts(builder.stream("left", key=String("user"), value=Int64("x")), "lefts", "l")
    moved = final.to_stream()
    moved.join(final.map_values(twice=col("l") * 2), name="again").to_delta("out")
    moved.join(final, name="once").to_delta("other")
    final.group_by("user").agg("users", windows=Count())
    stores = [store.name for sub in builder.build().sub_topologies for store in sub.stores]
    assert len([name for name in stores if name.startswith("KSTREAM-TOTABLE-STATE-STORE-")]) == 2, (
        "map_values has its own"
    )
