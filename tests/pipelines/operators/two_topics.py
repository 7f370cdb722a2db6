"""Programs over the topics ``left`` and ``right``, run over rows of both in batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import polars as pl
from hypothesis import strategies as st

from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from tests.pipelines.operators.one_topic import Event
from weir import Json, KStream, StreamsBuilder, String
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology import SubTopology

Row = tuple[str, str | None, int, tuple[int | None, str] | None]
"""Topic, key, time in ms, value."""

RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 40),
        st.one_of(st.none(), st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.sampled_from("xyz"))),
    ),
    min_size=1,
    max_size=25,
)
CUTS = st.sets(st.integers(1, 24), max_size=4)


def left(builder: StreamsBuilder) -> KStream:
    return builder.stream("left", key=String("user"), value=Json(Event))


def right(builder: StreamsBuilder) -> KStream:
    return builder.stream("right", key=String("user"), value=Json(Event))


def build(program: Callable[[StreamsBuilder], None]) -> SubTopology:
    builder = StreamsBuilder()
    program(builder)
    return builder.build().sub_topologies[0]


def picked(records: Sequence[Row], inputs: Sequence[str]) -> list[tuple[Row, int]]:
    """Records with their offsets, in the order in which a task takes them: always the oldest of the next in line."""
    queues = {name: [row for row in records if row[0] == name] for name in inputs}
    positions = dict.fromkeys(inputs, 0)
    order = []
    while any(positions[name] < len(queues[name]) for name in inputs):
        name = min(
            (name for name in inputs if positions[name] < len(queues[name])),
            key=lambda name: (queues[name][positions[name]][2], inputs.index(name)),
        )
        order.append((queues[name][positions[name]], positions[name]))
        positions[name] += 1
    return order


def frames(sub_topology: SubTopology, batch: Sequence[tuple[Row, int]]) -> dict[str, pl.DataFrame]:
    """The batch as decoded frames by topic."""
    found = {}
    for source in sub_topology.sources:
        topic = source.topic
        rows = [
            (key, *(value or (None, None)), time_ms, 3, offset, value is None)
            for (name, key, time_ms, value), offset in batch
            if name == topic
        ]
        if rows:
            found[topic] = pl.DataFrame(
                rows,
                orient="row",
                schema={
                    **source.record.columns,
                    "_ts": pl.Int64,
                    "_partition": pl.Int32,
                    "_offset": pl.Int64,
                    "_deleted": pl.Boolean,
                },
            )
    return found


def run(sub_topology: SubTopology, batches: Sequence[Sequence[tuple[Row, int]]]) -> dict:
    """State and outputs after all batches: facts in order; of updates, the newest per key."""
    processor, session, clocks, instances = TaskProcessor(sub_topology), MemorySession(), {}, {}
    merge_ms: dict[str, int] = {}
    counts: dict[str, int] = {}
    facts: dict[str, list[dict]] = {}
    edges: list[dict] = []
    for batch in batches:
        turns = in_turn(frames(sub_topology, batch), sub_topology.inputs, merge_ms)
        output = processor.run(turns, session, clocks, 0, instances=instances)
        clocks = output.clocks
        for table, rows in output.sinks.items():
            facts.setdefault(table, []).extend(rows.drop("_seq").to_dicts())
        edges += [row for rows in output.edges.values() for row in rows.to_dicts()]
        for name, count in output.counts.items():
            counts[name] = counts.get(name, 0) + count
    for sink in sub_topology.sinks:
        if sink.is_updates:
            newest = {tuple(row[name] for name in sink.record.key_columns): row for row in facts.get(sink.table, [])}
            facts[sink.table] = sorted(newest.values(), key=repr)
            counts.pop("rows_out", None)
    return dict(
        facts={name: rows for name, rows in facts.items() if rows},
        edges=edges,
        clocks=clocks,
        stores=session.stored(),
        counts={name: count for name, count in counts.items() if count},
    )


def batches(order: Sequence[tuple[Row, int]], cuts: set[int]) -> list[Sequence[tuple[Row, int]]]:
    """``order`` in batches that end at ``cuts``."""
    bounds = [0, *sorted(cut for cut in cuts if cut < len(order)), len(order)]
    return [order[start:end] for start, end in pairwise(bounds) if start < end]


def assert_cuts_do_not_show(program: Callable[[StreamsBuilder], None], records: Sequence[Row], cuts: set[int]) -> None:
    """Assert that batches that end at ``cuts`` give what the records give one by one."""
    sub_topology = build(program)
    order = picked(records, sub_topology.inputs)
    if not order:
        return
    batched = run(sub_topology, batches(order, cuts))
    single = run(sub_topology, [[record] for record in order])
    assert batched == single
