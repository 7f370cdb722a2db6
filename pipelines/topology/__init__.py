"""Topologies: what the DSL describes and the tasks execute."""

from weir.pipelines.topology.nodes import RepartitionNode, SourceNode, TableSinkNode
from weir.pipelines.topology.topology import Edge, SubTopology, Topology

__all__ = ["Edge", "RepartitionNode", "SourceNode", "SubTopology", "TableSinkNode", "Topology"]
