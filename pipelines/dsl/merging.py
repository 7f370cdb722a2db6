"""Merging two streams into one."""

from __future__ import annotations

from weir.pipelines.dsl.graph import Graph, places_of
from weir.pipelines.errors import TopologyError
from weir.pipelines.topology.nodes import MergeNode, Node


def add_merge(graph: Graph, one: Node, other: Node) -> Node:
    """The records of two streams of one type; raises ``TopologyError`` when the types differ."""
    name = graph.new_name("KSTREAM-MERGE-")
    check_same_columns(f"{name} merges", one, other)
    return graph.add(MergeNode(name=name, parent=one, others=(other,), record=one.record))


def check_same_columns(what: str, one: Node, other: Node) -> None:
    """Raises ``TopologyError`` when the records of two parents of one node differ in their columns."""
    mine, theirs = one.record, other.record
    if mine.key_columns != theirs.key_columns or mine.value.columns != theirs.value.columns:
        raise TopologyError(
            f"{what} records with the columns {_listed(one)} and {_listed(other)}; "
            "give both the same names and types with select_key(...) and map_values(...)",
            places=places_of(one, other),
        )


def _listed(node: Node) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in node.record.columns.items())
