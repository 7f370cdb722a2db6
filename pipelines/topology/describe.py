"""A topology as text: what Kafka Streams' ``TopologyDescription`` prints, with Delta tables as sinks; after it, which
topics are both written and read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode
from weir.pipelines.topology.global_tables import GlobalTableNode
from weir.pipelines.topology.java_order import TreeSet, in_hash_order
from weir.pipelines.topology.joins import JoinBufferNode, StreamJoinNode, TableTableJoinNode, bases
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ExpectNode,
    FilterNode,
    KeptTableNode,
    MapValuesNode,
    Node,
    RepartitionNode,
    SeveralTopicsNode,
    SourceNode,
    TableSinkNode,
)
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.types import StoreSpec


@dataclass(eq=False)
class _Processor:
    """A node of Kafka Streams; what is one node here may be several there."""

    kind: str
    name: str
    detail: str
    parents: Sequence[_Processor] = ()
    size: int = 1
    """How many nodes are below it, itself included; one that is reached in several ways counts as often."""
    before: TreeSet[_Processor] = field(default_factory=lambda: TreeSet(_rank))
    after: TreeSet[_Processor] = field(default_factory=lambda: TreeSet(_rank))

    def grow(self, by: int) -> None:
        self.size += by
        for each in self.before:
            each.grow(by)

    def lines(self) -> list[str]:
        after, before = (", ".join(each.name for each in those) or "none" for those in (self.after, self.before))
        return [
            f"    {self.kind}: {self.name} ({self.detail})",
            *([f"      --> {after}"] if self.kind != "Sink" else []),
            *([f"      <-- {before}"] if self.kind != "Source" else []),
        ]


def _rank(processor: _Processor) -> tuple[int, str]:
    return -processor.size, processor.name


def describe(
    nodes: Sequence[Node], sub_topologies: Iterable[SubTopology], global_tables: Iterable[GlobalTableNode]
) -> str:
    """Sub-topologies and global tables by number, each node with successors (``-->``) and predecessors (``<--``)."""
    numbered = {sub_topology.index: sub_topology for sub_topology in sub_topologies}
    tables = list(global_tables)
    rest = iter(tables)
    lines = []
    for number in range(len(numbered) + len(tables)):
        if number in numbered:
            lines += [f"  Sub-topology: {number}", *_sub_topology(nodes, numbered[number]), ""]
        else:
            lines += [f"  Sub-topology: {number} for global store (will not generate tasks)", *_global(next(rest))]
    lines += _written_and_read(nodes, numbered.values(), tables)
    return "Topologies:\n " + "".join(f"{line}\n" for line in lines)


def _written_and_read(
    nodes: Sequence[Node], sub_topologies: Iterable[SubTopology], tables: Iterable[GlobalTableNode]
) -> list[str]:
    """The topics that the program writes and reads; a loop is one whose records lead to more records in it."""
    place = {node: f"sub-topology {each.index}" for each in sub_topologies for node in each.nodes}
    writers: dict[str, list[Node]] = {}
    for node in nodes:
        if (topic := _written_topic(node)) is not None:
            writers.setdefault(topic, []).append(node)
    sources = {node.topic: node for node in nodes if isinstance(node, SourceNode) and node in place}
    readers = {table.source.topic: table.source for table in tables} | sources
    found = []
    for topic in [topic for topic in writers if topic in readers]:
        reader, shown = readers[topic], [f"{sink.name} ({place[sink]})" for sink in writers[topic]]
        is_loop = not _reached(reader, sources).isdisjoint(writers[topic])
        found.append(
            f"    {topic}{', a loop' if is_loop else ''}: {' and '.join(shown)} --> "
            f"{reader.name} ({place.get(reader, 'global store')})"
        )
    return ["  Topics that are written and read here:", *found, ""] if found else []


def _written_topic(node: Node) -> str | None:
    """The topic that a sink writes; None if records name it, or if it writes none."""
    if isinstance(node, TableSinkNode) and isinstance(node.sink, KafkaTopic) and isinstance(node.sink.topic, str):
        return node.sink.topic
    return None


def _reached(start: SourceNode, sources: Mapping[str, SourceNode]) -> set[Node]:
    """The nodes that records of a source lead to, also by way of topics that are written and read here."""
    found, waiting = set[Node](), list[Node]([start])
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        waiting += node.children
        if (topic := _written_topic(node)) is not None and topic in sources:
            waiting.append(sources[topic])
    return found


def _global(table: GlobalTableNode) -> list[str]:
    source = _source(table.source.name, [table.source.topic])
    processors = [source, _processor(table.name, [table.store.name], [source])]
    _connect(processors)
    return [line for each in processors for line in each.lines()]


def _sub_topology(nodes: Sequence[Node], sub_topology: SubTopology) -> list[str]:
    read = {edge.node for edge in sub_topology.edges_in}
    own = {*sub_topology.nodes}
    processors: list[_Processor] = []
    ends: dict[Node, Sequence[_Processor]] = {}
    for node in nodes:
        if node in own:
            added, ends[node] = _processors(node, ends)
            processors += added
        if isinstance(node, RepartitionNode) and node in read:
            names = node.shown_names
            processors.append(_source(names.source, [names.topic]))
            ends[node] = processors[-1:]
    _connect(processors)
    return [line for each in sorted(processors, key=_rank) for line in each.lines()]


def _connect(processors: Sequence[_Processor]) -> None:
    """Fill ``before`` and ``after`` as Kafka Streams does, which gives their order."""
    for each in in_hash_order(processors, lambda processor: processor.name):
        for parent in each.parents:
            each.before.add(parent)
            parent.after.add(each)
            parent.grow(each.size)


def _processors(
    node: Node, ends: Mapping[Node, Sequence[_Processor]]
) -> tuple[Sequence[_Processor], Sequence[_Processor]]:
    """What a node is in Kafka Streams, parents before children, and those of them that forward its rows; ``ends`` has
    the latter for the nodes before."""
    parents = [end for parent in dict.fromkeys(node.parents) if parent not in node.looked_up for end in ends[parent]]
    match node:
        case SourceNode() if any(isinstance(child, SeveralTopicsNode) for child in node.children):
            return [], []
        case SourceNode():
            shown = [_source(node.name, [node.topic])]
        case SeveralTopicsNode():
            shown = [_several(node)]
        case RepartitionNode():
            shown = _repartition(node, parents)
        case TableSinkNode():
            shown = [_Processor("Sink", node.name, str(node.sink or f"table: {node.table}"), parents)]
        case JoinBufferNode():
            return [], parents  # shown with the join that follows
        case KeptTableNode():
            return [], parents  # shown with the filter, mapping or expectation before
        case FilterNode() | MapValuesNode() | ExpectNode():
            kept = (child for child in node.children if isinstance(child, KeptTableNode))
            shown = [_processor(node.name, [store.name for child in kept for store in child.stores], parents)]
        case StreamJoinNode():
            shown = _stream_join(node, ends)
        case TableTableJoinNode():
            shown = _table_table_join(node, ends)
        case CogroupNode():
            stores = node.aggregation.store_names
            names = zip(node.parents, node.aggregate_names, strict=True)
            shown = [_processor(name, stores, ends[parent]) for parent, name in names]
            return shown, shown
        case AggregateNode(parent=CogroupNode()):
            shown = [_processor(node.name, [], parents)]
        case SubscriptionJoinNode():
            shown = _subscription_join(node, ends)
            return shown, shown[1:]
        case ResponseJoinNode():
            resolver = _processor(node.resolver_name, _names(node.foreign_stores), parents)
            shown = [resolver, _processor(node.name, node.store_names, [resolver])]
        case _:
            shown = [_processor(node.name, node.store_names, parents)]
    return shown, shown[-1:]


def _repartition(node: RepartitionNode, parents: Sequence[_Processor]) -> list[_Processor]:
    """A repartition where it is written."""
    names, shown = node.shown_names, []
    if names.filter is not None:
        shown = parents = [_processor(names.filter, [], parents)]
    return [*shown, _Processor("Sink", names.sink, f"topic: {names.topic}", parents)]


def _stream_join(node: StreamJoinNode, ends: Mapping[Node, Sequence[_Processor]]) -> list[_Processor]:
    stores, held = [side.store.name for side in (node.left, node.right)], [node.held.name] if node.held else []
    windowed = [
        _processor(name, [store], ends[parent])
        for name, store, parent in zip(node.windowed_names, stores, node.parents, strict=True)
    ]
    joins = [
        _processor(name, [other, *held], [side])
        for name, other, side in zip(node.join_names, reversed(stores), windowed, strict=True)
    ]
    return [*windowed, *joins, _processor(node.name, [], joins)]


def _table_table_join(node: TableTableJoinNode, ends: Mapping[Node, Sequence[_Processor]]) -> list[_Processor]:
    left, right = node.parents
    sides = [
        _processor(name, _names(base.store for base in bases(other)), ends[parent])
        for name, parent, other in ((node.this_name, left, right), (node.other_name, right, left))
    ]
    return [*sides, _processor(node.name, [], sides)]


def _subscription_join(node: SubscriptionJoinNode, ends: Mapping[Node, Sequence[_Processor]]) -> list[_Processor]:
    """Receives subscriptions, answers them, and reports the table's updates to all that subscribe."""
    (right,) = node.others
    receive = _processor(node.receive_name, node.store_names, ends[node.parent])
    answer = _processor(node.subscription_name, _names(base.store for base in bases(right)), [receive])
    return [receive, answer, _processor(node.name, node.store_names, ends[right])]


def _source(name: str, topics: Iterable[str]) -> _Processor:
    return _Processor("Source", name, f"topics: [{_listed(topics)}]")


def _several(node: SeveralTopicsNode) -> _Processor:
    """Topics of a list; a pattern as it is in the program."""
    patterns = [source.declared for source in node.sources if source.pattern is not None]
    if not patterns:
        return _source(node.name, [source.topic for source in node.sources])
    named = [source.topic for source in node.sources if source.pattern is None]
    return _Processor("Source", node.name, f"topics: {', '.join([*named, *patterns])}")


def _processor(name: str, stores: Iterable[str], parents: Sequence[_Processor]) -> _Processor:
    return _Processor("Processor", name, f"stores: [{_listed(stores)}]", parents)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(in_hash_order(names, str))


def _names(stores: Iterable[StoreSpec]) -> list[str]:
    return [store.name for store in stores]
