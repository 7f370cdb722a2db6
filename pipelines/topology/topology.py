"""The topology: nodes split into sub-topologies, their stores, tables, edges and partition counts.

A sub-topology is what is joined in memory; two meet only in a repartition edge. Executing one belongs to
``weir.pipelines.tasks``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

import msgspec
import polars as pl

from weir.pipelines.errors import CoPartitioningError, TopologyError
from weir.pipelines.serdes.partitioner import key_bytes
from weir.pipelines.serdes.row_type import TIME
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.topology.describe import describe
from weir.pipelines.topology.foreign_key import ResponseRepartitionNode, SubscriptionJoinNode, SubscriptionSendNode
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.joins import StreamJoinNode
from weir.pipelines.topology.nodes import (
    AggregateNode,
    MapNode,
    Node,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SuppressNode,
    TableSinkNode,
)
from weir.state.commit.record import CommittedTopology
from weir.state.types import StoreSpec, TableSpec, TaskId


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Rows that leave one sub-topology for another because their key changed."""

    name: str
    source: int
    """Index of the sub-topology that writes."""
    target: int
    node: RepartitionNode
    met: SourceNode | None
    """The topic whose keys meet its own in the tasks that it leads to; None where it meets other edges at most."""

    @property
    def schema(self) -> pl.Schema:
        """Key columns, value columns, ``_ts _partition _offset _deleted``."""
        return self.node.schema

    def partition_of(self, rows: pl.DataFrame, count: int) -> pl.Series:
        """Target partition of each row, Int32 in ``[0, count)``; Kafka's default partitioner over the key, as it is
        written in the topic that is met."""
        return self.node.partition_of(rows, count, key_bytes if self.met is None else self.met.key_bytes)


@dataclass(eq=False, kw_only=True)
class SubTopology:
    """Nodes joined in memory; sub-topology ``s`` over partition ``p`` is task ``s_p``."""

    index: int
    nodes: tuple[Node, ...]
    """Parents before children; a repartition edge belongs to the one that writes it."""
    edges_in: tuple[Edge, ...] = ()
    edges_out: tuple[Edge, ...] = ()

    @property
    def name(self) -> str:
        """The topic or edge it reads first; stays the same when operators are added elsewhere."""
        return self.keyed_edges[0].name if self.keyed_edges else self.sources[0].topic

    @cached_property
    def keyed_edges(self) -> tuple[Edge, ...]:
        """Edges that bring rows of its own keys, and so decide how many tasks it has; messages do not."""
        return tuple(edge for edge in self.edges_in if not edge.node.is_message)

    @cached_property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @cached_property
    def stores(self) -> tuple[StoreSpec, ...]:
        """What is kept. A suppression that is evaluated with its aggregation keeps nothing of its own."""
        return tuple(store for node in self.nodes for store in node.stores)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Topics and edges, in the order in which records of one time take their turn: those of tables first."""
        tables = {name for node in self.nodes for table in node.looked_up for name in _inputs_of(table)}
        names = [*(edge.name for edge in self.edges_in), *(source.topic for source in self.sources)]
        return tuple(sorted(names, key=lambda name: name not in tables))

    @cached_property
    def co_partitioned(self) -> tuple[set[str], ...]:
        """The topics and edges whose equal keys have to meet in one task: those of each join, and those that lead into
        one store."""
        return tuple(
            {name for parent in node.parents for name in _inputs_of(parent)}
            for node in self.nodes
            if node.is_join or node.stores
        )

    @cached_property
    def sought_topics(self) -> frozenset[str]:
        """Those whose keys rows behind a repartition look for, in the partitions of Kafka's default partitioner."""
        by_key = {edge.name for edge in self.edges_in if not isinstance(edge.node, ResponseRepartitionNode)}
        return frozenset(
            source.topic
            for source in self.sources
            for together in self.co_partitioned
            if source.topic in together and together & by_key
        )

    @cached_property
    def stored_shape(self) -> list[Any]:
        """What the data depends on that the sub-topology stores and sends: schemas, serdes, windows and columns of
        foreign keys, as JSON."""
        return [
            [[store.name, _columns(store.key), _columns(store.value), store.kind] for store in self.stores],
            [[edge.name, _columns(edge.schema)] for edge in (*self.edges_in, *self.edges_out)],
            [
                [source.topic, repr(source.key_serde), repr(source.value_serde), _columns(source.record.columns)]
                for source in self.sources
            ],
            [
                *(
                    [node.store.name, str(node.windows)]
                    for node in self.nodes
                    if isinstance(node, (AggregateNode, SuppressNode))
                ),
                *([node.left.store.name, str(node.windows)] for node in self.nodes if isinstance(node, StreamJoinNode)),
                *([node.name, node.foreign_columns] for node in self.nodes if isinstance(node, SubscriptionSendNode)),
                *(
                    [node.name, node.send.foreign_columns]
                    for node in self.nodes
                    if isinstance(node, SubscriptionJoinNode)
                ),
            ],
        ]

    @cached_property
    def stored_name(self) -> str:
        """Its name and a fingerprint of ``stored_shape``: what folders, changelog rows and blobs carry (PROTOCOL 23).

        Operators that are added elsewhere change neither, its number may.
        """
        return f"{quote(self.name, safe='')}-{_digest(self.stored_shape, 4)}"

    @cached_property
    def sinks(self) -> tuple[TableSinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, TableSinkNode))

    @cached_property
    def finishers(self) -> Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]]:
        """By store: state columns to finished values; other columns of the frame stay as they are."""
        return {node.store.name: node.fold.finish for node in self.nodes if isinstance(node, AggregateNode)}


@dataclass(eq=False)
class Topology:
    """What a builder described, checked and split. Equal programs give equal fingerprints in every process."""

    nodes: tuple[Node, ...]
    """All nodes in the order they were made."""
    sub_topologies: tuple[SubTopology, ...] = field(init=False)
    edges: tuple[Edge, ...] = field(init=False)

    def __post_init__(self) -> None:
        _check_names(self.nodes)
        self.sub_topologies, self.edges = _split(self.nodes)
        if not self.sub_topologies:
            raise TopologyError("the topology reads nothing; begin with builder.stream(...) or builder.table(...)")

    def topics(self) -> tuple[str, ...]:
        """Source topics, in the order they were declared."""
        return tuple(node.topic for node in self.nodes if isinstance(node, SourceNode))

    @cached_property
    def global_tables(self) -> tuple[GlobalTableNode, ...]:
        """Tables of whole topics, which every worker has."""
        return tuple(node for node in self.nodes if isinstance(node, GlobalTableNode))

    def serdes(self) -> tuple[Serde, ...]:
        """Those of all topics."""
        sources = [
            *(node for node in self.nodes if isinstance(node, SourceNode)),
            *(table.source for table in self.global_tables),
        ]
        return tuple(serde for source in sources for serde in (source.key_serde, source.value_serde))

    def source(self, topic: str) -> SourceNode:
        """The source of ``topic``; raises ``KeyError`` when the topology does not read it."""
        return {node.topic: node for node in self.nodes if isinstance(node, SourceNode)}[topic]

    def table_specs(self) -> tuple[TableSpec, ...]:
        """Every output table: key columns, window bounds, value columns, then ``_ts _epoch _seq _deleted``."""
        return tuple(table_spec(node) for node in self.nodes if isinstance(node, TableSinkNode))

    def partition_counts(self, source_counts: Mapping[str, int]) -> dict[int, int]:
        """Tasks by sub-topology index, from the topics' partition counts.

        As many as the widest topic that is read has partitions. Behind repartitions alone, as many as they ask for,
        else as the widest of what flows into them.

        Raises:
            CoPartitioningError: What a join brings together differs in its counts.
        """
        given = {
            sub_topology.index: {source.topic: source_counts[source.topic] for source in sub_topology.sources}
            | {edge.name: edge.node.partitions for edge in sub_topology.edges_in if edge.node.partitions}
            for sub_topology in self.sub_topologies
        }
        counts = {index: max(widths.values()) for index, widths in given.items() if widths}
        for sub_topology in self.sub_topologies:
            index = sub_topology.index
            if index not in counts:
                counts[index] = max(counts[edge.source] for edge in sub_topology.keyed_edges if edge.source in counts)
            for together in sub_topology.co_partitioned:
                found = {name: given[index].get(name, counts[index]) for name in sorted(together)}
                if len(set(found.values())) > 1:
                    raise CoPartitioningError(sub_topology.name, found)
        return dict(sorted(counts.items()))

    def task_name(self, task: TaskId) -> str:
        """What a task is called where data is stored: ``flights-9f86d081_3`` for ``0_3``."""
        return f"{self.sub_topologies[task.sub_topology].stored_name}_{task.partition}"

    def task_of(self, name: str) -> TaskId:
        """The inverse of ``task_name``; raises ``KeyError`` for a task of another topology."""
        stored_name, _, partition = name.rpartition("_")
        indices = {sub_topology.stored_name: sub_topology.index for sub_topology in self.sub_topologies}
        return TaskId(indices[stored_name], int(partition))

    @cached_property
    def committed_form(self) -> CommittedTopology:
        """What a commit row keeps of the topology."""
        return CommittedTopology(
            stores={
                sub_topology.stored_name: tuple(store.name for store in sub_topology.stores)
                for sub_topology in self.sub_topologies
            },
            outputs=tuple(spec.name for spec in self.table_specs()),
            settings={store: settings for node in self.nodes for store, settings in node.settings.items()},
        )

    def finish(self, store: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of a store's state as users see them: state columns replaced by finished values.

        Raises:
            KeyError: No store has that name.
        """
        for sub_topology in self.sub_topologies:
            if store in {spec.name for spec in sub_topology.stores}:
                finisher = sub_topology.finishers.get(store)
                return finisher(rows) if finisher else rows
        raise KeyError(store)

    def describe(self) -> str:
        """Sub-topologies, nodes, stores and sinks as text, in Kafka Streams' form."""
        return describe(self.sub_topologies, self.global_tables)

    @cached_property
    def fingerprint(self) -> str:
        """Names the structure: nodes and how they are joined, schemas, stores, windows; not the code of functions."""
        return _digest(
            [
                [
                    [sub_topology.stored_shape, [_joined(node) for node in sub_topology.nodes]]
                    for sub_topology in self.sub_topologies
                ],
                [[spec.name, _columns(spec.schema), list(spec.keys)] for spec in self.table_specs()],
            ],
            16,
        )


def table_spec(sink: TableSinkNode) -> TableSpec:
    """The Delta table that ``sink`` writes."""
    schema = pl.Schema(
        {**sink.record.columns, "_ts": TIME, "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
    )
    return TableSpec(name=sink.table, schema=schema, keys=tuple(sink.record.key_columns) if sink.is_updates else ())


def _digest(shape: list[Any], size: int) -> str:
    return hashlib.blake2b(msgspec.json.encode(shape), digest_size=size).hexdigest()


def _joined(node: Node) -> list[Any]:
    return [
        node.name,
        node.parent.name if node.parent else None,
        list(node.store_names),
        *(other.name for other in node.others),
    ]


def _columns(schema: pl.Schema) -> list[list[str]]:
    return [[name, str(dtype)] for name, dtype in schema.items()]


def _check_names(nodes: Iterable[Node]) -> None:
    for what, names, way_out in (
        (
            "topic",
            [
                *(node.topic for node in nodes if isinstance(node, SourceNode)),
                *(node.source.topic for node in nodes if isinstance(node, GlobalTableNode)),
            ],
            "read it once and use the stream twice",
        ),
        (
            "store",
            [
                name
                for node in nodes
                for name in node.store_names
                if name not in {store.name for store in node.foreign_stores}
            ]
            + [node.store.name for node in nodes if isinstance(node, GlobalTableNode)],
            "give each its own name",
        ),
        ("table", [node.table for node in nodes if isinstance(node, TableSinkNode)], "give each its own name"),
    ):
        for name in names:
            if names.count(name) > 1:
                raise TopologyError(f"the {what} {name!r} is declared {names.count(name)} times; {way_out}")


def _inputs_of(node: Node, *, under_own_key: bool = False) -> set[str]:
    """The topics and edges whose rows reach ``node`` in memory; with ``under_own_key`` only those that no map or new
    key on the way may have given another one."""
    if under_own_key and isinstance(node, MapNode | SelectKeyNode):
        return set()
    if isinstance(node, SourceNode):
        return {node.topic}
    if isinstance(node, RepartitionNode):
        return {node.name}
    return {name for parent in node.parents for name in _inputs_of(parent, under_own_key=under_own_key)}


def _split(nodes: tuple[Node, ...]) -> tuple[tuple[SubTopology, ...], tuple[Edge, ...]]:
    """Sub-topologies in an order where edges go from a lower index to a higher one, unless they lead back."""
    heads: list[Node] = [node for node in nodes if isinstance(node, SourceNode)]
    groups: list[tuple[set[Node], set[Node]]] = []
    for head in heads:  # grows by the repartitions met on the way
        if not any(head in entrances for entrances, _ in groups):
            entrances, members = _joined_to(head)
            groups.append((entrances, members))
            heads += [node for node in nodes if isinstance(node, RepartitionNode) and node in members]
    groups = _writers_first(groups)
    edges = tuple(
        Edge(name=node.name, source=source, target=target, node=node, met=_met(node, members_of_target))
        for source, (_, members) in enumerate(groups)
        for node in nodes
        if isinstance(node, RepartitionNode) and node in members
        for target, (entrances, members_of_target) in enumerate(groups)
        if node in entrances
    )
    return tuple(
        SubTopology(
            index=index,
            nodes=tuple(node for node in nodes if node in members),
            edges_in=tuple(edge for edge in edges if edge.target == index),
            edges_out=tuple(edge for edge in edges if edge.source == index),
        )
        for index, (_, members) in enumerate(groups)
    ), edges


def _met(entrance: RepartitionNode, members: Iterable[Node]) -> SourceNode | None:
    """The first topic whose keys come together with those of ``entrance``, be it by way of others."""
    meetings = [
        {name for parent in node.parents for name in _inputs_of(parent, under_own_key=True)}
        for node in members
        if node.others
    ]
    known = {entrance.name}
    while found := set().union(*(names for names in meetings if names & known)) - known:
        known |= found
    sources = {node.topic: node for node in members if isinstance(node, SourceNode)}
    return next((sources[name] for name in sorted(known) if name in sources), None)


def _joined_to(head: Node) -> tuple[set[Node], set[Node]]:
    """The sources and repartitions that lead into what is joined in memory to ``head``, and the nodes in there.

    A repartition that leads out is one of the nodes, one that leads in is not.
    """
    entrances, members = {head}, set[Node]()
    waiting: list[Node] = [head] if isinstance(head, SourceNode) else list(head.children)
    while waiting:
        node = waiting.pop()
        if node in members:
            continue
        members.add(node)
        if isinstance(node, SourceNode):
            entrances.add(node)
        if not isinstance(node, RepartitionNode):
            waiting += node.children
        for parent in node.parents:
            if isinstance(parent, RepartitionNode):
                entrances.add(parent)
                waiting += parent.children
            else:
                waiting.append(parent)
    return entrances, members


def _writers_first(groups: list[tuple[set[Node], set[Node]]]) -> list[tuple[set[Node], set[Node]]]:
    """In the order given, but behind those whose repartitions lead in, messages aside; where they lead in a circle, the
    first goes."""
    waiting, ordered = list(groups), list[tuple[set[Node], set[Node]]]()
    while waiting:
        ready = (
            group for group in waiting if not any(_feeds(other[1], group[0]) for other in waiting if other is not group)
        )
        ordered.append(next(ready, waiting[0]))
        waiting.remove(ordered[-1])
    return ordered


def _feeds(members: set[Node], entrances: set[Node]) -> bool:
    return any(isinstance(node, RepartitionNode) and not node.is_message for node in members & entrances)
