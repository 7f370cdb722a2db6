"""Makes the operators of nodes with one parent or none."""

from __future__ import annotations

from weir.pipelines.operators.aggregation import Aggregation, WindowedAggregation
from weir.pipelines.operators.branching import Branch, Split
from weir.pipelines.operators.changes import ChangeAggregation, SelectChanges
from weir.pipelines.operators.data_windows import DataWindowedAggregation
from weir.pipelines.operators.epoch import Operator
from weir.pipelines.operators.expect import Expect
from weir.pipelines.operators.final_results import FinalResults
from weir.pipelines.operators.functions import KeyType, UserFunction
from weir.pipelines.operators.global_join import GlobalTableJoin
from weir.pipelines.operators.join_buffer import JoinBuffer
from weir.pipelines.operators.mapping import FlatMapValues, MapColumns, MapPairs, PairExpressions, SelectKey
from weir.pipelines.operators.process_batches import ProcessBatches
from weir.pipelines.operators.process_records import ProcessRecords
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliced_results import SlicedResults
from weir.pipelines.operators.slices import Slices
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.stateless import Filter, MapValues, Peek
from weir.pipelines.operators.suppress import Suppression
from weir.pipelines.operators.tables import Materialization, VersionedMaterialization
from weir.pipelines.operators.timestamps import WithTimestamp
from weir.pipelines.operators.windows import TimeWindows, UnlimitedWindows
from weir.pipelines.processors.running import Shape
from weir.pipelines.tasks.operator_factory.foreign_keys import subscription_send_of
from weir.pipelines.tasks.operator_factory.several_inputs import cogroup_of
from weir.pipelines.tasks.operator_factory.table_views import newest_rows_of, suppressed_table_of, view_of
from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.foreign_key import SubscriptionSendNode
from weir.pipelines.topology.global_tables import GlobalJoinNode
from weir.pipelines.topology.joins import JoinBufferNode, NewestToStreamNode
from weir.pipelines.topology.nodes import (
    AggregateNode,
    BranchNode,
    ExpectNode,
    FilterNode,
    FlatMapValuesNode,
    LateRecordsNode,
    MapNode,
    MapValuesNode,
    Node,
    PeekNode,
    RepartitionNode,
    SelectKeyNode,
    SeveralTopicsNode,
    SourceNode,
    SplitNode,
    SuppressNode,
    TableNode,
    TableSinkNode,
    ToStreamNode,
    WithTimestampNode,
)
from weir.pipelines.topology.processors import ProcessorNode
from weir.pipelines.topology.table_groups import ChangeAggregateNode, ChangeSelectNode
from weir.pipelines.topology.updates import keeps_every_update
from weir.state.engine.contract import StateView
from weir.state.stores.specs import SHOWN
from weir.state.types import StoreKind, StoreSpec


def operator_of(node: Node) -> Operator | None:
    """The operator of ``node``; None where rows pass unchanged."""
    record = node.parents[0].record if node.parents else node.record
    match node:
        case FilterNode():
            return Filter(
                predicate=node.predicate,
                is_negated=node.is_negated,
                key=record.key_type,
                value=record.value,
                is_table=node.is_table,
            )
        case ExpectNode():
            return Expect(
                node=node.name,
                expectation=node.expectation,
                predicate=node.predicate,
                on_violation=node.on_violation,
                key=record.key_type,
                value=record.value,
                is_table=node.is_table,
            )
        case MapValuesNode():
            return MapValues(
                mapper=node.mapper,
                key_columns=tuple(record.key_columns),
                value=record.value,
                result=node.record.value,
                is_table=node.is_table,
            )
        case WithTimestampNode():
            return WithTimestamp(
                node=node.name,
                time=node.time,
                takes_time=node.takes_time,
                key=record.key_type,
                value=record.value,
                result=node.result,
                skips_invalid=node.skips_invalid,
            )
        case SelectKeyNode():
            return SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.record.key)
        case MapNode(mapper=PairExpressions() as mapper):
            return MapColumns(mapper=mapper, key=node.record.key, result=node.record.value)
        case MapNode(mapper=UserFunction() as mapper):
            return MapPairs(
                mapper=mapper,
                is_flat=node.is_flat,
                key=record.key_type,
                value=record.value,
                key_result=node.record.key,
                result=node.record.value,
            )
        case FlatMapValuesNode():
            return FlatMapValues(
                mapper=node.mapper,
                exploded=node.exploded,
                key_columns=tuple(record.key_columns),
                value=record.value,
                result=node.record.value,
            )
        case PeekNode():
            return Peek(action=node.action, key=record.key_type, value=record.value)
        case SplitNode():
            return Split(predicates=node.predicates, key=record.key_type, value=record.value)
        case BranchNode():
            return Branch(node.index)
        case ChangeSelectNode():
            return _select_changes_of(node)
        case SubscriptionSendNode():
            return subscription_send_of(node, operator_of)
        case ChangeAggregateNode():
            return ChangeAggregation(store=node.store, fold=node.fold, every_update=keeps_every_update(node))
        case CogroupNode():
            return cogroup_of(node)
        case TableNode(store=StoreSpec(kind=StoreKind.VERSIONED)):
            return VersionedMaterialization(store=node.store)
        case TableNode():
            return Materialization(store=node.store)
        case NewestToStreamNode():
            return newest_rows_of(node.parent, operator_of)
        case JoinBufferNode():
            return JoinBuffer(store=node.store, grace_ms=node.grace_ms)
        case AggregateNode(windows=None):
            return Aggregation(store=node.store, fold=node.fold, every_update=keeps_every_update(node))
        case AggregateNode(windows=SessionWindows() | SlidingWindows() as windows):
            return DataWindowedAggregation(
                store=node.store,
                unseen=node.unseen,
                fold=node.fold,
                windows=windows,
                late_to=node.late_to,
                every_update=keeps_every_update(node),
                is_final=node.forwards_final,
            )
        case AggregateNode(slices=Slices() as slices):
            return SlicedResults(store=node.store, slices=slices, late_to=node.late_to)
        case AggregateNode(windows=TimeWindows() as windows) if node.forwards_final:
            return FinalResults(store=node.store, fold=node.fold, windows=windows, late_to=node.late_to)
        case AggregateNode():
            assert isinstance(node.windows, TimeWindows | UnlimitedWindows)
            return WindowedAggregation(
                store=node.store,
                fold=node.fold,
                windows=node.windows,
                late_to=node.late_to,
                every_update=keeps_every_update(node),
            )
        case SuppressNode() if node.fused_with is None:
            return Suppression(
                store=node.store,
                delay_ms=node.delay_ms,
                is_final=node.is_final,
                limits=node.limits,
                restarts=node.restarts,
                looked_up=suppressed_table_of(node, operator_of) if SHOWN in node.store.value else None,
            )
        case (
            SourceNode()
            | SeveralTopicsNode()  # of a pattern that one topic matches
            | LateRecordsNode()
            | SuppressNode()
            | ToStreamNode()
            | TableSinkNode()
            | RepartitionNode()
            | GlobalJoinNode()
        ):
            return None
        case ProcessorNode():
            shape = Shape(
                node=node.name,
                supplier=node.supplier,
                key=KeyType(node.key_taken, record.is_windowed),
                stores=node.connected,
                timers=node.timers,
                timer_resolution_ms=node.timer_resolution_ms,
                is_fixed_key=node.is_fixed_key,
                is_batch=node.is_batch,
                children=tuple(child.name for child in node.children),
                sinks=_sinks_below(node),
                given=node.record.columns,
                forwards=node.forwards,
                has_headers=node.has_headers,
            )
            value, result = node.value_taken, node.record.value
            key_result = shape.key if node.is_fixed_key else node.record.key_type
            if node.is_batch:
                return ProcessBatches(
                    shape=shape, value=value, key_result=key_result, result=result, drops_nulls=node.drops_nulls
                )
            return ProcessRecords(shape=shape, value=value, key_result=key_result, result=result)
    raise TypeError(f"{node.name} is a {type(node).__name__}, which no operator executes")


def _sinks_below(node: Node) -> dict[str, int]:
    """Which children of ``node`` are sinks, by the names that the program gives them, if no two have the same."""
    found = [(child.name_given, index) for index, child in enumerate(node.children) if isinstance(child, TableSinkNode)]
    names = [name for name, _ in found]
    return {name: index for name, index in found if names.count(name) == 1}


def global_join_of(node: GlobalJoinNode, rows: StateView) -> GlobalTableJoin:
    """The operator that looks rows up in a global table, which has ``rows``."""
    record = node.parent.record
    selector = SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.selected.key)
    return GlobalTableJoin(
        store=node.table.store, rows=rows, selector=selector, joiner=node.joiner, is_left=node.is_left
    )


def _select_changes_of(node: ChangeSelectNode) -> SelectChanges:
    record = node.parent.record
    selector = SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.record.key)
    return SelectChanges(
        table=view_of(node.parent, operator_of),
        table_key=tuple(record.key_columns),
        selector=selector,
        newest=newest_rows_of(node.parent, operator_of),
    )
