"""Topologies: what the DSL describes and the tasks execute."""

from weir.pipelines.topology.nodes import Node, RepartitionNode, SourceNode, TableSinkNode
from weir.pipelines.topology.sub_topology import Edge, SubTopology
from weir.pipelines.topology.topology import Topology

__all__ = ["Edge", "Node", "RepartitionNode", "SourceNode", "SubTopology", "TableSinkNode", "Topology"]
