"""Evaluation by columns must not show: any cut of the input into batches gives what one record at a time gives."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.pipelines.memory_session import MemorySession
from weir import (
    BufferConfig,
    Count,
    First,
    Json,
    KStream,
    Last,
    Max,
    Mean,
    Min,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology import SubTopology


@dataclass(frozen=True)
class Event:
    amount: int | None
    word: str


@dataclass(frozen=True)
class Totals:
    total: int
    words: str


def fold(key: str, value: Event | None, totals: Totals) -> Totals | None:
    if value is None or value.amount == 13:
        return None
    return Totals(totals.total + (value.amount or 0), totals.words + value.word)


def larger(one: Event | None, other: Event | None) -> Event | None:
    if one is None or other is None:
        return None
    return max(one, other, key=lambda event: (event.amount or 0, event.word))


TUMBLING = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=4))
HOPPING = TUMBLING.advance_by(timedelta(milliseconds=3))
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())
ALL = dict(
    n=Count(),
    total=Sum("amount"),
    big=Sum(col("amount") > 20),
    low=Min("amount"),
    high=Max("amount"),
    mean=Mean("amount"),
    first=First("amount"),
    last=Last("word"),
    longest=Max("word"),
)


def key_of(key: str | None, value: Event | None) -> str | None:
    return value.word if value else None


def swapped(key: str | None, value: Event | None) -> tuple[str | None, int | None]:
    return (value.word, value.amount) if value else (key, None)


def several(key: str | None, value: Event | None) -> list[tuple[str, Event | None]]:
    return [(letter, value) for letter in (key or "") * ((value.amount or 0) % 3 if value else 1)]


def repeated(value: Event | None) -> Iterator[int | None]:
    yield from range(value.amount % 4 if value and value.amount else 0) if value else [None]


def is_odd(key: str | None, value: Event | None) -> bool:
    return value is not None and bool((value.amount or 0) % 2)


def branches(stream: KStream) -> None:
    for name, branch in stream.split("s").branch(col("amount") > 20).branch(is_odd).default_branch().items():
        branch.group_by_key().count(name).to_stream().to_delta(name)


PROGRAMS: dict[str, Callable[[KStream], None]] = {
    "agg to table": lambda s: s.group_by_key().agg("s", **ALL).to_delta("out"),
    "agg to every update": lambda s: (
        s.group_by_key().agg("s", **ALL).to_stream().filter(col("total") % 2 == 0).to_delta("out")
    ),
    "count, filtered table": lambda s: s.group_by_key().count("s").filter(col("count") % 2 == 1).to_delta("out"),
    "count to a moved stream": lambda s: (
        s.group_by_key().count("s").to_stream().group_by(size=col("count")).count("t").to_delta("out")
    ),
    "reduce": lambda s: s.group_by_key().reduce("s", larger).to_stream().to_delta("out"),
    "aggregate": lambda s: s.group_by_key().aggregate("s", lambda: Totals(0, ""), fold).to_stream().to_delta("out"),
    "aggregate to table": lambda s: s.group_by_key().aggregate("s", lambda: Totals(0, ""), fold).to_delta("out"),
    "tumbling": lambda s: s.group_by_key().windowed_by(TUMBLING).agg("s", **ALL).to_stream().to_delta("out"),
    "hopping": lambda s: (
        s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).to_stream().filter(col("n") > 1).to_delta("out")
    ),
    "hopping to table": lambda s: s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).to_delta("out"),
    "hopping aggregate": lambda s: (
        s.group_by_key().windowed_by(HOPPING).aggregate("s", lambda: Totals(0, ""), fold).to_stream().to_delta("out")
    ),
    "final": lambda s: s.group_by_key().windowed_by(TUMBLING).agg("s", **ALL).suppress(FINAL).to_delta("out"),
    "final hopping": lambda s: s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).suppress(FINAL).to_delta("out"),
    "final aggregate": lambda s: (
        s.group_by_key()
        .windowed_by(HOPPING)
        .aggregate("s", lambda: Totals(0, ""), fold)
        .suppress(FINAL)
        .to_delta("out")
    ),
    "final reduce": lambda s: (
        s.group_by_key().windowed_by(TUMBLING).reduce("s", larger).suppress(FINAL).to_delta("out")
    ),
    "final of a filtered table": lambda s: (
        s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).filter(col("n") < 3).suppress(FINAL).to_delta("out")
    ),
    "final to a moved stream": lambda s: (
        s.group_by_key()
        .windowed_by(TUMBLING)
        .count("s")
        .suppress(FINAL)
        .to_stream()
        .group_by(size=col("count"))
        .count("t")
        .to_delta("out")
    ),
    "filtered before": lambda s: (
        s.filter(col("amount") > 5).group_by_key().windowed_by(TUMBLING).agg("s", **ALL).to_stream().to_delta("out")
    ),
    "to_table": lambda s: s.to_table("s").filter(col("amount") > 20).to_stream().to_delta("out"),
    "filter_not": lambda s: s.filter_not(is_odd).filter_not(col("amount") > 20).to_delta("out"),
    "filter_not of a table": lambda s: s.to_table("s").filter_not(is_odd).to_stream().to_delta("out"),
    "map": lambda s: (
        s.map(swapped).map(key={"value": "value"}, value={"key": col("key"), "n": col("value")}).to_delta("out")
    ),
    "flat_map": lambda s: s.flat_map(several).to_delta("out"),
    "flat_map_values": lambda s: (
        s.flat_map_values(repeated).flat_map_values(half=pl.int_ranges(0, col("value") % 3)).to_delta("out")
    ),
    "branches": branches,
    "new key": lambda s: s.select_key(key_of).map_values(twice=col("amount") * 2).to_delta("out"),
}


def build(program: Callable[[KStream], None]) -> SubTopology:
    builder = StreamsBuilder()
    program(builder.stream("events", key=String("user"), value=Json(Event)))
    return builder.build().sub_topologies[0]


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.integers(0, 60),
        st.one_of(st.none(), st.tuples(st.one_of(st.none(), st.integers(0, 40)), st.sampled_from("xyz"))),
    ),
    min_size=1,
    max_size=30,
)


def frame(records: list[tuple]) -> pl.DataFrame:
    values = [value or (None, None) for _, _, value in records]
    return pl.DataFrame(
        {
            "user": [key for key, _, _ in records],
            "amount": [amount for amount, _ in values],
            "word": [word for _, word in values],
            "_ts": [time for _, time, _ in records],
            "_partition": [3] * len(records),
            "_offset": list(range(100, 100 + len(records))),
            "_deleted": [value is None for _, _, value in records],
        },
        schema={
            "user": pl.String,
            "amount": pl.Int64,
            "word": pl.String,
            "_ts": pl.Int64,
            "_partition": pl.Int32,
            "_offset": pl.Int64,
            "_deleted": pl.Boolean,
        },
    )


def run(sub_topology: SubTopology, batches: list[pl.DataFrame]) -> dict:
    processor, session, clocks = TaskProcessor(sub_topology), MemorySession(), {}
    counts: dict[str, int] = {}
    facts: dict[str, list[dict]] = {}
    edges = []
    gauges = {}
    for batch in batches:
        output = processor.run({"events": batch}, session, clocks, 0)
        clocks, gauges = output.clocks, output.gauges
        for table, rows in output.sinks.items():
            facts.setdefault(table, []).extend(rows.drop("_seq").to_dicts())
        edges += [row for rows in output.edges.values() for row in rows.to_dicts()]
        for name, count in output.counts.items():
            counts[name] = counts.get(name, 0) + count
    for sink in sub_topology.sinks:
        if sink.is_updates:  # only the newest row a key stands
            newest = {tuple(row[name] for name in sink.record.key_columns): row for row in facts.get(sink.table, ())}
            facts[sink.table] = sorted(newest.values(), key=repr)
            counts.pop("rows_out", None)
    stores = {name: rows for name, rows in session.rows.items() if rows}
    return dict(
        facts=facts,
        edges=edges,
        stores=stores,
        clocks=clocks,
        gauges=gauges,
        counts={name: count for name, count in counts.items() if count},
    )


CUTS = st.sets(st.integers(1, 29), max_size=4)


def batched_and_single(sub_topology: SubTopology, records: list[tuple], cuts: set[int]) -> tuple[dict, dict]:
    """What ``run`` finds of the records in batches between the cuts, and of one after another."""
    rows, bounds = frame(records), [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    return (
        run(sub_topology, [rows[start:end] for start, end in pairwise(bounds)]),
        run(sub_topology, [rows[index : index + 1] for index in range(len(records))]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=12, deadline=None)
@given(records=RECORDS, cuts=CUTS)
def test_any_cut_into_batches_gives_what_single_records_give(name, records, cuts):
    batched, single = batched_and_single(build(PROGRAMS[name]), records, cuts)
    assert batched == single
