"""Random programs, random topics for them, and random ways to cut their runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from hypothesis import strategies as st

from tests.pipelines.order.description import (
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
    JoinWithin,
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
    Step,
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
    WithTime,
)
from tests.pipelines.order.functions import CHANGE_FOLDS, FOLDS, KEYS, MAPPERS, PAIRS, PREDICATES, SPREADS, TIMES
from tests.pipelines.order.model import (
    CircleError,
    Machine,
    Node,
    bases,
    heads,
    origins,
    partition_of,
)
from tests.pipelines.order.running import Cuts

BEGIN_MS = 1_000
SIZES = st.sampled_from([5, 10, 20, 40])
GRACES = st.sampled_from([0, 0, 3, 10, 30])
KINDS = st.sampled_from(["inner", "left", "outer"])
TIME_WINDOWS = st.one_of(
    st.builds(Tumbling, SIZES, GRACES), st.builds(Hopping, st.just(20), st.sampled_from([5, 8, 10]), GRACES)
)
WINDOWS = st.one_of(
    TIME_WINDOWS,
    st.builds(Sessions, st.sampled_from([2, 5, 12]), GRACES),
    st.builds(Sliding, st.sampled_from([3, 10, 25]), GRACES),
)
RETENTIONS = st.sampled_from([0, 0, 15])
RARELY = st.sampled_from([False, False, True])
EMITS = st.sampled_from(["updates", "suppressed", "on close"])
SOURCES: st.SearchStrategy[Callable[[str], Source]] = st.sampled_from(
    [
        *[Source] * 6,
        *[partial(Source, has_headers=True)] * 2,
        partial(Source, is_timed=True),
        partial(Source, by_pattern=True),
        *[partial(Source, is_table=True)] * 3,
        partial(Source, is_table=True, has_headers=True),
        partial(Source, is_table=True, history=20),
    ]
)
TABLES: st.SearchStrategy[Callable[..., ToTable]] = st.sampled_from(
    [*[ToTable] * 3, partial(ToTable, history=20), partial(ToTable, history=60), partial(ToTable, ttl=10)]
)
TABLE_GRACES = st.sampled_from([None, 0, 10])
"""Not longer than a history."""
STREAM_STEPS = (
    *("window", "window", "window", "window", "key", "key", "key", "merge", "with stream", "with table", "aggregate"),
    *("cogroup", "table", "repartition", "map", "filter", "process", "process", "totals", "totals"),
    *("batch", "batch", "loose", "flat map", "flat map values", "time", "branch"),
    *("expect", "shared", "shared"),
)
TABLE_STEPS = (
    *("stream", "expect", "group", "join", "join", "suppress", "foreign", "stream", "group", "map", "filter"),
    "process",
)


@st.composite
def programs(
    draw: st.DrawFn,
    most_topics: int = 3,
    most_partitions: int = 5,
    repartitions: bool = True,
    most_steps: int = 8,
) -> Program:
    """A program of random steps, drawn one or a few at a time; every stream and table that leads nowhere else is
    written out.

    Without ``repartitions`` nothing moves to another task.
    """
    count = draw(st.integers(1, most_topics))
    common = draw(st.integers(1, most_partitions))
    partitions = [draw(st.sampled_from([common, common, draw(st.integers(1, most_partitions))])) for _ in range(count)]
    topics = tuple((f"t{number}", partitions[number]) for number in range(count))
    global_topics: tuple[tuple[str, int], ...] = (("g", common),) if draw(st.integers(0, 5)) == 5 else ()

    def program_of(*steps: Step) -> Program:
        used = {step.topic for step in steps if isinstance(step, GlobalJoin)}
        return Program((*topics, *(each for each in global_topics if each[0] in used)), steps, tuple(used))

    steps: list[Step] = [draw(SOURCES)(topic) for topic, _ in topics]
    for _ in range(draw(st.integers(min(2, most_steps), most_steps))):
        parent = draw(st.integers(0, len(steps) - 1))
        more = draw(_next_steps(program_of(*steps), parent, [topic for topic, _ in global_topics]))
        if most_partitions == 1:
            more = [Repartition(step.parent) if isinstance(step, Repartition) else step for step in more]
        if is_fit(program_of(*steps, *more), repartitions=repartitions):
            steps += more
    used = {parent for place in range(len(steps)) for parent in program_of(*steps).parents(place)}
    steps += [Sink(place) for place in range(len(steps)) if place not in used or draw(st.integers(0, 4)) == 4]
    return program_of(*steps)


@st.composite
def _next_steps(draw: st.DrawFn, program: Program, parent: int, global_topics: list[str]) -> list[Step]:
    """A step after ``parent``, or several that move its rows; none if the kind that was drawn does not fit."""
    if program.is_loose(parent):
        return [draw(_next_loose_step(program, parent))]
    first = len(program.steps)
    is_stream = not program.is_table(parent)
    keys = st.sampled_from(sorted(KEYS))
    kinds = (
        ["step"] * 4
        + ["regrouped", "moved", "two ways", "joined windows"]
        + ["header"] * 5 * (is_stream and program.has_headers(parent))
    )
    if _may_be_late(program, parent) and draw(st.integers(0, 3)) == 3:
        return [Late(parent)]
    match draw(st.sampled_from(kinds)):
        case "header" if draw(st.booleans()):
            return [FromHeader(parent)]
        case "header":
            return [SelectKey(parent, draw(keys)), Repartition(first), FromHeader(first + 1)]
        case "regrouped" if is_stream:
            emits = draw(EMITS)
            aggregate = Aggregate(first, draw(st.sampled_from(sorted(FOLDS))), draw(WINDOWS), emits, draw(RETENTIONS))
            return [SelectKey(parent, draw(keys)), aggregate, ToStream(first + 1)]
        case "moved" if is_stream:
            return [SelectKey(parent, draw(keys)), Repartition(first, draw(st.sampled_from([None, 2, 3])))]
        case "joined windows" if is_stream and not program.is_windowed(parent):
            windows = draw(WINDOWS)
            folds = st.sampled_from(sorted(FOLDS))
            sides = [
                Aggregate(parent, draw(folds), windows),
                Filter(parent, draw(st.sampled_from(sorted(PREDICATES)))),
                Aggregate(first + 1, draw(folds), windows),
            ]
            if draw(st.booleans()):
                return [*sides, TableJoin(first, first + 2, draw(KINDS))]
            stream, table = draw(st.permutations([first, first + 2]))
            return [*sides, ToStream(stream), StreamTableJoin(first + 3, table, draw(st.booleans()))]
        case "two ways" if is_stream and not program.is_windowed(parent):
            ways: list[Step] = [SelectKey(parent, draw(keys)), Repartition(first)]
            ways += [SelectKey(parent, draw(keys)), Repartition(first + 2)]
            if draw(st.booleans()):
                ways += [SelectKey(first + 3, draw(keys)), Repartition(first + 4)]
            one, other, end = first + 1, first + len(ways) - 1, first + len(ways)
            within = JoinWithin(4, 6, draw(GRACES))
            meetings: list[list[Step]] = [
                [Merge(one, other)],
                [StreamJoin(one, other, draw(KINDS), within)],
                [Cogroup(one, other)],
                [Shared(one, other)],
                [ToTable(other), StreamTableJoin(one, end, draw(st.booleans()))],
                [ToTable(one), StreamTableJoin(other, end, draw(st.booleans()))],
                [ToTable(one, history=60), StreamTableJoin(other, end, draw(st.booleans()), draw(TABLE_GRACES))],
                [ToTable(one), ToTable(other), TableJoin(end, end + 1, draw(KINDS))],
            ]
            return [*ways, *draw(st.sampled_from(meetings))]
    step = draw(_next_step(program, parent, global_topics))
    return [] if step is None else [step]


@st.composite
def _next_step(draw: st.DrawFn, program: Program, parent: int, global_topics: list[str]) -> Step | None:
    """A step after ``parent``; None if the kind that was drawn does not fit."""
    steps = program.steps
    is_table, is_windowed = program.is_table(parent), program.is_windowed(parent)

    def another(wanted: Callable[[int], bool]) -> int | None:
        found = [
            place for place in range(len(steps)) if place != parent and wanted(place) and not program.is_loose(place)
        ]
        return draw(st.sampled_from(found)) if found else None

    def is_plain_stream(place: int) -> bool:
        return not program.is_table(place) and not program.is_windowed(place) and not isinstance(steps[place], Sink)

    if isinstance(steps[parent], ForeignJoin | Late):
        return None
    if is_table and program.is_versioned(parent):
        steps_after = Filter(parent, draw(st.sampled_from(sorted(PREDICATES)))), MapValues(parent, "rest")
        return draw(st.sampled_from(steps_after))
    if is_table and is_windowed and not isinstance(steps[parent], TableJoin) and draw(st.integers(0, 3)) == 3:
        return GroupTable(parent, draw(st.sampled_from(sorted(KEYS))), draw(st.sampled_from(sorted(CHANGE_FOLDS))))
    if is_table and (is_windowed or not is_looked_up(program, parent)):
        return ToStream(parent)
    if is_table:
        match draw(st.sampled_from(TABLE_STEPS)):
            case "filter":
                return Filter(parent, draw(st.sampled_from(sorted(PREDICATES))), draw(st.booleans()), draw(RARELY))
            case "map":
                return MapValues(parent, draw(st.sampled_from(sorted(MAPPERS))), draw(st.booleans()))
            case "expect":
                return Expect(parent, draw(st.sampled_from(sorted(PREDICATES))))
            case "stream":
                return ToStream(parent)
            case "process":
                return Process(parent, draw(SIZES))
            case "group":
                return GroupTable(
                    parent, draw(st.sampled_from(sorted(KEYS))), draw(st.sampled_from(sorted(CHANGE_FOLDS)))
                )
            case "suppress" if isinstance(steps[parent], Source | ToTable | Aggregate):
                return Suppress(parent, draw(SIZES), draw(st.sampled_from([None, None, 2])), draw(st.booleans()))
            case "join" | "foreign" as kind:
                other = another(lambda place: is_looked_up(program, place) and not program.is_versioned(place))
                if other is None:
                    return None
                if kind == "join":
                    return TableJoin(parent, other, draw(KINDS))
                return ForeignJoin(parent, other, draw(st.sampled_from(sorted(KEYS))), draw(st.booleans()))
        return None
    if is_windowed:
        kinds: tuple[str, ...] = ("filter", "map", "key", "key", "repartition")
    else:
        kinds = STREAM_STEPS + ("with global",) * 6 * len(global_topics)
    match draw(st.sampled_from(kinds)):
        case "filter":
            return Filter(parent, draw(st.sampled_from(sorted(PREDICATES))), is_not=draw(RARELY))
        case "map":
            return MapValues(parent, draw(st.sampled_from(sorted(MAPPERS))))
        case "flat map":
            return FlatMap(parent, draw(st.sampled_from(sorted(PAIRS))))
        case "flat map values":
            return FlatMapValues(parent, draw(st.sampled_from(sorted(SPREADS))))
        case "time":
            return WithTime(parent, draw(st.sampled_from(sorted(TIMES))))
        case "branch":
            hows = tuple(draw(st.lists(st.sampled_from(sorted(PREDICATES)), min_size=1, max_size=2, unique=True)))
            return Branch(parent, hows, draw(st.integers(0, len(hows))))
        case "key":
            return SelectKey(parent, draw(st.sampled_from(sorted(KEYS))))
        case "repartition":
            return Repartition(parent, draw(st.sampled_from([None, None, 1, 2, 3, 5])))
        case "table":
            return draw(TABLES)(parent, deletes=draw(st.booleans()))
        case "aggregate":
            is_unlogged = _comes_of_one_topic(program, parent) and draw(st.booleans())
            windows = draw(st.sampled_from([None, None, Unlimited(0), Unlimited(BEGIN_MS + 30)]))
            fold, is_in_memory = draw(st.sampled_from(sorted(FOLDS))), draw(RARELY)
            return Aggregate(parent, fold, windows, is_unlogged=is_unlogged, is_in_memory=is_in_memory)
        case "window":
            is_unlogged = _comes_of_one_topic(program, parent) and draw(RARELY)
            of = draw(st.sampled_from(sorted(FOLDS))), draw(WINDOWS), draw(EMITS), draw(RETENTIONS)
            return Aggregate(parent, *of, is_unlogged, draw(RARELY))
        case "process":
            return Process(parent, draw(SIZES))
        case "totals":
            return Totals(parent, draw(SIZES), draw(SIZES), draw(st.booleans()))
        case "batch":
            return Batch(parent, *draw(st.sampled_from([(2, None), (3, None), (None, 30), (4, 25)])))
        case "loose":
            return Loose(parent, draw(st.sampled_from(["batch", "processor"])))
        case "with global":
            topic, key = draw(st.sampled_from(global_topics)), draw(st.sampled_from(["own", *sorted(KEYS)]))
            return GlobalJoin(parent, topic, key, draw(st.booleans()))
        case "merge":
            other = another(is_plain_stream)
            return None if other is None else Merge(parent, other)
        case "expect":
            return Expect(parent, draw(st.sampled_from(sorted(PREDICATES))))
        case "shared":
            other = another(is_plain_stream)
            return None if other is None else Shared(parent, other)
        case "cogroup":
            other = another(is_plain_stream)
            if other is None:
                return None
            by_columns = draw(st.booleans())
            if draw(st.booleans()):
                return Cogroup(parent, other, by_columns=by_columns)
            return Cogroup(parent, other, draw(WINDOWS), draw(EMITS), by_columns)
        case "with stream":
            other = another(is_plain_stream)
            if other is None:
                return None
            windows = draw(st.builds(JoinWithin, st.sampled_from([0, 4, 12]), st.sampled_from([0, 6, 20]), GRACES))
            return StreamJoin(parent, other, draw(KINDS), windows, draw(st.sampled_from([0, 0, 80])))
        case "with table":
            table = another(lambda place: is_looked_up(program, place))
            if table is None:
                return None
            grace = draw(TABLE_GRACES) if program.is_versioned(table) else None
            return StreamTableJoin(parent, table, draw(st.booleans()), grace)
    return None


@st.composite
def _next_loose_step(draw: st.DrawFn, program: Program, parent: int) -> Step:
    """A step that depends on no order but that of each key."""
    steps: list[Step] = [
        Filter(parent, draw(st.sampled_from(sorted(PREDICATES)))),
        MapValues(parent, draw(st.sampled_from(sorted(MAPPERS)))),
    ]
    if not program.is_table(parent) and not program.has_new_key(parent):
        steps += [Aggregate(parent, draw(st.sampled_from(sorted(FOLDS)))), ToTable(parent)]
    return draw(st.sampled_from(steps))


def _may_be_late(program: Program, place: int) -> bool:
    """Whether records may be late for a step, and go nowhere yet."""
    step = program.steps[place]
    return (
        isinstance(step, Aggregate)
        and step.windows is not None
        and not isinstance(step.windows, Unlimited)
        and Late(place) not in program.steps
    )


def _comes_of_one_topic(program: Program, place: int) -> bool:
    """Whether the records of a stream are made of those of one topic, each by itself, and have not moved: what an
    aggregation makes of them can then be computed again."""
    step = program.steps[place]
    match step:
        case Source():
            return not step.is_table and not step.by_pattern
        case Filter() | MapValues() | Expect() | FlatMapValues() | WithTime():
            return _comes_of_one_topic(program, step.parent)
    return False


def is_looked_up(program: Program, place: int) -> bool:
    """Whether a step is a table in which a join can look up rows."""
    match program.steps[place]:
        case Source(is_table=is_table):
            return is_table
        case ToTable(ttl=ttl):
            return ttl is None
        case Suppress() | GroupTable():
            return True
        case Aggregate(windows=windows) | Cogroup(windows=windows):
            return windows is None
        case Filter(parent=parent) | MapValues(parent=parent) | Expect(parent=parent):
            return program.is_table(place) and is_looked_up(program, parent)
        case TableJoin():
            return all(is_looked_up(program, parent) for parent in program.parents(place))
    return False


def is_fit(program: Program, *, repartitions: bool = True) -> bool:
    """Whether a program can be run, and its result has one order."""
    try:
        machine = Machine(program)
    except CircleError:
        return False
    kinds = {type(step) for step in program.steps}
    return (
        machine.check_co_partitioned()
        and not {ForeignJoin, StreamTableJoin} <= kinds  # messages would be further inputs
        and (repartitions or all(node.kind != "edge" for node in machine.nodes))
        and (repartitions or ForeignJoin not in kinds)
        and not any(_looks_up_itself(node) for node in machine.nodes if node.kind.endswith("table join"))
        and not any(_meets_itself(node) for node in machine.nodes if _forwards_several(node))
        and not any(_is_overtaken(node) for node in machine.nodes if node.kind == "processor")
    )


def _looks_up_itself(join: Node) -> bool:
    """Whether what a record changes may be found by the record itself in a way that differs from Kafka Streams.

    That is so for a joined table of which only one side has changed. And where one record removes both sides of a join
    of tables, neither has a partner for the tombstone, so that none is forwarded.
    """
    one, other = join.parents
    tables = [other] if join.kind == "stream-table join" else [one, other]
    if len(tables) == 2 and origins(one) & origins(other):
        return True
    if len(tables) == 2 and any(map(_deletes, tables)) and set(heads(one)) & set(heads(other)):
        return True
    return any(len(bases(table)) > 1 for table in tables) and bool(set(heads(one)) & set(heads(other)))


SEVERAL = (
    *("final", "suppress", "processor", "stream join", "session aggregate", "sliding aggregate", "flat map"),
    *("flat map values", "waiting"),
)


def _deletes(table: Node) -> bool:
    """Whether records of a stream may remove rows of a table."""
    return any(isinstance(origin.step, ToTable) and origin.step.deletes for origin in origins(table))


def _forwards_several(node: Node) -> bool:
    """Whether one record may make a node forward several rows."""
    if node.kind in SEVERAL:
        return True
    if node.kind == "window aggregate":
        return isinstance(node.step.windows, Hopping)
    return len(node.parents) > 1 and bool(set.intersection(*(set(_above(parent)) for parent in node.parents)))


def _meets_itself(node: Node) -> bool:
    """Whether what a node forwards reaches another node in memory on several ways: then all rows of one way come
    before those of the next, as the README says of ``flat_map``."""
    below = _below(node)
    return any(sum(parent in below for parent in each.parents) > 1 for each in below)


UNORDERED = ("facts", "filter", "map values")


def _is_overtaken(processor: Node) -> bool:
    """Whether what a record makes due in a processor meets the record itself, on another way, where their order counts:
    then it comes with what the processor forwards for the record, as the README says."""
    below = _below(processor)
    return any(
        set(_above(way)) & set(_above(processor))
        for meeting in below
        if any(node.kind not in UNORDERED for node in _below(meeting) - {meeting})
        for way in meeting.parents
        if way not in below
    )


def _below(node: Node) -> set[Node]:
    """The node and all that its rows reach in memory."""
    found, waiting = {node}, [node]
    while waiting:
        for child in waiting.pop().children:
            if child not in found and child.kind != "edge":
                found.add(child)
                waiting.append(child)
    return found


def _above(node: Node) -> list[Node]:
    """The node and all from which its rows come in memory; of a repartition, only itself."""
    if node.kind == "edge":
        return [node]
    return [node, *(each for parent in node.parents for each in _above(parent))]


@st.composite
def data_for(draw: st.DrawFn, program: Program, least: int = 30, most: int = 70) -> Data:
    """Topics with keys where Kafka's partitioner puts them, out of order by several windows."""
    data: Data = {(topic, partition): [] for topic, count in program.topics for partition in range(count)}
    tables = {step.topic for step in program.steps if isinstance(step, Source) and step.is_table}
    tables |= set(program.global_topics)
    size = draw(st.integers(least, most))
    grain = draw(st.sampled_from([1, 1, 5, 10]))
    jitter = draw(st.sampled_from([0, 8, 40, 100]))
    keys = draw(st.sampled_from([1, 3, 6, 12]))
    paces = {name: draw(st.sampled_from([0, 1, 3, 9])) for name in data}
    records = _records(tuple(topic for topic, _ in program.topics), keys, jitter)
    drawn = draw(st.lists(records, min_size=size, max_size=size))
    counts = dict(program.topics)
    for topic, number, num, word, late, far in drawn:
        key = f"k{number}"
        name = topic, partition_of(key, counts[topic])
        ts = BEGIN_MS + len(data[name]) * paces[name] + far - late
        is_gone = topic in tables and num == 9
        data[name].append(Record(key, None if is_gone else Value(num, word), ts - ts % grain))
    return data


@cache
def _records(topics: tuple[str, ...], keys: int, jitter: int) -> st.SearchStrategy[tuple[str, int, int, str, int, int]]:
    """Topic, number of the key, number, word, and how late and how far ahead a record is."""
    return st.tuples(
        st.sampled_from(topics),
        st.integers(0, keys - 1),
        st.integers(0, 9),
        st.sampled_from("abcd"),
        st.integers(0, jitter),
        st.sampled_from([0] * 40 + [400]),
    )


def takes_null_keys(program: Program, topic: str) -> bool:
    """Whether the model says what becomes of a topic's records that have no key."""
    keyless = set[int]()
    for place, step in enumerate(program.steps):
        comes = not keyless.isdisjoint(program.parents(place))
        match step:
            case Source():
                if step.topic == topic and not step.is_table:
                    keyless.add(place)
            case _ if not comes:
                pass
            case Filter() | MapValues() | Expect() | FlatMapValues() | WithTime() | Branch() | Merge() | GlobalJoin():
                keyless.add(place)
            case StreamTableJoin(grace=None) if not program.has_new_key(step.parent):
                keyless.add(place)
            case (
                Sink()
                | SelectKey()
                | FlatMap(how="odd ones" | "by columns")
                | Aggregate()
                | Cogroup()
                | ToTable()
                | Batch()
            ):
                pass
            case _:
                return False
    return topic not in program.global_topics


CUTS = st.builds(
    Cuts,
    max_records=st.sampled_from([7, 20, 1000, 3, 1]),
    max_skew=st.sampled_from([None, None, 0, 10, 100]),
    steps_between_kills=st.lists(st.integers(2, 60), max_size=3).map(tuple),
    seed=st.integers(0, 1000),
    commit_interval=st.sampled_from([1, 100, 10_000]),
    loses=st.sampled_from(["nothing", "memory", "state"]),
)


@st.composite
def cases(draw: st.DrawFn, **limits: Any) -> tuple[Program, Data]:
    program = draw(programs(**limits))
    return program, draw(data_for(program))
