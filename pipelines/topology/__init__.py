"""Topologies: what the DSL describes and the tasks execute."""

from pipelines.topology.nodes import RepartitionNode, SourceNode, TableSinkNode
from pipelines.topology.topology import Edge, SubTopology, Topology

__all__ = ["Edge", "RepartitionNode", "SourceNode", "SubTopology", "TableSinkNode", "Topology"]
