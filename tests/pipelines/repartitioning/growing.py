"""Applications whose topics get more partitions: programs of each kind of store, records, and what is there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.pipelines.order.model import partition_of
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    Count,
    EmitStrategy,
    JoinWindows,
    Json,
    KStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.operators.foreign_key import SENDER
from weir.pipelines.repartitioning.keys import store_keys
from weir.pipelines.repartitioning.plan import RepartitionPlan, plan_of
from weir.pipelines.repartitioning.swap import repartition
from weir.pipelines.tasks.epoch import task_rows
from weir.state.changelog.verify import verify_task
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.instances import current_instance
from weir.state.engine.views import open_reader
from weir.state.stores.codec import KeyCodec
from weir.state.types import IsolationLevel, TaskId


@dataclass(frozen=True)
class Given:
    num: int
    word: str


Record = tuple[str, str, int, str, int]
"""Topic, key, number, word and time in ms."""
END_MS = 1_000_000
"""Later than all that is open."""
MS = timedelta(milliseconds=1)
WINDOWS = TimeWindows.of_size_and_grace(20 * MS, 200 * MS)
Program = Callable[[StreamsBuilder, KStream, KStream], None]


def _added(one: Given, other: Given) -> Given:
    return Given(one.num + other.num, one.word)


def _both(one: Given, other: Given) -> Given:
    return Given(one.num, other.word)


def _either(one: Given | None, other: Given | None) -> Given:
    return Given((one.num if one else -1) * 100 + (other.num if other else -1), "")


def _foreign_key(key: str, value: Given) -> str:
    return f"k{value.num}"


def _totals(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.group_by_key().agg("totals", n=Count(), total=Sum("num")).to_delta("out")


def _tables(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    table = left.to_table("lefts")
    table.join(right.to_table("rights"), _added).to_delta("out")


def _looked_up(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.join(right.to_table("rights"), _both).to_delta("out")


def _windowed(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.group_by_key().windowed_by(WINDOWS).agg("windows", n=Count(), total=Sum("num")).to_delta("out")


def _final(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    windows = left.group_by_key().windowed_by(WINDOWS)
    windows.emit_strategy(EmitStrategy.on_window_close()).agg("finals", n=Count(), total=Sum("num")).to_delta("out")


def _sessions(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    windows = SessionWindows.of_inactivity_gap_and_grace(7 * MS, 200 * MS)
    left.group_by_key().windowed_by(windows).agg("sessions", n=Count(), total=Sum("num")).to_delta("out")


def _sliding(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    windows = SlidingWindows.of_time_difference_and_grace(9 * MS, 200 * MS)
    left.group_by_key().windowed_by(windows).agg("sliding", n=Count(), total=Sum("num")).to_delta("out")


def _suppressed(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    table = left.group_by_key().agg("totals", n=Count(), total=Sum("num"))
    held = Suppressed.until_time_limit(100_000 * MS, BufferConfig.max_records(10_000)).with_name("held")
    table.suppress(held).to_delta("out")


def _joined(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    near = JoinWindows.of_time_difference_and_grace(8 * MS, 200 * MS)
    left.outer_join(right, _either, windows=near, store="j").to_delta("out")


def _foreign(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    lefts, rights = left.to_table("lefts"), right.to_table("rights")
    lefts.join(rights, _both, foreign_key=_foreign_key, store="fk").to_delta("out")


def _versioned(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    table = right.to_table("rights", history_retention=500 * MS)
    left.join(table, _both).to_delta("out")


def _regrouped(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.group_by("word").agg("words", n=Count(), total=Sum("num")).to_delta("out")


def _moved(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    table = left.to_table("lefts")
    table.group_by("word").agg("words", n=Count(), total=Sum("num")).to_delta("out")


def _expiring(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.to_table("lefts", ttl=400 * MS).to_stream().to_delta("out")


PROGRAMS: dict[str, Program] = {
    "totals": _totals,
    "tables": _tables,
    "looked up": _looked_up,
    "windowed": _windowed,
    "final": _final,
    "sessions": _sessions,
    "sliding": _sliding,
    "suppressed": _suppressed,
    "joined": _joined,
    "foreign": _foreign,
    "versioned": _versioned,
    "regrouped": _regrouped,
    "moved": _moved,
    "expiring": _expiring,
}
TIMELESS = ("totals", "tables", "looked up", "foreign", "regrouped", "moved")
"""Those that go from any number of partitions to any other."""


def application(name: str) -> Application:
    builder = StreamsBuilder()
    sides = (builder.stream(topic, key=String("key"), value=Json(Given)) for topic in ("left", "right"))
    PROGRAMS[name](builder, *sides)
    return Application("growing", builder, commit_interval=MS)


@dataclass
class Growing(Place):
    name: str = ""
    """Of the program."""


def place(name: str, folder: Path, partitions: int) -> Growing:
    topics = Topics({(topic, number): [] for topic in ("left", "right") for number in range(partitions)})
    return Growing(application(name), topics, folder, max_records=7, name=name)


def give(there: Place, records: Iterable[Record], *, among: int | None = None) -> None:
    """Produce records as Kafka's default partitioner does, for as many partitions as there are."""
    count = there.topics.partition_counts()["left"] if among is None else among
    for topic, key, num, word, time_ms in records:
        row = (key.encode(), json.dumps({"num": num, "word": word}).encode(), time_ms)
        there.topics.rows[topic, partition_of(key, count)].append(row)


def end(there: Place) -> None:
    """Move all stream times to the end, by a key of each partition."""
    count = there.topics.partition_counts()["left"]
    for partition in range(count):
        key = next(key for number in range(10_000) if partition_of(key := f"end{number}", count) == partition)
        give(there, [(topic, key, 0, "end", END_MS + at) for at in (0, 10_000_000) for topic in ("left", "right")])


def grow(there: Place, partitions: int) -> None:
    for topic in ("left", "right"):
        there.topics.rows |= {(topic, n): [] for n in range(partitions) if (topic, n) not in there.topics.rows}


def plan(there: Place, keyed_by_record: Sequence[str] = ()) -> RepartitionPlan:
    record = newest_commit(there.warehouse, there.application.id)
    assert record is not None
    bound = there.application.over(record)
    counts = {
        topic: count for topic, count in there.topics.partition_counts().items() if topic in bound.topology.topics()
    }
    return plan_of(bound.id, bound.topology, record, counts, keyed_by_record=keyed_by_record)


def dealt(there: Place, on_step: Callable[[str], None] = lambda step: None, keyed_by_record: Sequence[str] = ()) -> int:
    return repartition(there.warehouse, plan(there, keyed_by_record), on_step)


def outputs(there: Place) -> Counter[Any]:
    """The output's rows that count, without those of the keys that move stream time."""
    rows = read_table(Path(there.warehouse) / there.application.id / "out").to_dicts()
    found = Counter[Any]()
    for row in rows:
        values = {name: value for name, value in row.items() if not name.startswith("_") or name == "_ts"}
        if not str(values.get("key", values.get("word"))).startswith("end"):
            found[tuple(map(str, values.values()))] += 1
    return found


def rows_held(there: Place) -> Counter[tuple[str, bytes, bytes]]:
    """The rows of all tasks, but for the numbers of tasks that subscriptions hold."""
    sub_topologies = there.spec().application.topology.sub_topologies
    unsure = {store.name for each in sub_topologies for store in each.stores if SENDER in store.value}
    return Counter((store, key, b"" if store in unsure else value) for store, _, key, value in stores(there))


def require_changelogs(there: Place) -> None:
    """Stores have the rows of their changelogs, positions and clocks those of the commit."""
    topology = there.spec().application.topology
    commit = newest_commit(there.warehouse, there.application.id)
    assert commit is not None
    for name in commit.tasks:
        specs = topology.sub_topology(topology.task_of(name).sub_topology).stores
        folder = there.state_folder / name
        verify_task(there.warehouse, there.application.id, folder, specs, lambda at: task_rows(at.positions, at.clocks))


def stores(there: Place) -> Iterator[tuple[str, int, bytes, bytes]]:
    """What local stores hold: store, partition, key and value as bytes."""
    topology = there.spec().application.topology
    counts = topology.partition_counts(there.topics.partition_counts())
    for task in (TaskId(index, partition) for index, count in counts.items() for partition in range(count)):
        instance = current_instance(there.state_folder / topology.task_name(task))
        with open_reader(instance, IsolationLevel.READ_COMMITTED) as reader:
            for store in topology.sub_topology(task.sub_topology).stores:
                for key, value in reader.scan(store.name):
                    yield store.name, task.partition, key, value


def misplaced(there: Place) -> list[tuple[str, int, Any]]:
    """Rows of local stores that are not where a plain murmur2 of their key puts them."""
    topology = there.spec().application.topology
    counts = topology.partition_counts(there.topics.partition_counts())
    known = {
        keys.spec.name: (keys, counts[each.index])
        for each in topology.sub_topologies
        for keys in store_keys(topology, each)
    }
    found = []
    for store, partition, key, _ in stores(there):
        keys, count = known[store]
        (text,) = KeyCodec(keys.spec.key, keys.spec.kind).decode([key]).select(keys.columns).row(0)
        if text is not None and partition_of(text, count) != partition:
            found.append((store, partition, text))
    return found


def close() -> None:
    TaskStoreCache.close_all()
