"""Processes one epoch of one task: the rows of its topics and edges through its operators, to sinks and edges.

Reading, settling and writing files belong to ``epoch`` beside this; here is neither I/O nor a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from pipelines.operators.aggregation import Aggregation, WindowedAggregation
from pipelines.operators.epoch import Epoch, Operator, has_key
from pipelines.operators.final_results import FinalResults
from pipelines.operators.stateless import Filter, MapValues, SelectKey
from pipelines.operators.suppress import WindowCloseSuppression
from pipelines.operators.tables import Materialization
from pipelines.serdes.row_type import TIME
from pipelines.topology.nodes import (
    AggregateNode,
    FilterNode,
    MapValuesNode,
    Node,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SuppressNode,
    TableNode,
    TableSinkNode,
    ToStreamNode,
    keeps_every_update,
)
from pipelines.topology.topology import SubTopology
from state.engine.contract import StateSession
from state.stores.access import StoreTime
from state.stores.key_value import KeyValueStore
from state.stores.kinds import store_of
from state.types import StoreClock, StoreKind, TableSpec


@dataclass(frozen=True, kw_only=True)
class EpochOutput:
    """What an epoch of a task gave, beside the state in its session."""

    sinks: dict[str, pl.DataFrame]
    """By table, where there are rows: the table's columns but ``_epoch``; ``_seq`` counts from 0."""
    edges: dict[str, pl.DataFrame]
    """By repartition edge, where there are rows: the edge's columns, in processing order."""
    counts: dict[str, int]
    """``rows_out``, ``late_records`` (once a window), ``null_keys``, ``null_values``; of this epoch."""
    clocks: dict[str, int]
    """Stream time in ms by operator."""
    gauges: dict[str, int]
    """``open_windows``: windows held in the stores now."""
    next_punctuation_ms: int | None = None


class TaskProcessor:
    """The operators of one sub-topology. Holds no state between epochs: that is in the session and the clocks."""

    def __init__(self, sub_topology: SubTopology) -> None:
        self._sub_topology = sub_topology
        self._operators = {node: operator_of(node) for node in sub_topology.nodes}
        self._expiring = [store for store in sub_topology.stores if store.retention_ms is not None]
        self._window_stores = [store.name for store in sub_topology.stores if store.kind is StoreKind.WINDOW]

    def run(self, inputs: Mapping[str, pl.DataFrame], session: StateSession, clocks: Mapping[str, int],
            now_ms: int) -> EpochOutput:
        """Process ``inputs``, by topic or edge name, each in processing order; missing or empty ones are quiet.

        Writes go to ``session``. ``clocks`` are those of the task's last epoch and stay as they are.
        """
        epoch = Epoch(session=session, clocks=dict(clocks), now_ms=now_ms, counts=Counter())
        sinks: dict[str, pl.DataFrame] = {}
        edges: dict[str, pl.DataFrame] = {}
        made: dict[Node, pl.DataFrame] = {}
        for node in self._sub_topology.nodes:
            rows = self._rows_into(node, inputs, made)
            if rows is None or rows.is_empty():
                continue
            if isinstance(node, TableSinkNode):
                sinks[node.table] = sink_rows(node, rows)
                epoch.counts["rows_out"] += sinks[node.table].height
            elif isinstance(node, RepartitionNode):
                kept = has_key(rows, list(node.record.key.columns), epoch)
                if kept.height:
                    edges[node.name] = kept.select(node.schema.names())
            else:
                operator = self._operators[node]
                made[node] = operator.process(rows, epoch) if operator else rows
        due_ms = []
        for spec in self._expiring:
            store = store_of(spec, session, StoreTime(clocks=epoch.clocks, now_ms=now_ms))
            store.expire()
            if isinstance(store, KeyValueStore) and spec.expires_by is StoreClock.WALL_CLOCK:
                due_ms += [due for due in (store.next_expiry_ms(),) if due is not None]
        gauges = {"open_windows": sum(session.count(store) for store in self._window_stores)}
        return EpochOutput(sinks=sinks, edges=edges, counts=dict(epoch.counts), clocks=epoch.clocks, gauges=gauges,
                           next_punctuation_ms=min(due_ms, default=None))

    def _rows_into(self, node: Node, inputs: Mapping[str, pl.DataFrame],
                   made: Mapping[Node, pl.DataFrame]) -> pl.DataFrame | None:
        if isinstance(node, SourceNode):
            return inputs.get(node.topic)
        parent = node.parent
        if isinstance(parent, RepartitionNode):
            return inputs.get(parent.name)
        return made.get(parent) if parent is not None else None


def joined(outputs: Sequence[EpochOutput], tables: Mapping[str, TableSpec]) -> EpochOutput:
    """What the batches of one epoch gave, in order, as if it had been one; of updates the newest a key is left."""
    if len(outputs) == 1:
        return outputs[0]
    counts: Counter[str] = Counter()
    for output in outputs:
        counts.update(output.counts)
    sinks = {}
    for table in dict.fromkeys(name for output in outputs for name in output.sinks):
        rows = pl.concat([output.sinks[table] for output in outputs if table in output.sinks])
        if keys := tables[table].keys:
            counts["rows_out"] -= rows.height
            rows = rows.unique(list(keys), keep="last", maintain_order=True)
            counts["rows_out"] += rows.height
        sinks[table] = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("_seq"))
    edges = {name: pl.concat([output.edges[name] for output in outputs if name in output.edges])
             for name in dict.fromkeys(name for output in outputs for name in output.edges)}
    return replace(outputs[-1], sinks=sinks, edges=edges, counts=dict(counts))


def sink_rows(node: TableSinkNode, rows: pl.DataFrame) -> pl.DataFrame:
    """What a sink's table gets of the rows that reach it in an epoch: its columns but ``_epoch``."""
    if node.is_updates:
        rows = rows.unique(list(node.record.key_columns), keep="last", maintain_order=True)
    return rows.select(*node.record.columns, pl.col("_ts").cast(TIME),
                       pl.int_range(pl.len(), dtype=pl.Int64).alias("_seq"), "_deleted")


def operator_of(node: Node) -> Operator | None:
    """What executes ``node``; None where rows pass as they are."""
    record = node.parent.record if node.parent else node.record
    match node:
        case FilterNode():
            return Filter(predicate=node.predicate, key=record.key_type, value=record.value, is_table=node.is_table)
        case MapValuesNode():
            return MapValues(mapper=node.mapper, key_columns=tuple(record.key_columns), value=record.value,
                             result=node.record.value, is_table=node.is_table)
        case SelectKeyNode():
            return SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.record.key)
        case TableNode():
            return Materialization(store=node.store)
        case AggregateNode() if any(isinstance(child, SuppressNode) and child.fused_with is node
                                    for child in node.children):
            assert node.windows is not None  # only a windowed table can be suppressed
            return FinalResults(store=node.store, fold=node.fold, windows=node.windows)
        case AggregateNode(windows=None):
            return Aggregation(store=node.store, fold=node.fold, every_update=keeps_every_update(node))
        case AggregateNode():
            assert node.windows is not None
            return WindowedAggregation(store=node.store, fold=node.fold, windows=node.windows,
                                       every_update=keeps_every_update(node))
        case SuppressNode() if node.fused_with is None:
            return WindowCloseSuppression(store=node.store, windows=node.windows)
        case SourceNode() | SuppressNode() | ToStreamNode() | TableSinkNode() | RepartitionNode():
            return None
    raise TypeError(f"{node.name} is a {type(node).__name__}, which no operator executes")
