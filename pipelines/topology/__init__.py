"""Topologies: what the DSL describes and the tasks execute."""

from weir.pipelines.topology.nodes import RepartitionNode, SourceNode, TableSinkNode
from weir.pipelines.topology.sub_topology import Edge, SubTopology
from weir.pipelines.topology.topology import Topology

__all__ = ["Edge", "RepartitionNode", "SourceNode", "SubTopology", "TableSinkNode", "Topology"]
