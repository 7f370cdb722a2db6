"""A plain model of Weir: one machine that takes one record after another, through dictionaries and lists.

Written apart from the engine, from docs/operators.md and from what Kafka Streams does. All topics are complete before
the start. The machine takes their records in the order of (merge time, topic's rank, partition, offset); each passes
through every sub-topology before the next is taken. What reaches a task because of one record is ordered by source,
sending partition, the turn in which its sender took what caused it, and edge; of sources and edges, those that feed
looked-up tables come first. Within a task a record goes depth first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.pipelines.operators import window_models
from tests.pipelines.order.description import (
    FOR_EVER,
    Aggregate,
    Batch,
    Branch,
    Cogroup,
    Data,
    Expect,
    Filter,
    FlatMap,
    FlatMapValues,
    ForeignJoin,
    FromHeader,
    GlobalJoin,
    GroupTable,
    Hopping,
    Late,
    Loose,
    MapValues,
    Merge,
    Process,
    Program,
    Record,
    Repartition,
    SelectKey,
    Sessions,
    Shared,
    Sink,
    Sliding,
    Source,
    StreamJoin,
    StreamTableJoin,
    Suppress,
    TableJoin,
    ToStream,
    ToTable,
    Totals,
    Tumbling,
    Unlimited,
    Value,
    Windows,
    WithTime,
)
from tests.pipelines.order.functions import (
    CHANGE_FOLDS,
    FOLDS,
    KEYS,
    MAPPERS,
    MERGERS,
    PAIRS,
    PREDICATES,
    SPREADS,
    TIMES,
    chained,
    chained_otherwise,
    chains_joined,
    columns_joined,
    header_of,
    is_deletion,
    joined,
    summed,
    time_in,
    worded,
)
from tests.pipelines.order.model_processors import ModelProcessor, processor_of
from tests.pipelines.order.versions import Versions, Waiting

Key = Any
"""A text; with a window, (text, start, end)."""
Row = tuple[Value, int]
"""A table's row and its time."""
Fold = Callable[[Value | None, Value], Value]


def murmur2(data: bytes) -> int:
    """Kafka's, as ``org.apache.kafka.common.utils.Utils`` has it, unsigned."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for at in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if rest := data[len(data) - len(data) % 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(key: str, count: int) -> int:
    """Where Kafka's default partitioner puts a key that is written as UTF-8."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % count


class Change(NamedTuple):
    """An update of a table."""

    key: Key
    new: Value | None
    old: Value | None
    ts: int
    header: str = ""


class Sent(NamedTuple):
    """A row on an edge: of a stream, or added to or removed from a group."""

    key: Key
    value: Value
    ts: int
    change: str = ""
    """Of a group's row: "add", "remove", or "replace" with ``value`` in place of ``old``."""
    old: Value | None = None
    header: str = ""


class LateItem(NamedTuple):
    """A record that is late for a window; only a step ``Late`` takes it."""

    key: Key
    value: Value
    ts: int


@dataclass(eq=False)
class Node:
    """A step, or a part of one: an edge is a node of its own, and so is the suppression of final results."""

    place: int
    """Of its step."""
    kind: str
    parents: list[Node]
    step: Any = None
    children: list[Node] = field(default_factory=list)
    number: int = 0
    group: int = -1
    """The sub-topology that the node is in; for an edge, the one that writes."""
    target: int = -1
    """For an edge, the sub-topology that reads."""


@dataclass
class Task:
    """One sub-topology over one partition."""

    partition: int
    turn: int = -1
    state: dict[Node, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    facts: dict[int, list[tuple[Key, Value, int]]]
    """By sink of facts: the rows with their times."""
    standing: dict[int, dict[Key, tuple[Value, int]]]
    """By sink of updates: the rows that stand."""
    late_records: int


WITHOUT_STATE = (
    *("edge", "merge", "filter", "map values", "select key", "flat map", "flat map values", "with time", "branch"),
    *("from header", "global join", "facts", "updates", "late"),
)
"""Kinds of nodes for which keys need not lie where they belong."""


DROPS_NULL_KEYS = (
    *("table source", "versioned table", "to table", "aggregate", "cogroup", "window aggregate"),
    *("session aggregate", "sliding aggregate"),
)
"""Kinds of nodes that take no record without a key."""


class CircleError(Exception):
    """Sub-topologies lead back to earlier ones."""


class Machine:
    """``Machine(program).run(data)``."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: list[Node] = []
        self._ends: list[Node] = []
        """The last node of each step."""
        for place, step in enumerate(program.steps):
            self._ends.append(self._add_step(place, step))
        self.groups = self._split()
        self.counts = self._task_counts()
        self._inputs = [self._inputs_of(group) for group in range(len(self.groups))]
        self._ranks = [list(dict.fromkeys(self._source(each) for each in inputs)) for inputs in self._inputs]
        """Of each sub-topology, its sources in the order in which rows of one record are taken."""
        self.tasks = {
            (group, partition): Task(partition) for group, count in enumerate(self.counts) for partition in range(count)
        }
        self._out: list[tuple[Node, Sent]] = []
        self._called: set[Node] = set()
        """The processors that have got something in this turn."""
        self.facts: dict[int, list[tuple[Key, Value, int]]] = {place: [] for place in program.facts()}
        self.standing: dict[int, dict[Key, Row]] = {place: {} for place in program.updates()}
        self.late = 0
        self.global_rows: dict[str, dict[Key, Value]] = {topic: {} for topic in program.global_topics}

    # The graph

    def _node(self, place: int, kind: str, parents: list[Node], step: Any = None) -> Node:
        node = Node(place=place, kind=kind, parents=parents, step=step, number=len(self.nodes))
        for parent in dict.fromkeys(parents):
            parent.children.append(node)
        self.nodes.append(node)
        return node

    def _add_step(self, place: int, step: Any) -> Node:
        parents = [self._ends[parent] for parent in self.program.parents(place)]
        moved = [
            self._node(place, "edge", [self._ends[parent]], Repartition(parent))
            if self._moves(step, index) and self.program.has_new_key(parent)
            else self._ends[parent]
            for index, parent in enumerate(self.program.parents(place))
        ]
        match step:
            case Source(history=int()):
                return self._node(place, "versioned table", [], step)
            case Source():
                return self._node(place, "table source" if step.is_table else "source", [], step)
            case ToTable(history=int()):
                return self._node(place, "versioned table", moved, step)
            case StreamTableJoin(grace=int()):
                waiting = self._node(place, "waiting", moved[:1], step)
                return self._node(place, "stream-table join", [waiting, moved[1]], step)
            case Repartition():
                return self._node(place, "edge", parents, step)
            case Aggregate(windows=None):
                return self._node(place, "aggregate", moved, step)
            case Cogroup(windows=None):
                return self._node(place, "cogroup", moved, step)
            case Aggregate() | Cogroup():
                kinds = {Sessions: "session aggregate", Sliding: "sliding aggregate"}
                kind = kinds.get(type(step.windows), "window aggregate")
                node = self._node(place, kind, moved, step)
                return node if step.emits == "updates" else self._node(place, "final", [node], step)
            case GroupTable():
                select = self._node(place, "select changes", parents, step)
                edge = self._node(place, "edge", [select], Repartition(step.parent))
                return self._node(place, "aggregate changes", [edge], step)
            case Filter() | MapValues():
                kind = "filter" if isinstance(step, Filter) else "map values"
                is_table = self.program.is_table(step.parent)
                node = self._node(place, f"table {kind}" if is_table else kind, parents, step)
                return self._node(place, "kept table", [node], step) if step.is_kept else node
            case Expect():
                return self._node(
                    place, "expected table" if self.program.is_table(step.parent) else "filter", parents, step
                )
            case Shared():
                one, other = (self._node(place, "shared", [parent], step) for parent in parents)
                return self._node(place, "merge", [one, other], step)
            case Sink():
                return self._node(place, "updates" if place in self.program.updates() else "facts", parents, step)
            case ForeignJoin():
                return self._node(place, "foreign join", [], step)
            case Late():
                (node,) = parents
                return self._node(place, "late", node.parents if node.kind == "final" else parents, step)
        names = {
            FromHeader: "from header",
            SelectKey: "select key",
            FlatMap: "flat map",
            FlatMapValues: "flat map values",
            WithTime: "with time",
            Branch: "branch",
            Merge: "merge",
            ToTable: "to table",
            ToStream: "to stream",
            Suppress: "suppress",
            Process: "processor",
            Totals: "processor",
            Batch: "processor",
            Loose: "processor",
            GlobalJoin: "global join",
            StreamTableJoin: "stream-table join",
            StreamJoin: "stream join",
            TableJoin: "table join",
        }
        return self._node(place, names[type(step)], moved, step)

    @staticmethod
    def _moves(step: Any, index: int) -> bool:
        """Whether the step needs the records of that parent where their keys belong."""
        match step:
            case Aggregate() | Cogroup() | ToTable() | StreamJoin() | Batch() | Loose(how="batch"):
                return True
            case StreamTableJoin():
                return index == 0
        return False

    def _split(self) -> list[list[Node]]:
        """Sub-topologies: nodes that are joined in memory; those that write to others first."""
        chosen = {node: node for node in self.nodes}
        entered: dict[Node, Node] = {}

        def find(node: Node) -> Node:
            while chosen[node] is not node:
                node = chosen[node]
            return node

        for node in self.nodes:
            for parent in node.parents:
                near = entered.setdefault(parent, node) if parent.kind == "edge" else parent
                chosen[find(node)] = find(near)
        waiting: list[list[Node]] = []
        entrances = [node for node in self.nodes if isinstance(node.step, Source)]
        for head in entrances:
            at = head if head.kind != "edge" else entered.get(head)
            if at is None or any(at in group for group in waiting):
                continue
            waiting.append([node for node in self.nodes if find(node) is find(at) and node.kind != "foreign join"])
            entrances += [node for node in waiting[-1] if node.kind == "edge"]
        ordered: list[list[Node]] = []
        while waiting:
            ready = [
                group
                for group in waiting
                if not any(
                    node.kind == "edge" and any(child in group for child in node.children)
                    for other in waiting
                    for node in other
                )
            ]
            if not ready:
                raise CircleError
            ordered.append(ready[0])
            waiting.remove(ready[0])
        for index, group in enumerate(ordered):
            for node in group:
                node.group = index
        for node in self.nodes:
            if node.kind == "edge" and node.children:
                node.target = node.children[0].group
        return ordered

    def _edges_into(self, group: int) -> list[Node]:
        """In the order in which the engine declares them: by the sub-topology that writes."""
        edges = [node for node in self.nodes if node.kind == "edge" and node.target == group]
        return sorted(edges, key=lambda edge: (edge.group, edge.number))

    def _task_counts(self) -> list[int]:
        partitions = dict(self.program.topics)
        counts: list[int] = []
        for index, group in enumerate(self.groups):
            edges = self._edges_into(index)
            wanted = [partitions[node.step.topic] for node in group if isinstance(node.step, Source)]
            wanted += [edge.step.partitions for edge in edges if edge.step.partitions]
            counts.append(max(wanted or [counts[edge.group] for edge in edges]))
        return counts

    def check_co_partitioned(self) -> bool:
        """Whether the topics and edges that meet in a join or a store have one number of partitions."""
        partitions = dict(self.program.topics)
        for node in self.nodes:
            if node.kind in WITHOUT_STATE:
                continue
            widths = {
                partitions[head.step.topic]
                if isinstance(head.step, Source)
                else head.step.partitions or self.counts[node.group]
                for parent in (node.children[0].parents if node.kind == "shared" else node.parents)
                for head in heads(parent)
            }
            if len(widths) > 1:
                return False
        return True

    def _looked_up(self, group: int) -> set[Node]:
        """Topics and edges that feed tables which joins look up."""
        return {
            head for node in self.groups[group] if node.kind == "stream-table join" for head in heads(node.parents[1])
        }

    def _inputs_of(self, group: int) -> list[Node]:
        """Edges and topics in the order of their turns: those of looked-up tables first, then as declared."""
        topics = [node for node in self.groups[group] if isinstance(node.step, Source)]
        tables = self._looked_up(group)
        return sorted([*self._edges_into(group), *topics], key=lambda entrance: entrance not in tables)

    @staticmethod
    def _source(entrance: Node) -> Any:
        """All edges from one sub-topology are one source; a topic is one by itself."""
        return entrance.group if entrance.kind == "edge" else entrance

    def topic_ranks(self) -> dict[str, int]:
        """First the topics that meet others as looked-up tables, in their own group or else in all that their rows
        reach, then all as declared."""
        sources = [node for node in self.nodes if isinstance(node.step, Source)]

        def is_looked_up(source: Node) -> bool:
            reached, meetings = {source}, []
            for group in range(len(self.groups)):
                if source in self._inputs[group] and len(self._ranks[group]) > 1:
                    return source in self._looked_up(group)
                mine = reached & set(self._inputs[group])
                if len(self._ranks[group]) > 1:
                    meetings += [name in self._looked_up(group) for name in mine]
                reached |= {
                    edge for edge in self.groups[group] if edge.kind == "edge" and mine & set(heads(edge.parents[0]))
                }
            return bool(meetings) and all(meetings)

        order = sorted(sources, key=lambda source: not is_looked_up(source))
        return {source.step.topic: rank for rank, source in enumerate(order)}

    # The run

    def order(self, data: Data) -> list[tuple[str, int, Record]]:
        """The records of all topics that are read in the one order."""
        ranks, keyed = self.topic_ranks(), []
        for (topic, partition), records in data.items():
            if topic in self.global_rows:
                continue
            merge_time = -1
            for offset, record in enumerate(self._timed(topic, records)):
                merge_time = max(merge_time, record.ts)
                keyed.append(((merge_time, ranks[topic], partition, offset), (topic, partition, record)))
        return [record for _, record in sorted(keyed, key=lambda pair: pair[0])]

    def _timed(self, topic: str, records: list[Record]) -> list[Record]:
        """A topic's records with the times that its source gives them."""
        if not any(isinstance(step, Source) and step.topic == topic and step.is_timed for step in self.program.steps):
            return records
        return [record._replace(ts=time_in(record.value)) for record in records]

    def run(self, data: Data) -> Outcome:
        sources = {node.step.topic: node for node in self.nodes if isinstance(node.step, Source)}
        for (topic, _), records in data.items():
            if topic in self.global_rows:
                newest = {record.key: record.value for record in records}
                self.global_rows[topic] |= {key: value for key, value in newest.items() if value is not None}
        for topic, partition, record in self.order(data):
            source = sources[topic]
            arriving: dict[tuple[int, int], list[tuple[tuple[int, ...], Node, Any]]] = defaultdict(list)
            arriving[source.group, partition].append(
                ((self._ranks[source.group].index(source), 0, 0, 0), source, record)
            )
            for group in range(len(self.groups)):
                for number in range(self.counts[group]):
                    for _, entrance, item in sorted(arriving[group, number], key=lambda each: each[0]):
                        self._take(self.tasks[group, number], entrance, item, arriving)
        for node in self.nodes:
            if node.kind == "foreign join":
                self._join_by_foreign_key(node)
        standing = {place: dict(rows) for place, rows in self.standing.items()}
        return Outcome(self.facts, standing, self.late)

    def _take(self, task: Task, entrance: Node, item: Any, arriving: dict[tuple[int, int], list[Any]]) -> None:
        """One turn of a task: everything that one row causes there."""
        task.turn += 1
        self._out, self._called = [], set()
        if entrance.kind == "edge":
            self._forward(task, entrance, item)
        else:
            for forwarded in self._process(task, entrance, entrance, item):
                self._forward(task, entrance, forwarded)
        for node in self.groups[entrance.target if entrance.kind == "edge" else entrance.group]:
            if node in self._called:
                for forwarded in self._processor(task, node).due():
                    self._forward(task, node, forwarded)
        for edge, sent in self._out:
            target = partition_of(_text(sent.key), self.counts[edge.target])
            rank, place_of_edge = self._ranks[edge.target].index(edge.group), self._inputs[edge.target].index(edge)
            place = (rank, task.partition, task.turn, place_of_edge)
            arriving[edge.target, target].append((place, edge, sent))

    def _forward(self, task: Task, node: Node, item: Any) -> None:
        for child in node.children:
            if isinstance(item, LateItem) != (child.kind == "late"):
                continue
            if child.kind == "edge":
                if child.children and item.key is not None:
                    self._out.append((child, item if isinstance(item, Sent) else Sent(*item[:3], header=item.header)))
                continue
            for forwarded in self._process(task, child, node, item):
                self._forward(task, child, forwarded)

    def _process(self, task: Task, node: Node, parent: Node, item: Any) -> Iterator[Any]:
        """What a node forwards for one item of one parent; nothing is computed before it is asked for."""
        step = node.step
        match node.kind:
            case kind if item.key is None and (kind in DROPS_NULL_KEYS or isinstance(step, Batch)):
                return
            case "source":
                yield _with_header(step, item)
            case "table source" | "to table":
                item = _with_header(step, item)
                rows: dict[Key, Row] = self._state(task, node, dict)
                old, new = rows.pop(item.key, None), _table_value(step, item.value)
                if new is not None:
                    rows[item.key] = new, item.ts
                yield Change(item.key, new, old and old[0], item.ts, item.header)
            case "late":
                yield Record(*item)
            case "filter":
                if _passes(step, item.value):
                    yield item
            case "map values":
                yield item._replace(value=MAPPERS[step.how](item.value))
            case "from header":
                yield item._replace(value=Value(item.value.num, item.header))
            case "select key":
                yield item._replace(key=KEYS[step.how](item.value))
            case "flat map":
                for key, value in PAIRS[step.how](item.key, item.value):
                    yield item._replace(key=key, value=value)
            case "flat map values":
                for value in SPREADS[step.how](item.value):
                    yield item._replace(value=value)
            case "with time":
                yield item._replace(ts=TIMES[step.how](item.value, item.ts))
            case "branch":
                met = [PREDICATES[how](item.value) for how in step.hows]
                if step.which == (met.index(True) if any(met) else len(met)):
                    yield item
            case "merge":
                yield item
            case "to stream":
                if item.new is not None:
                    yield Record(item.key, item.new, item.ts, item.header)
            case "table filter":
                new, old = (value if value and _passes(step, value) else None for value in (item.new, item.old))
                yield item._replace(new=new, old=old)
            case "table map values":
                new, old = (None if value is None else MAPPERS[step.how](value) for value in (item.new, item.old))
                yield item._replace(new=new, old=old)
            case "expected table":
                if item.new is None or PREDICATES[step.how](item.new):
                    rows = self._state(task, node, dict)
                    old = rows.pop(item.key, None)
                    if item.new is not None:
                        rows[item.key] = item.new, item.ts
                    yield item._replace(old=old and old[0])
            case "shared":
                (merge,) = node.children
                known: dict[Key, Value] = self._state(task, merge, dict)
                fold = chained if node is merge.parents[0] else chained_otherwise
                known[item.key] = fold(known.get(item.key, Value(0, "")), item.value)
                yield item._replace(value=known[item.key])
            case "versioned table":
                item = _with_header(step, item)
                new = _table_value(step, item.value)
                if self._versions(task, node).put(item.key, new, item.ts):
                    yield Change(item.key, new, None, item.ts, item.header)
            case "waiting":
                yield from self._state(task, node, lambda: Waiting(step.grace)).take(item)
            case "kept table":
                kept: dict[Key, Row] = self._state(task, node, dict)
                kept.pop(item.key, None)
                if item.new is not None:
                    kept[item.key] = item.new, item.ts
                yield item
            case "facts":
                if node.parents[0].kind == "final" or isinstance(item, Change):
                    item = Record(item.key, item.new, item.ts)
                self.facts[node.place].append((item.key, item.value, item.ts))
            case "updates":
                if self.program.is_versioned(step.parent):
                    times: dict[Key, int] = self._state(task, node, dict)
                    if item.ts < times.get(item.key, item.ts):
                        return
                    times[item.key] = item.ts
                rows = self.standing[node.place]
                rows.pop(item.key, None)
                if item.new is not None:
                    rows[item.key] = item.new, item.ts
            case "aggregate":
                rows = self._state(task, node, dict)
                old = rows.get(item.key)
                new = FOLDS[step.fold](old and old[0], item.value)
                rows[item.key] = new, max(item.ts, old[1] if old else item.ts)
                yield Change(item.key, new, old and old[0], rows[item.key][1], item.header)
            case "cogroup":
                rows = self._state(task, node, dict)
                old = rows.get(item.key)
                new = _fold_of(node, parent)(old and old[0], item.value)
                rows[item.key] = new, max(item.ts, old[1] if old else item.ts)
                yield Change(item.key, new, old and old[0], rows[item.key][1])
            case "window aggregate":
                yield from self._window(task, node, item, _fold_of(node, parent))
            case "session aggregate":
                yield from self._session(task, node, item, _fold_of(node, parent))
            case "sliding aggregate":
                yield from self._slide(task, node, item, _fold_of(node, parent))
            case "final":
                yield from self._final(task, node, item)
            case "suppress":
                yield from self._suppress(task, node, item)
            case "processor":
                self._called.add(node)
                if isinstance(item, Change):
                    item = Record(item.key, item.new, item.ts)
                yield from self._processor(task, node).take(item)
            case "select changes":
                yield from self._select_changes(task, node, item)
            case "aggregate changes":
                yield from self._aggregate_changes(task, node, item)
            case "stream-table join":
                if parent is node.parents[0]:
                    row = self._row_as_of(task, node.parents[1], item.key, item.ts)
                    if row is not None or step.is_left:
                        yield item._replace(value=joined(item.value, row and row[0]))
            case "global join":
                name = item.key if step.key == "own" else KEYS[step.key](item.value)
                found = self.global_rows[step.topic].get(name)
                if found is not None or step.is_left:
                    yield item._replace(value=joined(item.value, found))
            case "stream join":
                yield from self._stream_join(task, node, parent is node.parents[0], item)
            case "table join":
                yield from self._table_join(task, node, parent is node.parents[0], item)
            case kind:
                raise NotImplementedError(kind)

    def _processor(self, task: Task, node: Node) -> ModelProcessor:
        found: ModelProcessor = self._state(task, node, lambda: processor_of(node.step))
        return found

    @staticmethod
    def _state(task: Task, node: Node, new: Callable[[], Any]) -> Any:
        return task.state.setdefault(node, new())

    def _row(self, task: Task, table: Node, key: Key) -> Row | None:
        """A table's row, through the steps that keep none."""
        match table.kind:
            case "table filter":
                row = self._row(task, table.parents[0], key)
                return row if row and _passes(table.step, row[0]) else None
            case "table map values":
                row = self._row(task, table.parents[0], key)
                return (MAPPERS[table.step.how](row[0]), row[1]) if row else None
            case "table join":
                left, right = (self._row(task, parent, key) for parent in table.parents)
                return _joined_rows(table.step.kind, left, right)
            case "suppress":
                return self._sent(task, table).get(key)
            case "window aggregate":
                state = task.state.get(table, {"time": -1, "windows": {}})
                is_open = key[2] + table.step.windows.grace > state["time"]
                return state["windows"].get(key) if is_open else None
            case "sliding aggregate":
                windows, state = table.step.windows, task.state.get(table, {"time": -1, "windows": {}})
                is_kept = key[2] + windows.difference + windows.grace + 1 >= state["time"]
                return state["windows"].get(key) if is_kept else None
            case "session aggregate":
                windows, state = table.step.windows, task.state.get(table, {"time": -1, "windows": {}})
                is_open = key[2] + windows.gap + windows.grace >= state["time"]
                return (state["windows"][key], key[2]) if is_open and key in state["windows"] else None
        found: Row | None = self._state(task, table, dict).get(key)
        return found

    @staticmethod
    def _sent(task: Task, suppressed: Node) -> dict[Key, Row]:
        """The rows that a suppression has forwarded."""
        found: dict[Key, Row] = task.state.get(suppressed, {"sent": {}})["sent"]
        return found

    def _row_as_of(self, task: Task, table: Node, key: Key, time: int) -> Row | None:
        """A table's row: the newest, or of a versioned table that of ``time``."""
        if not self.program.is_versioned(table.place):
            return self._row(task, table, key)
        if table.kind == "versioned table":
            return self._versions(task, table).as_of(key, time)
        row = self._row_as_of(task, table.parents[0], key, time)
        if table.kind == "table filter":
            return row if row and _passes(table.step, row[0]) else None
        return (MAPPERS[table.step.how](row[0]), row[1]) if row else None

    def _versions(self, task: Task, table: Node) -> Versions:
        found: Versions = self._state(task, table, lambda: Versions(table.step.history))
        return found

    # Windows

    def _window(self, task: Task, node: Node, item: Any, fold: Fold) -> Iterator[Change | LateItem]:
        state = self._state(task, node, lambda: {"time": -1, "windows": {}})
        state["time"] = max(state["time"], item.ts)
        for start, end in _windows_of(node.step.windows, item.ts):
            if not isinstance(node.step.windows, Unlimited) and end + node.step.windows.grace <= state["time"]:
                self.late += 1
                yield LateItem((item.key, start, end), item.value, item.ts)
                continue
            key = (item.key, start, end)
            old: Row | None = state["windows"].get(key)
            new = fold(old and old[0], item.value)
            state["windows"][key] = new, max(item.ts, old[1] if old else item.ts)
            yield Change(key, new, old and old[0], state["windows"][key][1])

    def _slide(self, task: Task, node: Node, item: Any, fold: Fold) -> Iterator[Change | LateItem]:
        """As the model of sliding windows says, which knows records by bits; a window folds them as they came."""
        windows = node.step.windows
        sliding_windows = lambda: window_models.Sliding(windows.difference, windows.grace)
        state = self._state(task, node, lambda: {"time": -1, "sliding": sliding_windows(), "taken": [], "windows": {}})
        state["time"] = max(state["time"], item.ts)
        taken: list[tuple[Value, Fold]] = state["taken"]
        rows: dict[Key, Row] = state["windows"]
        taken.append((item.value, fold))
        updates, late, _ = state["sliding"].take(1 << len(taken) - 1, item.key, item.ts)
        self.late += len(late)
        yield from (LateItem(bounds, item.value, item.ts) for bounds in late)
        for name, start, end, bits, at in updates:
            folded: Value | None = None
            for number, (value, its_fold) in enumerate(taken):
                if bits >> number & 1:
                    folded = its_fold(folded, value)
            assert folded is not None
            key = name, start, end
            old = rows.get(key)
            rows[key] = folded, at
            yield Change(key, folded, old and old[0], at)

    def _session(self, task: Task, node: Node, item: Any, fold: Fold) -> Iterator[Change | LateItem]:
        gap, grace = node.step.windows.gap, node.step.windows.grace
        state = self._state(task, node, lambda: {"time": -1, "windows": {}})
        state["time"] = max(state["time"], item.ts)
        open_from = state["time"] - gap - grace
        sessions: dict[Key, Value] = state["windows"]
        met = sorted(
            (end, start)
            for key, start, end in sessions
            if key == item.key and end >= max(item.ts - gap, open_from) and start <= item.ts + gap
        )
        first = min([item.ts, *(start for _, start in met)])
        last = max([item.ts, *(end for end, _ in met)])
        if last < open_from:
            self.late += 1
            yield LateItem((item.key, first, last), item.value, item.ts)
            return
        merge = _merger_of(node.step)
        merged: Value | None = None
        for end, start in met:
            value = sessions.pop((item.key, start, end))
            merged = value if merged is None else merge(merged, value)
            if (first, last) != (item.ts, item.ts):
                yield Change((item.key, start, end), None, value, end)
        key = (item.key, first, last)
        sessions[key] = fold(merged, item.value)
        yield Change(key, sessions[key], None, last)

    def _final(self, task: Task, node: Node, item: Change) -> Iterator[Change]:
        """Each window once, when it can change no more."""
        windows: Windows = node.step.windows
        delay = windows.grace + (windows.gap + 1 if isinstance(windows, Sessions) else isinstance(windows, Sliding))
        buffer = self._state(task, node, lambda: {"time": -1, "rows": {}})
        buffer["time"] = max(buffer["time"], item.ts)
        buffer["rows"][item.key] = item
        if item.new is None:
            del buffer["rows"][item.key]
        due = [key for key in buffer["rows"] if key[2] + delay <= buffer["time"]]
        for key in sorted(due, key=lambda key: (key[2], key[0].encode(), key[1])):
            yield buffer["rows"].pop(key)._replace(old=None)

    def _suppress(self, task: Task, node: Node, item: Change) -> Iterator[Change]:
        buffer = self._state(task, node, lambda: {"time": -1, "rows": {}, "sent": {}})
        buffer["time"] = max(buffer["time"], item.ts)
        rows: dict[Key, tuple[int, Change]] = buffer["rows"]
        place_of = max if node.step.restarts else min
        place = place_of(item.ts, rows[item.key][0]) if item.key in rows else item.ts
        rows[item.key] = place, item
        while rows:
            key = min(rows, key=lambda key: (rows[key][0], rows[key][1].ts, key.encode()))
            is_full = node.step.records is not None and len(rows) > node.step.records
            if not is_full and rows[key][0] + node.step.limit > buffer["time"]:
                break
            _, change = rows.pop(key)
            old: Row | None = buffer["sent"].pop(key, None)
            if change.new is not None:
                buffer["sent"][key] = change.new, change.ts
            yield change._replace(old=old and old[0])

    # Tables by another key

    def _select_changes(self, task: Task, node: Node, item: Change) -> Iterator[Sent]:
        """Takes out the row that this key brought last, and brings the new one."""
        brought = self._state(task, node, dict)
        old, new = brought.pop(item.key, None), item.new
        if new is not None:
            brought[item.key] = new
        select = KEYS[node.step.key]
        if old is not None and new is not None and select(old) == select(new):
            yield Sent(select(new), new, item.ts, "replace", old)
            return
        if old is not None:
            yield Sent(select(old), old, item.ts, "remove")
        if new is not None:
            yield Sent(select(new), new, item.ts, "add")

    def _aggregate_changes(self, task: Task, node: Node, item: Sent) -> Iterator[Change]:
        add, subtract = CHANGE_FOLDS[node.step.fold]
        rows: dict[Key, Row] = self._state(task, node, dict)
        old = rows.get(item.key)
        state = old and old[0]
        taken = item.old if item.change == "replace" else item.value if item.change == "remove" else None
        if taken is not None and state is not None:
            state = subtract(state, taken)
        if item.change != "remove":
            state = add(state, item.value)
        if state is None:
            return
        rows[item.key] = state, max(item.ts, old[1] if old else item.ts)
        yield Change(item.key, state, old and old[0], rows[item.key][1])

    # Joins

    def _stream_join(self, task: Task, node: Node, is_left: bool, item: Any) -> Iterator[Record]:
        windows, kind = node.step.windows, node.step.kind
        state = self._state(
            task, node, lambda: {"time": -1, "times": {True: -1, False: -1}, "kept": [], "held": [], "count": 0}
        )
        retention = max(1, windows.before + windows.after + windows.grace, node.step.retention)
        on = {True: windows.after, False: windows.before}
        back = {True: windows.before, False: windows.after}
        is_outer = {True: kind in ("left", "outer"), False: kind == "outer"}
        state["time"] = max(state["time"], item.ts)
        if item.ts == state["time"]:
            over = [held for held in state["held"] if held[0] + on[not held[1]] + windows.grace < state["time"]]
            for held in sorted(over, key=lambda held: (held[0], not held[1], held[2].encode(), held[3])):
                state["held"].remove(held)
                ts, is_right, key, _, value = held
                yield Record(key, joined(None, value) if is_right else joined(value, None), ts)
        state["times"][is_left] = max(state["times"][is_left], item.ts)
        number = state["count"] = state["count"] + 1
        own = (item.ts, not is_left, item.key, number, item.value)
        met = [
            other
            for other in state["kept"]
            if other[1] == is_left
            and other[2] == item.key
            and item.ts - back[is_left] <= other[0] <= item.ts + on[is_left]
            and other[0] > state["times"][not is_left] - retention
        ]
        state["kept"].append(own)
        for other in sorted(met, key=lambda other: (other[0], other[3])):
            if other in state["held"]:
                state["held"].remove(other)
            pair = (item.value, other[4]) if is_left else (other[4], item.value)
            yield Record(item.key, joined(*pair), max(item.ts, other[0]))
        if not met and is_outer[is_left]:
            if item.ts + on[is_left] < state["time"]:
                yield Record(item.key, joined(item.value, None) if is_left else joined(None, item.value), item.ts)
            else:
                state["held"].append(own)

    def _table_join(self, task: Task, node: Node, is_left: bool, item: Change) -> Iterator[Change]:
        kind, (left, right) = node.step.kind, node.parents
        other = self._row(task, right if is_left else left, item.key)
        needs_partner = kind == "inner" or (kind == "left" and not is_left)
        if other is None and (needs_partner or (item.new is None and item.old is None)):
            return
        mine: Row | None = None if item.new is None else (item.new, item.ts)
        row = _joined_rows(kind, mine, other) if is_left else _joined_rows(kind, other, mine)
        sent: dict[Key, Value | None] = self._state(task, node, dict)
        old, sent[item.key] = sent.get(item.key), row and row[0]
        yield Change(item.key, row and row[0], old, max(item.ts, other[1] if other else item.ts))

    def _join_by_foreign_key(self, node: Node) -> None:
        """What stands once both tables have taken everything."""
        step = node.step
        left, right = (self._rows_of(self._ends[place]) for place in (step.parent, step.other))
        for sink in (sink for sink in self.nodes if sink.kind == "updates" and node in sink.parents):
            for key, (value, ts) in left.items():
                other = right.get(KEYS[step.key](value))
                if other is not None or step.is_left:
                    row = joined(value, other and other[0]), max(ts, other[1] if other else ts)
                    self.standing[sink.place][key] = row

    def _rows_of(self, table: Node) -> dict[Key, Row]:
        """All rows of a table, in whichever task."""
        keys = {
            (number, key)
            for (group, number), task in self.tasks.items()
            if group == table.group
            for base in bases(table)
            for key in (self._sent(task, base) if base.kind == "suppress" else self._state(task, base, dict))
        }
        found = {key: self._row(self.tasks[table.group, number], table, key) for number, key in keys}
        return {key: row for key, row in found.items() if row is not None}


def heads(node: Node) -> list[Node]:
    """The topics and edges that lead to a node in memory, the node included."""
    if node.kind == "edge" or not node.parents:
        return [node]
    return [head for parent in node.parents for head in heads(parent)]


def bases(table: Node) -> list[Node]:
    """The nodes that keep what a table is made of."""
    if table.kind in ("table filter", "table map values", "table join"):
        return [base for parent in table.parents for base in bases(parent)]
    return [table]


def origins(table: Node) -> set[Node]:
    """The nodes from which a table is derived, whether it keeps its rows or not."""
    if table.kind in ("kept table", "expected table", "suppress") or bases(table) != [table]:
        return {origin for parent in table.parents for origin in origins(parent)}
    return {table}


def _text(key: Key) -> str:
    return key if isinstance(key, str) else key[0]


def _fold_of(node: Node, parent: Node) -> Fold:
    """How an aggregation takes the records of one of its streams."""
    if isinstance(node.step, Aggregate):
        return FOLDS[node.step.fold]
    is_first = parent is node.parents[0]
    if node.step.by_columns:
        return summed if is_first else worded
    fold = chained if is_first else chained_otherwise
    return lambda state, value: fold(state or Value(0, ""), value)


def _merger_of(step: Any) -> Callable[[Value, Value], Value]:
    """How an aggregation joins the values of two sessions."""
    if isinstance(step, Aggregate):
        return MERGERS[step.fold]
    return columns_joined if step.by_columns else chains_joined


def _with_header(step: Any, item: Record) -> Record:
    """A record as a step takes it: a source may give it a header."""
    has_header = isinstance(step, Source) and step.has_headers and item.value is not None
    return item._replace(header=header_of(item.value)) if has_header else item


def _table_value(step: Any, value: Value | None) -> Value | None:
    """What a table takes of a record; None for a deletion."""
    return None if value is None or (isinstance(step, ToTable) and step.deletes and is_deletion(value)) else value


def _passes(step: Any, value: Value) -> bool:
    """Whether a value passes a filter."""
    return PREDICATES[step.how](value) != getattr(step, "is_not", False)


def _windows_of(windows: Windows, ts: int) -> list[tuple[int, int]]:
    """The bounds of the windows that contain ``ts``, by start."""
    match windows:
        case Tumbling(size=size):
            return [(ts - ts % size, ts - ts % size + size)]
        case Hopping(size=size, advance=advance):
            return [(start, start + size) for start in range(ts - ts % advance, -1, -advance) if start + size > ts][
                ::-1
            ]
        case Unlimited(start=start):
            return [(start, FOR_EVER)] if ts >= start else []
    raise NotImplementedError(windows)


def _joined_rows(kind: str, left: Row | None, right: Row | None) -> Row | None:
    if (left is None and kind != "outer") or (right is None and kind == "inner") or (left is None and right is None):
        return None
    times = [row[1] for row in (left, right) if row is not None]
    return joined(left and left[0], right and right[0]), max(times)
