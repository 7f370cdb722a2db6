"""A topology as text, in the form of Kafka Streams' ``TopologyDescription``."""

from __future__ import annotations

from collections.abc import Iterable

from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.foreign_key import (
    ResponseJoinNode,
    ResponseRepartitionNode,
    SubscriptionJoinNode,
)
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.joins import JoinBufferNode, StreamJoinNode, TableTableJoinNode, bases
from weir.pipelines.topology.nodes import (
    AggregateNode,
    Node,
    RepartitionNode,
    SeveralTopicsNode,
    SourceNode,
    TableSinkNode,
)
from weir.pipelines.topology.sub_topology import SubTopology
from weir.pipelines.topology.table_groups import UpdatesRepartitionNode


def describe(sub_topologies: Iterable[SubTopology], global_tables: Iterable[GlobalTableNode]) -> str:
    """Every sub-topology with its nodes, successors (``-->``) and predecessors (``<--``)."""
    lines: list[str] = []
    tables = list(global_tables)
    for number, table in enumerate(tables):
        lines += [
            f"  Sub-topology: {number} for global store (will not generate tasks)",
            f"    Source: {table.source.name} (topics: [{table.source.topic}])",
            f"      --> {table.name}",
            f"    Processor: {table.name} (stores: [{table.store.name}])",
            "      --> none",
            f"      <-- {table.source.name}",
        ]
    for sub_topology in sub_topologies:
        lines.append(f"  Sub-topology: {len(tables) + sub_topology.index}")
        for edge in sub_topology.edges_in:
            lines += [f"    Source: {edge.name}-source (topics: [{edge.name}])", _after(edge.node)]
        for node in sub_topology.nodes:
            lines += _node(node)
        lines.append("")
    return "Topologies:\n " + "\n".join(lines)  # as in Kafka Streams, the first heading is indented by one more space


def _node(node: Node) -> list[str]:
    if isinstance(node, StreamJoinNode):
        return _stream_join(node)
    if isinstance(node, TableTableJoinNode):
        return _table_table_join(node)
    if isinstance(node, SubscriptionJoinNode):
        return _subscription_join(node)
    if isinstance(node, ResponseJoinNode):
        return _response_join(node)
    if isinstance(node, CogroupNode):
        return _cogroup(node)
    if isinstance(node, AggregateNode) and isinstance(node.parent, CogroupNode):
        return []  # shown with the aggregations that it merges
    if isinstance(node, JoinBufferNode):
        return []  # shown with its join
    shown = (
        parent.parent if isinstance(parent, JoinBufferNode) else parent
        for parent in dict.fromkeys(node.parents)
        if parent not in node.looked_up
    )
    if isinstance(node, SourceNode) and any(isinstance(child, SeveralTopicsNode) for child in node.children):
        return []  # shown with the other topics of its stream
    before = ", ".join(_source_name(parent) for parent in shown) or "none"
    if isinstance(node, SourceNode):
        return [f"    Source: {node.name} (topics: [{node.topic}])", _after(node)]
    if isinstance(node, SeveralTopicsNode):
        return [f"    Source: {node.name} (topics: [{', '.join(node.topics)}])", _after(node)]
    if isinstance(node, ResponseRepartitionNode) and isinstance(node.parent, SubscriptionJoinNode):
        before = f"{node.parent.subscription_name}, {node.parent.name}"
    if isinstance(node, UpdatesRepartitionNode):
        return [f"    Sink: {node.name}-sink (topic: {node.name})", f"      <-- {before}"]
    if isinstance(node, RepartitionNode):
        return [
            f"    Processor: {node.name}-filter (stores: [])",
            f"      --> {node.name}-sink",
            f"      <-- {before}",
            f"    Sink: {node.name}-sink (topic: {node.name})",
            f"      <-- {node.name}-filter",
        ]
    if isinstance(node, TableSinkNode):
        return [f"    Sink: {node.name} (table: {node.table})", f"      <-- {before}"]
    return [
        f"    Processor: {node.name} (stores: [{', '.join(node.store_names)}])",
        _after(node),
        f"      <-- {before}",
    ]


def _stream_join(node: StreamJoinNode) -> list[str]:
    lines = []
    sides, shared = (node.left, node.right), [node.held.name] if node.held else []
    for index, parent in enumerate(node.parents):
        lines += [
            f"    Processor: {node.windowed_names[index]} (stores: [{sides[index].store.name}])",
            f"      --> {node.join_names[index]}",
            f"      <-- {_source_name(parent)}",
        ]
    for index in range(2):
        stores = ", ".join([sides[1 - index].store.name, *shared])
        lines += [
            f"    Processor: {node.join_names[index]} (stores: [{stores}])",
            f"      --> {node.name}",
            f"      <-- {node.windowed_names[index]}",
        ]
    return [*lines, f"    Processor: {node.name} (stores: [])", _after(node), f"      <-- {', '.join(node.join_names)}"]


def _table_table_join(node: TableTableJoinNode) -> list[str]:
    lines = []
    for name, parent, other in (
        (node.this_name, node.parents[0], node.parents[1]),
        (node.other_name, node.parents[1], node.parents[0]),
    ):
        stores = ", ".join(base.store.name for base in bases(other))
        lines += [f"    Processor: {name} (stores: [{stores}])", f"      --> {node.name}", f"      <-- {parent.name}"]
    return [
        *lines,
        f"    Processor: {node.name} (stores: [])",
        _after(node),
        f"      <-- {node.this_name}, {node.other_name}",
    ]


def _cogroup(node: CogroupNode) -> list[str]:
    lines, merge = [], node.aggregation
    for name, parent in zip(node.aggregate_names, node.parents, strict=True):
        lines += [
            f"    Processor: {name} (stores: [{merge.store.name}])",
            f"      --> {merge.name}",
            f"      <-- {_source_name(parent)}",
        ]
    return [
        *lines,
        f"    Processor: {merge.name} (stores: [])",
        _after(merge),
        f"      <-- {', '.join(node.aggregate_names)}",
    ]


def _subscription_join(node: SubscriptionJoinNode) -> list[str]:
    (right,) = node.others
    subscriptions, rows = node.store.name, ", ".join(base.store.name for base in bases(right))
    return [
        line
        for name, stores, after, before in (
            (node.receive_name, subscriptions, f"      --> {node.subscription_name}", _source_name(node.parent)),
            (node.subscription_name, rows, _after(node), node.receive_name),
            (node.name, subscriptions, _after(node), _source_name(right)),
        )
        for line in (f"    Processor: {name} (stores: [{stores}])", after, f"      <-- {before}")
    ]


def _response_join(node: ResponseJoinNode) -> list[str]:
    stores = ", ".join(store.name for store in node.foreign_stores)
    return [
        f"    Processor: {node.resolver_name} (stores: [{stores}])",
        f"      --> {node.name}",
        f"      <-- {_source_name(node.parent)}",
        f"    Processor: {node.name} (stores: [{', '.join(node.store_names)}])",
        _after(node),
        f"      <-- {node.resolver_name}",
    ]


def _source_name(parent: Node) -> str:
    return f"{parent.name}-source" if isinstance(parent, RepartitionNode) else parent.name


def _after(node: Node) -> str:
    names = [name for child in node.children if node not in child.looked_up for name in child.entrances(node)]
    return f"      --> {', '.join(names) or 'none'}"
