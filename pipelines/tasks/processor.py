"""Processes one epoch of one task: the rows of its topics and edges through its operators, to sinks and edges.

Reading, settling and writing files belong to ``epoch`` beside this; here is neither I/O nor a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from pipelines.operators.aggregation import Aggregation, WindowedAggregation
from pipelines.operators.batch_session import BatchSession
from pipelines.operators.branching import Branch, Split
from pipelines.operators.changes import ChangeAggregation
from pipelines.operators.data_windows import DataWindowedAggregation
from pipelines.operators.epoch import Epoch, Operator, has_key
from pipelines.operators.final_results import FinalResults
from pipelines.operators.functions import UserFunction
from pipelines.operators.idle import Closing, Following, Idleness
from pipelines.operators.mapping import FlatMapValues, MapColumns, MapPairs, PairExpressions, SelectKey
from pipelines.operators.session_windows import SessionWindows
from pipelines.operators.sliding_windows import SlidingWindows
from pipelines.operators.stateless import Filter, MapValues, Peek
from pipelines.operators.suppress import HELD_BYTES, Suppression
from pipelines.operators.tables import Materialization
from pipelines.operators.windows import TimeWindows, UnlimitedWindows
from pipelines.serdes.row_type import TIME
from pipelines.serdes.source import source_schema
from pipelines.tasks.metrics import EpochMetrics, lateness
from pipelines.tasks.several import changes_of, global_join_of, several_inputs_of
from pipelines.tasks.turns import TURNS, turns
from pipelines.topology.global_tables import GlobalJoinNode
from pipelines.topology.nodes import (
    AggregateNode,
    BranchNode,
    FilterNode,
    FlatMapValuesNode,
    LateRecordsNode,
    MapNode,
    MapValuesNode,
    Node,
    PeekNode,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SplitNode,
    SuppressNode,
    TableNode,
    TableSinkNode,
    ToStreamNode,
    followed_in_silence,
    forwards_final,
    idle_after_ms,
    keeps_every_update,
)
from pipelines.topology.table_groups import ChangeAggregateNode, ChangeSelectNode
from pipelines.topology.topology import SubTopology
from state.engine.contract import StateReader, StateSession
from state.stores.access import StoreTime
from state.stores.key_value import KeyValueStore
from state.stores.kinds import store_of
from state.stores.session import SessionStore
from state.types import StoreClock, StoreKind


@dataclass(frozen=True, kw_only=True)
class EpochOutput:
    """What an epoch of a task gave, beside the state in its session."""

    sinks: dict[str, pl.DataFrame]
    """By table, where there are rows: the table's columns but ``_epoch``; ``_seq`` counts from 0."""
    edges: dict[str, pl.DataFrame]
    """By repartition edge, where there are rows: the edge's columns, in processing order."""
    counts: dict[str, int]
    """``rows_out``, ``suppression_emits``, ``late_records`` (once a window), ``null_keys``, ``null_values``; of this
    epoch."""
    clocks: dict[str, int]
    """Stream time in ms by operator."""
    gauges: dict[str, int]
    """``open_windows``: windows held in the stores now."""
    next_punctuation_ms: int | None = None
    metrics: EpochMetrics = field(default_factory=EpochMetrics)


class TaskProcessor:
    """The operators of one sub-topology. Holds no state between epochs: that is in the session and the clocks."""

    def __init__(self, sub_topology: SubTopology, global_tables: StateReader | None = None) -> None:
        self._sub_topology = sub_topology
        self._operators = {node: operator_of(node) for node in sub_topology.nodes if not node.others}
        self._operators |= {node: global_join_of(node, global_tables) for node in sub_topology.nodes
                            if isinstance(node, GlobalJoinNode)}
        self._joins = {node: several_inputs_of(node, operator_of) for node in sub_topology.nodes if node.others}
        self._idleness: dict[Node, Idleness | Following] = {}
        for node, operator in self._operators.items():
            if not isinstance(operator, Closing):
                continue
            if (aggregation := followed_in_silence(node)) is not None:
                self._idleness[node] = Following(operator=operator, aggregation=aggregation.store.name)
            elif (after_ms := idle_after_ms(node)) is not None:
                self._idleness[node] = Idleness(operator=operator, after_ms=after_ms)
        self._looked_into = {store.name for node in sub_topology.nodes for store in node.foreign_stores}
        self._expiring = [store for store in sub_topology.stores if store.retention_ms is not None]
        self._window_stores = [store.name for store in sub_topology.stores
                               if store.kind in (StoreKind.WINDOW, StoreKind.SESSION)]
        self._buffers = [store.name for node in sub_topology.nodes if isinstance(node, SuppressNode)
                         for store in node.stores]

    def run(self, inputs: Mapping[str, pl.DataFrame], session: StateSession, clocks: Mapping[str, int],
            now_ms: int, *, lets_idle: bool = False, end_time_ms: int | None = None) -> EpochOutput:
        """Process ``inputs``, by topic or edge name, each in processing order; missing or empty ones are quiet.

        With ``lets_idle``, quiet is silent: time passes for operators that say what silence means. With
        ``end_time_ms`` the input has ended, and after the rows stream time moves to there, node by node. Writes go to
        ``session``. ``clocks`` are those of the task's last epoch and stay as they are.
        """
        if self._looked_into:
            session = BatchSession(session, self._looked_into)
        epoch = Epoch(session=session, clocks=dict(clocks), now_ms=now_ms, counts=Counter())
        sinks: dict[str, pl.DataFrame] = {}
        edges: dict[str, pl.DataFrame] = {}
        made: dict[Node, pl.DataFrame] = {}
        inputs = self._in_turn(inputs, epoch)
        behind, furthest = lateness(inputs.values(), epoch.clocks)
        by_node: dict[str, Counter[str]] = {}
        for node in self._sub_topology.nodes:
            before = epoch.counts.copy()
            if node.others:
                found = [_rows_of(parent, inputs, made) for parent in node.parents]
                if any(rows is not None and rows.height for rows in found):
                    made[node] = self._joins[node].process_all(
                        [rows if rows is not None and rows.height else _no_rows(parent)
                         for rows, parent in zip(found, node.parents, strict=True)], epoch)
                    by_node[node.name] = epoch.counts - before
                continue
            if isinstance(node, LateRecordsNode):
                rows = epoch.late.get(node.name)
            else:
                rows = inputs.get(node.topic) if isinstance(node, SourceNode) else _rows_of(node.parent, inputs, made)
            idleness = self._idleness.get(node)
            if rows is None or rows.is_empty():
                closed = idleness.pass_time(epoch) if idleness and lets_idle else self._end(node, end_time_ms, epoch)
                if closed is not None:
                    made[node] = closed
                    epoch.counts["suppression_emits"] += closed.height * isinstance(node, SuppressNode)
                    by_node[node.name] = epoch.counts - before
                continue
            if isinstance(node, TableSinkNode):
                sinks[node.table] = sink_rows(node, rows)
                epoch.counts["rows_out"] += sinks[node.table].height
            elif isinstance(node, RepartitionNode):
                kept = rows if node.is_explicit else has_key(rows, list(node.record.key.columns), epoch)
                if kept.height:
                    edges[node.name] = kept.select(node.schema.names())
            else:
                operator = self._operators[node]
                made[node] = operator.process(rows, epoch) if operator else rows
                if idleness:
                    idleness.hear(rows, epoch)
                if (closed := self._end(node, end_time_ms, epoch)) is not None:
                    made[node] = pl.concat([made[node], closed]) if made[node].height else closed
                if isinstance(node, SuppressNode):
                    epoch.counts["suppression_emits"] += made[node].height
                by_node[node.name] = epoch.counts - before
                if isinstance(node, SourceNode):
                    by_node[node.name]["process"] = rows.height
        due_ms = []
        for spec in self._expiring:
            store = store_of(spec, session, StoreTime(clocks=epoch.clocks, now_ms=now_ms))
            if isinstance(store, SessionStore):
                store.forget_expired()
            else:
                store.expire()
            if isinstance(store, KeyValueStore) and spec.expires_by is StoreClock.WALL_CLOCK:
                due_ms += [due for due in (store.next_expiry_ms(),) if due is not None]
        due_ms += [due for each in self._idleness.values() if (due := each.due_ms(epoch)) is not None]
        buffers = {name: (session.count(name), epoch.clocks.get(HELD_BYTES + name, 0)) for name in self._buffers}
        gauges = {"open_windows": sum(session.count(store) for store in self._window_stores)}
        return EpochOutput(sinks=sinks, edges=edges, counts=dict(epoch.counts), clocks=epoch.clocks, gauges=gauges,
                           next_punctuation_ms=min(due_ms, default=None),
                           metrics=EpochMetrics(
                               records=sum(rows.height for rows in inputs.values()), lateness_ms=behind,
                               max_lateness_ms=furthest, buffers=buffers,
                               nodes={name: dict(counts) for name, counts in by_node.items() if counts}))

    def _end(self, node: Node, end_time_ms: int | None, epoch: Epoch) -> pl.DataFrame | None:
        """What the operator of ``node`` forwards as its stream time moves to the end of the input; None for nothing."""
        operator = self._operators[node]
        if end_time_ms is None or not isinstance(operator, Closing):
            return None
        before_ms = epoch.clocks.get(operator.clock)
        if before_ms is None or before_ms >= end_time_ms:
            return None
        epoch.clocks[operator.clock] = end_time_ms
        return operator.close(before_ms, epoch)

    def _in_turn(self, inputs: Mapping[str, pl.DataFrame], epoch: Epoch) -> Mapping[str, pl.DataFrame]:
        """``inputs`` with the turn of each row for its offset, where rows meet that have no order otherwise."""
        sub_topology = self._sub_topology
        is_ordered = len(sub_topology.inputs) == 1 and not (self._joins and sub_topology.edges_in)
        names = [name for name in sub_topology.inputs if name in inputs and inputs[name].height]
        if is_ordered or not names:
            return inputs
        first = epoch.clocks.get(TURNS, 0)
        epoch.clocks[TURNS] = first + sum(inputs[name].height for name in names)
        return {name: inputs[name].with_columns(pl.Series("_offset", first + places))
                for name, places in zip(names, turns([inputs[name] for name in names]), strict=True)}


def _rows_of(parent: Node | None, inputs: Mapping[str, pl.DataFrame],
             made: Mapping[Node, pl.DataFrame]) -> pl.DataFrame | None:
    if isinstance(parent, RepartitionNode):
        return inputs.get(parent.name)
    return made.get(parent) if parent is not None else None


def _no_rows(node: Node) -> pl.DataFrame:
    return pl.DataFrame(schema=source_schema(node.record.columns))


def joined(outputs: Sequence[EpochOutput], sinks: Iterable[TableSinkNode]) -> EpochOutput:
    """What the batches of one epoch gave, in order, as if it had been one; ``sinks`` that collapse do so again."""
    if len(outputs) == 1:
        return outputs[0]
    counts: Counter[str] = Counter()
    for output in outputs:
        counts.update(output.counts)
    written = {}
    for sink in sinks:
        parts = [output.sinks[sink.table] for output in outputs if sink.table in output.sinks]
        if not parts:
            continue
        rows = pl.concat(parts)
        if sink.collapses:
            counts["rows_out"] -= rows.height
            rows = rows.unique(list(sink.record.key_columns), keep="last", maintain_order=True)
            counts["rows_out"] += rows.height
        written[sink.table] = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("_seq"))
    edges = {name: pl.concat([output.edges[name] for output in outputs if name in output.edges])
             for name in dict.fromkeys(name for output in outputs for name in output.edges)}
    return replace(outputs[-1], sinks=written, edges=edges, counts=dict(counts),
                   metrics=sum((output.metrics for output in outputs), EpochMetrics()))


def sink_rows(node: TableSinkNode, rows: pl.DataFrame) -> pl.DataFrame:
    """What a sink's table gets of the rows that reach it in an epoch: its columns but ``_epoch``."""
    if node.collapses:
        rows = rows.unique(list(node.record.key_columns), keep="last", maintain_order=True)
    return rows.select(*node.record.columns, pl.col("_ts").cast(TIME),
                       pl.int_range(pl.len(), dtype=pl.Int64).alias("_seq"), "_deleted")


def operator_of(node: Node) -> Operator | None:
    """What executes ``node``; None where rows pass as they are."""
    record = node.parent.record if node.parent else node.record
    match node:
        case FilterNode():
            return Filter(predicate=node.predicate, is_negated=node.is_negated, key=record.key_type,
                          value=record.value, is_table=node.is_table)
        case MapValuesNode():
            return MapValues(mapper=node.mapper, key_columns=tuple(record.key_columns), value=record.value,
                             result=node.record.value, is_table=node.is_table)
        case SelectKeyNode():
            return SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.record.key)
        case MapNode(mapper=PairExpressions() as mapper):
            return MapColumns(mapper=mapper, key=node.record.key, result=node.record.value)
        case MapNode(mapper=UserFunction() as mapper):
            return MapPairs(mapper=mapper, is_flat=node.is_flat, key=record.key_type, value=record.value,
                            key_result=node.record.key, result=node.record.value)
        case FlatMapValuesNode():
            return FlatMapValues(mapper=node.mapper, exploded=node.exploded, key_columns=tuple(record.key_columns),
                                 value=record.value, result=node.record.value)
        case PeekNode():
            return Peek(action=node.action, key=record.key_type, value=record.value)
        case SplitNode():
            return Split(predicates=node.predicates, key=record.key_type, value=record.value)
        case BranchNode():
            return Branch(node.index)
        case ChangeSelectNode():
            return changes_of(node, operator_of)
        case ChangeAggregateNode():
            return ChangeAggregation(store=node.store, fold=node.fold, every_update=keeps_every_update(node))
        case TableNode():
            return Materialization(store=node.store)
        case AggregateNode(windows=None):
            return Aggregation(store=node.store, fold=node.fold, every_update=keeps_every_update(node))
        case AggregateNode(windows=SessionWindows() | SlidingWindows() as windows):
            return DataWindowedAggregation(store=node.store, fold=node.fold, windows=windows, late_to=node.late_to,
                                           every_update=keeps_every_update(node), is_final=forwards_final(node))
        case AggregateNode(windows=TimeWindows() as windows) if forwards_final(node):
            return FinalResults(store=node.store, fold=node.fold, windows=windows, late_to=node.late_to)
        case AggregateNode():
            assert isinstance(node.windows, TimeWindows | UnlimitedWindows)
            return WindowedAggregation(store=node.store, fold=node.fold, windows=node.windows, late_to=node.late_to,
                                       every_update=keeps_every_update(node))
        case SuppressNode() if node.fused_with is None:
            return Suppression(store=node.store, delay_ms=node.delay_ms, is_final=node.is_final, limits=node.limits)
        case (SourceNode() | LateRecordsNode() | SuppressNode() | ToStreamNode() | TableSinkNode() | RepartitionNode()
              | GlobalJoinNode()):
            return None
    raise TypeError(f"{node.name} is a {type(node).__name__}, which no operator executes")
