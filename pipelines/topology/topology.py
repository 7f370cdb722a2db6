"""The topology: nodes split into sub-topologies, with output tables, edges and partition counts.

A sub-topology is what is joined in memory (``sub_topology``); two of them meet only in a repartition edge.
``weir.pipelines.tasks`` executes them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, cast

import polars as pl

from weir.pipelines.errors import CoPartitioningError, TopologyError
from weir.pipelines.serdes.headers import HEADERS, HEADERS_TYPE
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.shapes import TIME
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.sinks.sink import Sink
from weir.pipelines.store_options import StoreOptions
from weir.pipelines.topology.describe import describe
from weir.pipelines.topology.digests import digest
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.lineage import Lineages, is_made_up, unused_name
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ChildNode,
    ExpectNode,
    Node,
    RepartitionNode,
    SourceNode,
    TableNode,
    TableSinkNode,
)
from weir.pipelines.topology.patterns import check_patterns, matches, open_patterns, read_topics
from weir.pipelines.topology.processors import ProcessorNode, SharedStore, sharing
from weir.pipelines.topology.rebuilding import (
    keeper_of,
    kept_ms,
    needs_all_records,
    rebuilding_nodes,
    source_of,
    why_not_rebuilt,
)
from weir.pipelines.topology.sub_topology import Edge, SubTopology, columns_of, inputs_of
from weir.state.commit.outbox import AT, BYTES, outbox_name
from weir.state.commit.record import CommittedTopology, Lineage
from weir.state.commit.upserts import updates_name
from weir.state.types import StoreSpec, TableSpec, TaskId


@dataclass(eq=False)
class Topology:
    """What a builder described, checked and split. Equal programs have equal fingerprints in every process."""

    nodes: tuple[Node, ...]
    """All nodes, in the order in which they were made."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The names under which stores and edges go on from another program, by the made-up name that this one has for
    them; only those that differ."""
    dead_letters: KafkaTopic | None = None
    """Where dead letters go to besides their table."""
    read: tuple[str, ...] = ()
    """Where it has patterns, the topics that it reads, in the order that they have at equal merge times; empty as long
    as they are not known."""
    keeps_times: bool = False
    """Whether outboxes say by which time each row belongs to a day."""
    program: Topology = field(init=False, repr=False)
    """The topology as the program describes it; itself if ``names`` and ``read`` are empty."""
    sub_topologies: tuple[SubTopology, ...] = field(init=False)
    """Those that write a repartition before those that read it; their numbers have another order."""
    edges: tuple[Edge, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.program = self
        self.nodes = _with_distinct_names(self.nodes)
        _check_names(self.nodes)
        check_patterns(self.nodes)
        _check_rebuilt(self.nodes)
        self.sub_topologies, self.edges = _split(self.nodes)
        if not self.sub_topologies:
            raise TopologyError("the topology reads nothing; begin with builder.stream(...) or builder.table(...)")
        _check_memory(self.sub_topologies)

    def rebuilding(self, store: str) -> Topology:
        """The part of it that computes ``store`` again, which is rebuilt if it is lost."""
        return Topology(rebuilding_nodes(keeper_of(self.nodes, store)))

    def topic_of(self, store: str) -> str:
        """The topic that ``rebuilding`` reads."""
        return source_of(keeper_of(self.nodes, store)).topic

    def needs_all_records(self, store: StoreSpec) -> bool:
        """Whether the newest record of each key does not give the rows of ``store`` again, as older ones count too."""
        return needs_all_records(keeper_of(self.nodes, store.name), store)

    def kept_ms(self, store: StoreSpec) -> int | None:
        """How long after a record's time nothing in ``store`` depends on the record any more; None for ever."""
        return kept_ms(keeper_of(self.nodes, store.name), store)

    def under(self, names: Mapping[str, str], topics: Iterable[str] = ()) -> Topology:
        """The same program with its made-up names replaced, of which ``names`` holds those that differ, and its
        patterns by those of ``topics`` that they match; ``topics`` are in the order of ``read``.

        Raises:
            TopologyError: Two patterns match one topic.
        """
        read = tuple(topics) if self.program.open_patterns else ()
        if not names and not read and not self.keeps_times:
            return self.program
        nodes = read_topics(_renamed(self.program.nodes, names), read)
        for node in nodes:
            if isinstance(node, TableSinkNode):
                node.keeps_times = self.keeps_times
        bound = Topology(nodes, names, self.dead_letters, read, self.keeps_times)
        bound.program = self.program
        return bound

    def keeping_times(self) -> Topology:
        """The same, with outboxes that say by which time each row belongs to a day, as backfills have them."""
        found = copy.copy(self)
        found.keeps_times = True
        return found.under(self.names, self.read)

    @cached_property
    def open_patterns(self) -> tuple[str, ...]:
        """The patterns of which no topic is known."""
        return open_patterns(self.nodes)

    def matched(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Those of ``topics`` that the program's patterns match, sorted."""
        sources = [node for node in self.program.nodes if isinstance(node, SourceNode)]
        return tuple(sorted(topic for topic in topics if any(matches(source, topic) for source in sources)))

    def reading(self, topics: Iterable[str], before: Sequence[str]) -> tuple[str, ...]:
        """The topics that the program reads of those there are, in the order of ``read``: ``before`` is that of the
        newest commit, which stays; then come the others."""
        bound = self.program.under({}, self.matched(topics))
        places = {topic: place for place, topic in enumerate(before)}
        known = [topic for topic in bound._as_declared if topic not in bound.open_patterns]
        return tuple(sorted(known, key=lambda topic: places.get(topic, len(places))))

    @cached_property
    def has_made_up_names(self) -> bool:
        """Whether stores or edges have names with running numbers, which are others in another program."""
        return bool(self.made_up_edges) or any(node.made_up_names for node in self.nodes)

    def stored(self, store: str) -> str:
        """The name under which a store is committed, given that name or the program's; a name that is both is taken as
        the committed one."""
        return store if store in self._stores else self.names.get(store, store)

    def shown(self, store: str) -> str:
        """The name that ``describe()`` shows for a store that is committed as ``store``."""
        return self._shown.get(store, store)

    @cached_property
    def _stores(self) -> frozenset[str]:
        return frozenset(store.name for sub_topology in self.sub_topologies for store in sub_topology.stores)

    @cached_property
    def _shown(self) -> Mapping[str, str]:
        return {stored: name for name, stored in self.names.items()}

    def topics(self) -> tuple[str, ...]:
        """Source topics, in the order in which they were declared."""
        return tuple(node.topic for node in self.nodes if isinstance(node, SourceNode))

    @cached_property
    def topic_ranks(self) -> Mapping[str, int]:
        """The order of the source topics at equal merge times: that of ``read``, or else first those that meet others
        as tables that joins look up, in their own sub-topology or else, wherever their rows lead, then all as
        declared."""
        topics = dict.fromkeys([*self.read, *self._as_declared])
        return {topic: rank for rank, topic in enumerate(topics)}

    @cached_property
    def _as_declared(self) -> tuple[str, ...]:
        return tuple(sorted(self.topics(), key=lambda topic: not self._is_looked_up(topic)))

    def _is_looked_up(self, topic: str) -> bool:
        own = next(each for each in self.sub_topologies if topic in each.inputs)
        if len(set(own.ranks.values())) > 1:
            return topic in own.looked_up
        reached = {topic}
        for edge in self.edges:
            if not edge.leads_back and any(reached & inputs_of(parent) for parent in edge.node.parents):
                reached.add(edge.name)
        meetings = [
            name in sub_topology.looked_up
            for sub_topology in self.sub_topologies
            if len(set(sub_topology.ranks.values())) > 1
            for name in reached & set(sub_topology.inputs)
        ]
        return bool(meetings) and all(meetings)

    @cached_property
    def global_tables(self) -> tuple[GlobalTableNode, ...]:
        """Tables of whole topics, which every executor has."""
        return tuple(node for node in self.nodes if isinstance(node, GlobalTableNode))

    def serdes(self) -> tuple[Serde, ...]:
        """The serdes of all topics, those that are written included."""
        sources = [
            *(node for node in self.nodes if isinstance(node, SourceNode)),
            *(table.source for table in self.global_tables),
        ]
        written = (serde for sink in self.outside_sinks for serde in sink.serdes)
        return (*(serde for source in sources for serde in (source.key_serde, source.value_serde)), *written)

    def sub_topology(self, index: int) -> SubTopology:
        """The sub-topology with this number, as ``describe()`` shows it; raises ``KeyError`` when none has it."""
        return self._by_index[index]

    @cached_property
    def _by_index(self) -> Mapping[int, SubTopology]:
        return {sub_topology.index: sub_topology for sub_topology in self.sub_topologies}

    def source(self, topic: str) -> SourceNode:
        """The source of ``topic``; raises ``KeyError`` when the topology does not read it."""
        return {node.topic: node for node in self.nodes if isinstance(node, SourceNode)}[topic]

    @cached_property
    def expectations(self) -> Mapping[str, ExpectNode]:
        """By the names that the program gave them."""
        return {node.expectation: node for node in self.nodes if isinstance(node, ExpectNode)}

    @cached_property
    def sinks(self) -> tuple[TableSinkNode, ...]:
        """The outputs, as declared."""
        return tuple(node for node in self.nodes if isinstance(node, TableSinkNode))

    @property
    def outside_sinks(self) -> tuple[Sink, ...]:
        """Where rows leave the warehouse for."""
        found = [node.sink for node in self.sinks if node.sink is not None]
        return (*found, self.dead_letters) if self.dead_letters else tuple(found)

    @property
    def topics_written(self) -> list[str]:
        """The topics that sinks write to, sorted; not those that records name themselves."""
        topics = [sink.topic for sink in self.outside_sinks if isinstance(sink, KafkaTopic)]
        return sorted({topic for topic in topics if isinstance(topic, str)})

    def table_specs(self) -> tuple[TableSpec, ...]:
        """The table that commits write for each output in Delta: key columns, window bounds, value columns, then
        ``_ts _epoch _seq _deleted``."""
        return tuple(table_spec(sink) for sink in self.sinks if sink.sink is None)

    def outbox_specs(self) -> tuple[TableSpec, ...]:
        """The outbox of each sink outside the warehouse."""
        outboxes = tuple(table_spec(sink) for sink in self.sinks if sink.sink is not None)
        return (*outboxes, outbox_spec(self.dead_letters)) if self.dead_letters else outboxes

    def partition_counts(self, source_counts: Mapping[str, int]) -> dict[int, int]:
        """Tasks by sub-topology index, from the topics' partition counts.

        A sub-topology has as many tasks as the widest topic that it reads has partitions. One that reads only
        repartitions has as many as they ask for, or else as many as the widest sub-topology that writes them.

        Raises:
            CoPartitioningError: Topics or edges that a join brings together have different counts.
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
            for node, together in sub_topology.co_partitioned.items():
                found = {name: given[index].get(name, counts[index]) for name in sorted(together)}
                if len(set(found.values())) > 1:
                    readers: dict[str, Node] = {source.topic: source for source in sub_topology.sources}
                    readers |= {edge.name: edge.node for edge in sub_topology.edges_in}
                    places = [each.place for each in (node, *(readers[name] for name in found))]
                    raise CoPartitioningError(sub_topology.name, found, places=places)
        return dict(sorted(counts.items()))

    def task_name(self, task: TaskId) -> str:
        """A task's name in stored data: ``flights_3`` for ``0_3``."""
        return f"{self.sub_topology(task.sub_topology).stored_name}_{task.partition}"

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
            outputs=(
                *(sink.table for sink in self.sinks),
                *([outbox_name(self.dead_letters.name)] if self.dead_letters else []),
            ),
            settings={store: settings for node in self.nodes for store, settings in node.settings.items()},
            identities={
                store: identity
                for sub_topology in self.sub_topologies
                for store, identity in sub_topology.identities.items()
            },
            topics=tuple(sorted(self.topic_ranks, key=self.topic_ranks.__getitem__)),
            edges=self.made_up_edges,
        )

    @cached_property
    def made_up_edges(self) -> Mapping[str, Lineage]:
        """The edges whose names are made up, and what tells them apart."""
        lineages = Lineages()
        return {edge.name: lineages.of(edge.node) for edge in self.edges if is_made_up(edge.name)}

    def finish(self, store: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of a store's state as users see them: state columns are replaced by finished values.

        Raises:
            KeyError: No store has that name.
        """
        for sub_topology in self.sub_topologies:
            if store in {spec.name for spec in sub_topology.stores}:
                finisher = sub_topology.finishers.get(store)
                return finisher(rows) if finisher else rows
        if store in {table.store.name for table in self.global_tables}:
            return rows
        raise KeyError(store)

    def describe(self) -> str:
        """Sub-topologies, nodes, stores and sinks as Kafka Streams prints them, byte for byte; after them the topics
        that the program both writes and reads, and which of these are loops.

        Three things differ: a Delta table is a sink ``(table: ...)``; a join by foreign key may use up fewer running
        numbers; and a stream with a new key that is joined with another has a repartition for each such join, where
        Kafka Streams has one. Stored names depend on the latter two.
        """
        program = self.program
        return describe(program.nodes, program.sub_topologies, program.global_tables)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the structure: nodes and how they are joined, schemas, stores, windows; not the code of
        functions. Names under which stores go on from another program are no part of it."""
        specs = [*map(table_spec, self.program.sinks), *([outbox_spec(self.dead_letters)] if self.dead_letters else [])]
        return digest(
            [
                [
                    [sub_topology.shape, [_joined(node) for node in sub_topology.nodes]]
                    for sub_topology in self.program.sub_topologies
                ],
                [[spec.name, columns_of(spec.schema), list(spec.keys), *spec.partition_by] for spec in specs],
            ],
            16,
        )


def table_spec(sink: TableSinkNode) -> TableSpec:
    """The Delta table that commits write for ``sink``."""
    if sink.sink is not None:
        spec = outbox_spec(sink.sink)
        return replace(spec, schema=pl.Schema({**spec.schema, AT: pl.Int64()})) if sink.keeps_times else spec
    schema = pl.Schema(
        {**sink.record.columns, "_ts": TIME, "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
    )
    if sink.keeps_headers:
        schema[HEADERS] = HEADERS_TYPE
    return TableSpec(
        name=sink.table if sink.refresh_ms is None else updates_name(sink.table),
        schema=schema,
        partition_by=sink.partition_by,
        has_partition_columns=True,
        keys=tuple(sink.record.key_columns) if sink.is_updates else (),
    )


def outbox_spec(sink: Sink) -> TableSpec:
    """The outbox of ``sink``."""
    schema = pl.Schema({**sink.columns, "_epoch": pl.Int64()})
    return TableSpec(name=outbox_name(sink.name), schema=schema, required=(BYTES,) if BYTES in schema else ())


def _joined(node: Node) -> list[Any]:
    return [
        node.name,
        node.parents[0].name if node.parents else None,
        list(node.store_names),
        *(other.name for other in node.parents[1:]),
    ]


def _renamed(nodes: Iterable[Node], names: Mapping[str, str]) -> tuple[Node, ...]:
    """Copies of the nodes, joined in the same way, with other made-up names."""
    copies: dict[Node, Node] = {}
    for node in nodes:  # parents before children
        copies[node] = found = copy.copy(node)
        for each in fields(node):
            value = getattr(node, each.name)
            if isinstance(value, Node):
                setattr(found, each.name, copies.get(value, value))
            elif each.name == "others":
                setattr(found, each.name, tuple(copies[other] for other in value))
        found.take_names(names)
    for node, found in copies.items():
        found.children = [cast(ChildNode, copies[child]) for child in node.children if child in copies]
    return tuple(copies.values())


def _with_distinct_names(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes, with other made-up names for stores where the program has given the same name to another."""
    made_up = {name for node in nodes for name in node.made_up_names}
    given = {store.name for node in nodes for store in node.stores if store.name not in node.made_up_names}
    if not (both := made_up & given):
        return nodes
    return _renamed(nodes, {name: unused_name(name, made_up | given) for name in both})


def _check_names(nodes: Iterable[Node]) -> None:
    claims: tuple[tuple[str, list[tuple[str, Node | SharedStore]], str], ...] = (
        (
            "topic",
            [
                *((node.topic, node) for node in nodes if isinstance(node, SourceNode)),
                *((node.source.topic, node) for node in nodes if isinstance(node, GlobalTableNode)),
            ],
            "read it once and use the stream twice",
        ),
        (
            "store",
            [
                (name, node)
                for node in nodes
                for name in node.store_names
                if name not in {store.name for store in node.foreign_stores}
                and not (isinstance(node, ProcessorNode) and name in {store.name for store in node.shared})
            ]
            + [(node.store.name, node) for node in nodes if isinstance(node, GlobalTableNode)]
            + [(store.name, store) for store in _shared_stores(nodes)],
            "give each its own name, or share one: builder.add_state_store(...), and its name in stores=[...]",
        ),
        (
            "table",
            [(node.table, node) for node in nodes if isinstance(node, TableSinkNode) and node.sink is None],
            "give each its own name",
        ),
        (
            "sink",
            [(node.sink.name, node) for node in nodes if isinstance(node, TableSinkNode) and node.sink is not None],
            'give each its own name, as in name="..."',
        ),
        (
            "repartition",
            [(node.name.removesuffix("-repartition"), node) for node in nodes if isinstance(node, RepartitionNode)],
            "each moves another stream, or to another number of partitions, so give each its own name, which is that "
            "of a repartition, a join or a store, or repartition once and use the stream twice",
        ),
    )
    for what, named, way_out in claims:
        for name, _ in named:
            places = [node.place for claimed, node in named if claimed == name]
            if len(places) > 1:
                raise TopologyError(f"the {what} {name!r} is declared {len(places)} times; {way_out}", places=places)


def _shared_stores(nodes: Iterable[Node]) -> list[SharedStore]:
    return list(dict.fromkeys(store for node in nodes if isinstance(node, ProcessorNode) for store in node.shared))


def _check_rebuilt(nodes: Iterable[Node]) -> None:
    for node in nodes:
        for store in node.stores:
            if not store.is_logged and store.is_rebuilt and (reason := why_not_rebuilt(node, store)) is not None:
                raise TopologyError(
                    f"store {store.name!r} has no changelog, and if it is lost, its topic does not give its rows "
                    f'again: {reason}; add on_loss="empty" if it may then begin empty, or leave logging=False out',
                    places=[node.place],
                )


def _check_memory(sub_topologies: Iterable[SubTopology]) -> None:
    """The stores of a task are kept together; buffers, sides of joins and batches are where the others are."""
    for sub_topology in sub_topologies:
        on_disk = {
            store.name: node
            for node in sub_topology.nodes
            for store in _with_options(node)
            if not store.is_in_memory and store.supplier is None
        }
        in_memory = [store.name for store in sub_topology.stores if store.is_in_memory]
        own = [store.name for store in sub_topology.stores if store.supplier is not None]
        if in_memory and own:
            raise TopologyError(
                f"store {in_memory[0]!r} is in memory, and {own[0]!r}, which is kept together with it, is a store of "
                "your own; leave in_memory=True out, or give the other no store of your own"
            )
        if in_memory and on_disk:
            name, node = next(iter(on_disk.items()))
            raise TopologyError(
                f"store {in_memory[0]!r} is in memory, and {name!r}, which is kept together with it, is on disk: both "
                f"are of the tasks that read {', '.join(sub_topology.inputs)}; add in_memory=True to {name!r}, or "
                "leave it out",
                places=[node.place],
            )


def _with_options(node: Node) -> Sequence[StoreSpec]:
    """The stores of a node that are on disk unless the program says otherwise."""
    if isinstance(node, ProcessorNode):
        return [each.spec() for each in node.connected if isinstance(each, StoreOptions)]
    return node.stores if isinstance(node, AggregateNode | TableNode) and not node.made_up_names else ()


def _split(nodes: tuple[Node, ...]) -> tuple[tuple[SubTopology, ...], tuple[Edge, ...]]:
    """Sub-topologies in an order in which edges lead from an earlier one to a later one, unless they lead back."""
    heads: list[Node] = [node for node in nodes if isinstance(node, SourceNode)]
    groups: list[tuple[set[Node], set[Node]]] = []
    for head in heads:  # grows by the repartitions found on the way
        if not any(head in entrances for entrances, _ in groups):
            entrances, members = _joined_to(head, nodes)
            groups.append((entrances, members))
            heads += [node for node in nodes if isinstance(node, RepartitionNode) and node in members]
    groups = _writers_first(groups)
    indices = _indices(nodes, [entrances for entrances, _ in groups])
    edges = tuple(
        Edge(
            name=node.name,
            source=indices[source],
            target=indices[target],
            leads_back=target <= source,
            node=node,
            met=_met(node, members_of_target),
        )
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
        for index, (_, members) in zip(indices, groups, strict=True)
    ), edges


def _indices(nodes: Sequence[Node], entrances: Sequence[set[Node]]) -> list[int]:
    """The number of each sub-topology in Kafka Streams, by the first that was made of what leads into it; global tables
    are numbered along with them."""
    firsts = [min(place for place, node in enumerate(nodes) if node in group) for group in entrances]
    tables = [place for place, node in enumerate(nodes) if isinstance(node, GlobalTableNode)]
    in_order = sorted([*firsts, *tables])
    return [in_order.index(place) for place in firsts]


def _met(entrance: RepartitionNode, members: Iterable[Node]) -> SourceNode | None:
    """The first topic whose keys meet those of ``entrance``, directly or through others."""
    meetings = [
        {
            name
            for each in sharing(node, members)
            for parent in each.parents
            for name in inputs_of(parent, under_own_key=True)
        }
        for node in members
        if len(node.parents) > 1 or len(sharing(node, members)) > 1
    ]
    known = {entrance.name}
    while found := set().union(*(names for names in meetings if names & known)) - known:
        known |= found
    sources = {node.topic: node for node in members if isinstance(node, SourceNode)}
    return next((sources[name] for name in sorted(known) if name in sources), None)


def _joined_to(head: Node, nodes: Sequence[Node]) -> tuple[set[Node], set[Node]]:
    """The sources and repartitions that lead into what is joined in memory with ``head``, and the nodes within, where
    processors that share a store are together.

    A repartition that leads out is one of the nodes; one that leads in is not.
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
        waiting += sharing(node, nodes)
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
    """The groups in the order given, but each after those whose repartitions lead into it, apart from messages; where
    they lead in a circle, the first comes first."""
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
