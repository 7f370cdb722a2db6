"""Sub-topologies and the edges between them: what a task keeps, reads and sends, and under which name it is stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import quote

import polars as pl

from weir.pipelines.operators.fold import FunctionFold
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.slices import SLICED, Slices
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.windows import TimeWindows
from weir.pipelines.serdes.partitioner import key_bytes, key_format
from weir.pipelines.topology.foreign_key import ResponseRepartitionNode, SubscriptionJoinNode, SubscriptionSendNode
from weir.pipelines.topology.joins import StreamJoinNode
from weir.pipelines.topology.lineage import Lineages, is_made_up
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ExpectNode,
    MapNode,
    Node,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SuppressNode,
    TableSinkNode,
)
from weir.pipelines.topology.processors import ProcessorNode, sharing
from weir.pipelines.topology.record_by_record import RecordByRecord, record_by_record
from weir.state.commit.record import StoreIdentity
from weir.state.types import StoreSpec

PRODUCERS, WEIR = "a topic's producers", "a repartition"
"""Who divides keys among tasks."""
IN_SLICES = ", in slices"
"""What is added to the windows that rows are by, where they are of slices of these, and perhaps some of windows."""


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Rows that leave one sub-topology for another because their key changed."""

    name: str
    source: int
    """Index of the sub-topology that writes."""
    target: int
    leads_back: bool
    """Whether the target comes before the source, or is the source, in ``Topology.sub_topologies``."""
    node: RepartitionNode
    met: SourceNode | None
    """The topic whose keys meet its own in the tasks that it leads to; None if it meets no topic."""

    @property
    def schema(self) -> pl.Schema:
        """Key columns, value columns, ``_ts _partition _offset _deleted``."""
        return self.node.schema

    def partition_of(self, rows: pl.DataFrame, count: int) -> pl.Series:
        """The target partition of each row, Int32 in ``[0, count)``, by Kafka's default partitioner over the key as it
        is written in the topic that it meets."""
        return self.node.partition_of(rows, count, key_bytes if self.met is None else self.met.key_bytes)


@dataclass(eq=False, kw_only=True)
class SubTopology:
    """Nodes joined in memory; sub-topology ``s`` over partition ``p`` is task ``s_p``."""

    index: int
    """Its number in Kafka Streams."""
    nodes: tuple[Node, ...]
    """Parents before children; a repartition belongs to the sub-topology that writes it."""
    edges_in: tuple[Edge, ...] = ()
    edges_out: tuple[Edge, ...] = ()

    @property
    def name(self) -> str:
        """The topic, pattern or edge that it reads first; stays the same when operators are added elsewhere."""
        return self.keyed_edges[0].name if self.keyed_edges else self.sources[0].declared

    @cached_property
    def keyed_edges(self) -> tuple[Edge, ...]:
        """Edges that carry rows with its own keys and so decide how many tasks it has; edges of messages do not."""
        return tuple(edge for edge in self.edges_in if not edge.node.is_message)

    @cached_property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @cached_property
    def stores(self) -> tuple[StoreSpec, ...]:
        """All stores, shared ones once. A suppression that is evaluated with its aggregation has none of its own."""
        return tuple({store.name: store for node in self.nodes for store in node.stores}.values())

    @cached_property
    def is_in_memory(self) -> bool:
        """Whether the stores of its tasks, which are kept together, are in memory."""
        return any(store.is_in_memory for store in self.stores)

    @cached_property
    def record_by_record(self) -> RecordByRecord | None:
        """The part of it that runs record by record; None if it has none."""
        return record_by_record(self.nodes)

    @cached_property
    def calls_functions(self) -> bool:
        """Whether it calls functions or processors of the program, of which a single call may take any time."""
        return any(isinstance(node, ProcessorNode) or _holds_function(vars(node)) for node in self.nodes)

    @cached_property
    def expectations(self) -> tuple[ExpectNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ExpectNode))

    @cached_property
    def stops_records(self) -> bool:
        """Whether an expectation puts records aside, or stops the run."""
        return any(node.on_violation in ("dead_letter", "fail") for node in self.expectations)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Topics and edges, in the order in which rows that stem from one record take their turn: those of tables
        first."""
        names = [*(edge.name for edge in self.edges_in), *(source.topic for source in self.sources)]
        return tuple(sorted(names, key=lambda name: name not in self.looked_up))

    @cached_property
    def looked_up(self) -> frozenset[str]:
        """The inputs of tables that joins look up."""
        return frozenset(name for node in self.nodes for table in node.looked_up for name in inputs_of(table))

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """By input, the place of its source in that order; all edges from one sub-topology are one source."""
        senders: dict[str, str | int] = {edge.name: edge.source for edge in self.edges_in}
        sources = list(dict.fromkeys(senders.get(name, name) for name in self.inputs))
        return {name: sources.index(senders.get(name, name)) for name in self.inputs}

    @cached_property
    def co_partitioned(self) -> Mapping[Node, set[str]]:
        """The topics and edges whose equal keys must meet in one task, by the node where they do: those of each join,
        and those that lead into one store."""
        return {
            node: set().union(*(inputs_of(each) for each in sharing(node, self.nodes)))
            for node in self.nodes
            if node.is_join or node.stores
        }

    def topics_of(self, store: str) -> tuple[str, ...]:
        """The topics by whose partitions the keys of a store are divided among the tasks, which all have as many; none
        where repartitions alone divide them."""
        together = set[str]().union(
            *(names for node, names in self.co_partitioned.items() if store in {spec.name for spec in node.stores})
        )
        return tuple(source.topic for source in self.sources if source.topic in together)

    @cached_property
    def sought_topics(self) -> frozenset[str]:
        """Topics in which repartitioned rows look for their keys, in the partitions of Kafka's default partitioner."""
        by_key = {edge.name for edge in self.edges_in if not isinstance(edge.node, ResponseRepartitionNode)}
        return frozenset(
            source.topic
            for source in self.sources
            for together in self.co_partitioned.values()
            if source.topic in together and together & by_key
        )

    @cached_property
    def identities(self) -> Mapping[str, StoreIdentity]:
        """By store, what makes it the same store in another program."""
        lineages = Lineages()
        inputs: dict[str, set[str]] = {}
        for node in self.nodes:
            for store in node.stores:
                inputs.setdefault(store.name, set()).update(inputs_of(node))
        return {
            store.name: StoreIdentity(
                kind=store.kind,
                key=types_of(store.key),
                value=types_of(store.value),
                owner=self._owner_of_keys(inputs[store.name]),
                grouping=_grouping_of(node),
                lineage=lineages.of(node) if is_made_up(store.name) else None,
            )
            for node in self.nodes
            for store in node.stores
        }

    def _owner_of_keys(self, inputs: Collection[str]) -> str:
        """Who decides to which task a key of ``inputs`` belongs, and the format of the bytes that decide."""
        met = [edge.met for edge in self.edges_in if edge.name in inputs]
        sources = [*(source for source in self.sources if source.topic in inputs), *filter(None, met)]
        formats = {type(source.key_serde).__name__ for source in sources}
        if not sources:
            formats = {key_format(edge.node.record.key.columns) for edge in self.edges_in if edge.name in inputs}
        who = (
            PRODUCERS if any(isinstance(source, SourceNode) and source.topic in inputs for source in sources) else WEIR
        )
        return f"{who}, {' and '.join(sorted(formats))} keys"

    @cached_property
    def shape(self) -> list[Any]:
        """What the fingerprint says of it beside its nodes, as JSON: stores, edges and topics with their columns."""
        return [
            [
                [store.name, columns_of(store.key), columns_of(store.value), store.kind]
                + ([] if store.is_logged else ["without a changelog"])
                for store in self.stores
            ],
            [[edge.name, columns_of(edge.schema)] for edge in (*self.edges_in, *self.edges_out)],
            [
                [source.topic, repr(source.key_serde), repr(source.value_serde), columns_of(source.record.columns)]
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
        """Its name as folders, changelog rows and blobs carry it (PROTOCOL 23)."""
        return quote(self.name, safe="")

    @cached_property
    def sinks(self) -> tuple[TableSinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, TableSinkNode))

    @cached_property
    def finishers(self) -> Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]]:
        """By store, what turns state columns into finished values; other columns of the frame stay as they are."""
        return {node.store.name: node.fold.finish for node in self.nodes if isinstance(node, AggregateNode)}

    @cached_property
    def hops(self) -> Mapping[str, Slices]:
        """By store of hopping windows, the slices that it has, or may have had, in place of them."""
        found = {node.store.name: node.hops for node in self.nodes if isinstance(node, AggregateNode)}
        return {store: hops for store, hops in found.items() if hops is not None}

    def slices_in(self, store: str, clocks: Mapping[str, int]) -> Slices | None:
        """The slices that a store has by the ``clocks`` of its task; None if all its rows are what its kind says."""
        return self.hops.get(store) if f"{SLICED}{store}" in clocks else None


def inputs_of(node: Node, *, under_own_key: bool = False) -> set[str]:
    """The topics and edges whose rows reach ``node`` in memory; with ``under_own_key``, only those whose keys no node
    on the way may have changed."""
    if under_own_key and (
        isinstance(node, MapNode | SelectKeyNode) or (isinstance(node, ProcessorNode) and not node.is_fixed_key)
    ):
        return set()
    if isinstance(node, SourceNode):
        return {node.topic}
    if isinstance(node, RepartitionNode):
        return {node.name}
    return {name for parent in node.parents for name in inputs_of(parent, under_own_key=under_own_key)}


def types_of(schema: pl.Schema) -> dict[str, str]:
    """The type of each column, as text."""
    return {name: str(dtype) for name, dtype in schema.items()}


def _grouping_of(node: Node) -> str:
    match node:
        case AggregateNode(windows=SessionWindows()):
            return "sessions"  # a session is what its rows say; another gap applies to what is read from now on
        case AggregateNode(windows=TimeWindows() | SlidingWindows() as windows):
            return str(replace(windows, grace_ms=0)) + (IN_SLICES if node.slices else "")
        case AggregateNode(windows=windows) if windows is not None:
            return str(windows)
        case SubscriptionJoinNode():
            return f"foreign key {', '.join(node.send.foreign_columns) or 'function'}"
    return ""


def columns_of(schema: pl.Schema) -> list[list[str]]:
    return [[name, str(dtype)] for name, dtype in schema.items()]


def _holds_function(value: Any) -> bool:
    match value:
        case UserFunction() | FunctionFold():
            return True
        case Node():
            return False
        case Mapping():
            return any(map(_holds_function, value.values()))
        case list() | tuple():
            return any(map(_holds_function, value))
    return is_dataclass(value) and not isinstance(value, type) and _holds_function(vars(value))
