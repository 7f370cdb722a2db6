"""What executes a node with several parents."""

from __future__ import annotations

from pipelines.operators.epoch import SeveralInputs
from pipelines.operators.merge import Merge
from pipelines.serdes.source import source_schema
from pipelines.topology.arrival import parents_by_arrival
from pipelines.topology.nodes import MergeNode, Node


def several_inputs_of(node: Node) -> SeveralInputs:
    """The operator of a node with several parents."""
    match node:
        case MergeNode():
            return Merge(names=tuple(source_schema(node.record.columns)), by_arrival=tuple(parents_by_arrival(node)))
    raise TypeError(f"{node.name} is a {type(node).__name__}, which no operator executes")
