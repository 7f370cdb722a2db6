"""Programs over the topic ``events``, run over its rows in batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
from hypothesis import strategies as st
from polars import col

from tests.pipelines.in_turn import in_turn
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
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.integers(0, 60),
        st.one_of(st.none(), st.tuples(st.one_of(st.none(), st.integers(0, 40)), st.sampled_from("xyz"))),
    ),
    min_size=1,
    max_size=30,
)
CUTS = st.sets(st.integers(1, 29), max_size=4)


def build(program: Callable[[KStream], None]) -> SubTopology:
    builder = StreamsBuilder()
    program(builder.stream("events", key=String("user"), value=Json(Event)))
    return builder.build().sub_topologies[0]


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


def batches(records: list[tuple], cuts: set[int]) -> list[pl.DataFrame]:
    """``records`` as frames that end at ``cuts``."""
    rows, bounds = frame(records), [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    return [rows[start:end] for start, end in pairwise(bounds)]


def run(sub_topology: SubTopology, batches: list[pl.DataFrame]) -> dict:
    processor, session, clocks = TaskProcessor(sub_topology), MemorySession(), {}
    merge_ms: dict[str, int] = {}
    counts: dict[str, int] = {}
    facts: dict[str, list[dict]] = {}
    edges = []
    gauges = {}
    for batch in batches:
        output = processor.run(in_turn({"events": batch}, merge_ms=merge_ms), session, clocks, 0)
        clocks, gauges = output.clocks, output.gauges
        for table, rows in output.sinks.items():
            facts.setdefault(table, []).extend(rows.drop("_seq").to_dicts())
        edges += [row for rows in output.edges.values() for row in rows.to_dicts()]
        for name, count in output.counts.items():
            counts[name] = counts.get(name, 0) + count
    for sink in sub_topology.sinks:
        if sink.is_updates:  # only the newest row per key counts
            newest = {tuple(row[name] for name in sink.record.key_columns): row for row in facts.get(sink.table, ())}
            facts[sink.table] = sorted(newest.values(), key=repr)
            counts.pop("rows_out", None)
    stores = session.stored()
    return dict(
        facts=facts,
        edges=edges,
        stores=stores,
        clocks=clocks,
        gauges=gauges,
        counts={name: count for name, count in counts.items() if count},
    )


def batched_and_single(sub_topology: SubTopology, records: list[tuple], cuts: set[int]) -> tuple[dict, dict]:
    """The results of ``run`` for the records in batches between the cuts, and for the records one by one."""
    return (
        run(sub_topology, batches(records, cuts)),
        run(sub_topology, batches(records, set(range(1, len(records))))),
    )
