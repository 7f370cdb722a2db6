"""A topology as text, in the form of Kafka Streams' ``TopologyDescription``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipelines.topology.nodes import Node, RepartitionNode, SourceNode, TableSinkNode

if TYPE_CHECKING:
    from pipelines.topology.topology import SubTopology


def describe(sub_topologies: Iterable[SubTopology]) -> str:
    """Every sub-topology with its nodes, successors (``-->``) and predecessors (``<--``)."""
    lines = ["Topologies:"]
    for sub_topology in sub_topologies:
        lines.append(f"   Sub-topology: {sub_topology.index}")
        for edge in sub_topology.edges_in:
            lines += [f"    Source: {edge.name}-source (topics: [{edge.name}])", _after(edge.node.children)]
        for node in sub_topology.nodes:
            lines += _node(node)
        lines.append("")
    return "\n".join(lines)


def _node(node: Node) -> list[str]:
    parent = node.parent
    before = parent.name if parent else "none"
    if isinstance(parent, RepartitionNode):
        before = f"{parent.name}-source"
    if isinstance(node, SourceNode):
        return [f"    Source: {node.name} (topics: [{node.topic}])", _after(node.children)]
    if isinstance(node, RepartitionNode):
        return [f"    Processor: {node.name}-filter (stores: [])", f"      --> {node.name}-sink", f"      <-- {before}",
                f"    Sink: {node.name}-sink (topic: {node.name})", f"      <-- {node.name}-filter"]
    if isinstance(node, TableSinkNode):
        return [f"    Sink: {node.name} (table: {node.table})", f"      <-- {before}"]
    return [f"    Processor: {node.name} (stores: [{', '.join(node.store_names)}])", _after(node.children),
            f"      <-- {before}"]


def _after(children: Iterable[Node]) -> str:
    names = [f"{child.name}-filter" if isinstance(child, RepartitionNode) else child.name for child in children]
    return f"      --> {', '.join(names) or 'none'}"
