"""To which task a row of a store belongs: by the key of the records that made it, as Kafka's default partitioner
divides keys (``weir.pipelines.serdes.partitioner``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import polars as pl

from weir.pipelines.operators.foreign_key import SENDER
from weir.pipelines.processors.batching import Batching
from weir.pipelines.serdes.partitioner import partition_of
from weir.pipelines.topology import SubTopology, Topology
from weir.pipelines.topology.foreign_key import SubscriptionJoinNode, SubscriptionRepartitionNode
from weir.pipelines.topology.nodes import Node, SourceNode
from weir.pipelines.topology.processors import ProcessorNode
from weir.pipelines.topology.sub_topology import Edge, inputs_of
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class KeyOwner:
    """Who divides keys among the tasks of a sub-topology: the producers of a topic, or a repartition."""

    divides: SourceNode | Edge

    @property
    def input(self) -> str:
        """The name of the topic or repartition."""
        return self.divides.topic if isinstance(self.divides, SourceNode) else self.divides.name

    def partition_of(self, keys: pl.DataFrame, count: int) -> pl.Series:
        """The partition, of ``count``, of each of ``keys``, whose columns are those of the record's key by position;
        null for a null key."""
        columns = (
            self.divides.key.columns if isinstance(self.divides, SourceNode) else self.divides.node.record.key.columns
        )
        named = keys.select(
            pl.col(own).cast(dtype).alias(name)
            for own, (name, dtype) in zip(keys.columns, columns.items(), strict=True)
        )
        is_key = named.select(pl.any_horizontal(pl.all().is_not_null())).to_series()
        present = named.filter(is_key)
        if isinstance(self.divides, SourceNode):
            found = partition_of(present, present.columns, count, self.divides.key_bytes)
        else:
            found = self.divides.partition_of(present, count)
        return pl.repeat(None, keys.height, dtype=pl.Int32, eager=True).scatter(is_key.arg_true(), found)


@dataclass(frozen=True, kw_only=True)
class Senders:
    """Who asks for rows of the right table of a join by foreign key: answers go to the partition that a subscription
    keeps."""

    owner: KeyOwner
    """Of the left table's keys."""
    sub_topology: int
    """The left table's."""
    columns: tuple[str, ...]
    """The left table's key, in subscriptions."""


@dataclass(frozen=True, kw_only=True)
class StoreKeys:
    """What the rows of a store belong to a task by."""

    spec: StoreSpec
    node: Node
    columns: tuple[str, ...]
    """The columns of the record's key, by position, among those of the store's."""
    owner: KeyOwner | None
    """None where it is not the key of a record that came to the task by it."""
    senders: Senders | None = None

    @property
    def is_own(self) -> bool:
        """Whether a processor of the program says what the keys are."""
        return isinstance(self.node, ProcessorNode) and not _is_batching(self.node)

    def keys(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(self.columns)

    def with_senders(
        self, rows: pl.DataFrame, source_counts: Mapping[str, int], counts: Mapping[int, int]
    ) -> pl.DataFrame:
        """The rows, where those who asked are in one of as many tasks as their topic has partitions, or else as
        ``counts`` says by sub-topology."""
        if self.senders is None:
            return rows
        owner = self.senders.owner
        among = source_counts.get(owner.input, counts[self.senders.sub_topology])
        found = owner.partition_of(rows.select(self.senders.columns), among)
        return rows.with_columns(pl.coalesce(found, pl.col(SENDER)).cast(rows.schema[SENDER]).alias(SENDER))


def store_keys(topology: Topology, sub_topology: SubTopology) -> tuple[StoreKeys, ...]:
    """Those of each store of a sub-topology."""
    found: dict[str, StoreKeys] = {}
    for node in sub_topology.nodes:
        for spec in node.stores:
            if spec.name not in found:
                found[spec.name] = _keys_of(topology, sub_topology, node, spec)
    return tuple(found.values())


def _keys_of(topology: Topology, sub_topology: SubTopology, node: Node, spec: StoreSpec) -> StoreKeys:
    width = len(node.parents[0].record.key.columns)
    own = [name for name in spec.key if not name.startswith("_")]
    return StoreKeys(
        spec=spec,
        node=node,
        columns=tuple(own[:width]),
        owner=_owner_of(sub_topology, node) if len(own) >= width else None,
        senders=_senders(topology, sub_topology, node) if isinstance(node, SubscriptionJoinNode) else None,
    )


def _owner_of(sub_topology: SubTopology, node: Node) -> KeyOwner | None:
    """Who divides the keys that ``node`` gets; None if a node before it may have changed them."""
    every = set[str]().union(*map(inputs_of, node.parents))
    kept = set[str]().union(*(inputs_of(parent, under_own_key=True) for parent in node.parents))
    return _divider(sub_topology, every) if every == kept else None


def _divider(sub_topology: SubTopology, names: Collection[str]) -> KeyOwner | None:
    dividers: list[SourceNode | Edge] = [source for source in sub_topology.sources if source.topic in names]
    dividers += [edge for edge in sub_topology.keyed_edges if edge.name in names]
    return KeyOwner(divides=dividers[0]) if dividers else None


def _senders(topology: Topology, sub_topology: SubTopology, node: SubscriptionJoinNode) -> Senders | None:
    edge = next(
        edge
        for edge in sub_topology.edges_in
        if isinstance(edge.node, SubscriptionRepartitionNode) and edge.node in node.parents
    )
    owner = _owner_of(topology.sub_topology(edge.source), node.send)
    if owner is None:
        return None
    return Senders(owner=owner, sub_topology=edge.source, columns=tuple(node.key.values()))


def _is_batching(node: ProcessorNode) -> bool:
    return isinstance(node.supplier, partial) and node.supplier.func is Batching
