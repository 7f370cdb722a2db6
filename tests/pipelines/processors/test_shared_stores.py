"""Processors that share stores give what a loop gives that passes one record after another through all of them."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import polars as pl
import pytest

from tests.examples import examples
from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from weir import Int64, KeyValueStore, KStream, Processor, Punctuation, Record, StreamsBuilder, String
from weir.pipelines.tasks.processor import TaskProcessor
from weir.state.stores.access import StoreTime

KEYS = "abc"
PERIOD_MS, DELAY_MS, END_MS = 25, 10, 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(time_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time_ms)


@dataclass
class Step:
    """A node of a random program: what it does, what feeds it, and the stores that it uses."""

    name: str
    kind: str
    parents: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    habits: frozenset[str] = frozenset()
    number: int = 0


def program(seed: int) -> list[Step]:
    chance = random.Random(seed)
    steps = [Step(name, "source") for name in ["one", "two"][: chance.choice([1, 2, 2])]]
    for number in range(chance.randrange(3, 9)):
        kind = chance.choice(["processor", "processor", "processor", "filter", "map", "flat"])
        few = min(len(steps), chance.choice([1, 1, 2, 3]) if kind == "processor" else 1)
        steps.append(
            Step(
                f"{kind}{number}",
                kind,
                [step.name for step in chance.sample(steps, few)],
                chance.sample(["s0", "s1"], chance.choice([0, 1, 1, 2])) if kind == "processor" else [],
                frozenset(habit for habit in HABITS if chance.random() < 0.4),
                number,
            )
        )
    return steps


HABITS = ("before", "after", "other key", "one child", "timer", "clock", "wall")


def on_record(step: Step, at_work: Any, key: str, value: int, time_ms: int) -> None:
    """What the processors do; ``at_work`` is a context of Weir's, or of the loop that it is compared with."""
    store = (step.stores or ["own"])[time_ms % max(1, len(step.stores))]
    seen = at_work.get(store, key)
    if "before" in step.habits:
        at_work.forward(key, (seen * 7 + value) % 1000, time_ms, None)
    at_work.put(store, key, (seen * 3 + value + step.number) % 1000)
    if "other key" in step.habits:
        at_work.forward(KEYS[(value + 1) % 3], seen, time_ms - 1, None)
    if "after" in step.habits:
        at_work.forward(key, at_work.get(store, key), time_ms, None)
    if "one child" in step.habits and at_work.children:
        at_work.forward(key, value, time_ms, at_work.children[value % len(at_work.children)])
    at_work.put(store, key, (at_work.get(store, key) + 1) % 1000)
    if "timer" in step.habits:
        at_work.timer(key, time_ms + DELAY_MS)


def on_timer(step: Step, at_work: Any, key: str, time_ms: int) -> None:
    for store in step.stores:
        at_work.put(store, key, (at_work.get(store, key) * 2 + 1) % 1000)
    at_work.forward(key, 500 + step.number, time_ms, None)


def on_clock(step: Step, at_work: Any, time_ms: int) -> None:
    total = sum(at_work.get(store, key) for store in step.stores for key in KEYS)
    at_work.forward("c", total % 1000, time_ms, None)
    for store in step.stores:
        at_work.put(store, "c", (total + step.number) % 1000)


def on_close(step: Step, at_work: Any) -> None:
    for store in step.stores:
        at_work.put(store, "a", (at_work.get(store, "a") * 5 + step.number) % 1000)
        at_work.forward("a", at_work.get(store, "b"), END_MS, None)


class AtWork:
    """A processor of Weir's as the functions above see it."""

    def __init__(self, step: Step, children: list[str], context: Any) -> None:
        self.children, self._context = children, context
        self._stores = {name: context.state_store(name) for name in step.stores}
        if not step.stores:
            self._stores["own"] = context.state_store(f"own-{step.name}")

    def get(self, store: str, key: str) -> int:
        return self._stores[store].get(key) or 0

    def put(self, store: str, key: str, value: int) -> None:
        self._stores[store].put(key, value)

    def forward(self, key: str, value: int, time_ms: int, child: str | None) -> None:
        self._context.forward(Record(key, value, at(time_ms)), child=child)

    def timer(self, key: str, time_ms: int) -> None:
        self._context.timer(key, at(time_ms))


def ms(time: datetime) -> int:
    return round((time - EPOCH).total_seconds() * 1000)


def processor_of(step: Step, children: list[str]) -> type:
    class Made(Processor[str, int, str, int]):
        stores = tuple(step.stores) or (KeyValueStore(f"own-{step.name}", key=str, value=int),)

        def init(self, context):
            self.at_work = AtWork(step, children, context)
            if "clock" in step.habits:
                context.schedule(
                    timedelta(milliseconds=PERIOD_MS), Punctuation.STREAM_TIME, lambda now: self.on_clock(now)
                )
            if "wall" in step.habits:
                context.schedule(
                    timedelta(milliseconds=PERIOD_MS), Punctuation.WALL_CLOCK_TIME, lambda now: self.on_clock(now)
                )

        def process(self, record):
            on_record(step, self.at_work, record.key, record.value, ms(record.timestamp))

        def on_timer(self, record):
            on_timer(step, self.at_work, record.key, ms(record.timestamp))

        def on_clock(self, now):
            on_clock(step, self.at_work, ms(now))

        def close(self):
            on_close(step, self.at_work)

    return Made


def processors_below(steps: list[Step], name: str) -> list[str]:
    return [step.name for step in steps if step.kind == "processor" and name in step.parents]


def build(steps: list[Step]) -> StreamsBuilder:
    builder = StreamsBuilder()
    topology = builder.topology
    for name in sorted({store for step in steps for store in step.stores}):
        builder.add_state_store(KeyValueStore(name, key=str, value=int))
    streams: dict[str, KStream] = {}
    for step in steps:
        match step.kind:
            case "source":
                streams[step.name] = topology.add_source(step.name, step.name, key=String("key"), value=Int64("value"))
            case "processor":
                made = processor_of(step, processors_below(steps, step.name))
                streams[step.name] = topology.add_processor(step.name, made, *(streams[each] for each in step.parents))
            case "filter":
                streams[step.name] = streams[step.parents[0]].filter(pl.col("value") % 3 != 0)
            case "map":
                streams[step.name] = streams[step.parents[0]].map_values(value=pl.col("value") + step.number)
            case "flat":
                streams[step.name] = streams[step.parents[0]].flat_map_values(
                    value=pl.concat_list("value", pl.col("value") + 1)
                )
    for step in steps:
        if step.kind != "source":
            topology.add_sink(f"sink-{step.name}", f"out-{step.name}", streams[step.name])
    return builder


@dataclass
class Loop:
    """The same program, run one record after another: ``forward`` calls what follows before it returns."""

    steps: list[Step]
    stores: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    out: dict[str, list[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(list))
    clocks: dict[str, int] = field(default_factory=dict)
    timers: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    next_ms: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    next_wall_ms: dict[str, int] = field(default_factory=dict)
    working: list[Step] = field(default_factory=list)

    @property
    def step(self) -> Step:
        return self.working[-1]

    @property
    def children(self) -> list[str]:
        return processors_below(self.steps, self.step.name)

    def _store(self, name: str) -> dict[str, int]:
        return self.stores[name if name != "own" else f"own-{self.step.name}"]

    def get(self, store: str, key: str) -> int:
        return self._store(store).get(key, 0)

    def put(self, store: str, key: str, value: int) -> None:
        self._store(store)[key] = value

    def timer(self, key: str, time_ms: int) -> None:
        self.timers[self.step.name][key] = time_ms

    def forward(self, key: str, value: int, time_ms: int, child: str | None) -> None:
        self.pass_on(self.step.name, key, value, time_ms, child)

    def pass_on(self, name: str, key: str, value: int, time_ms: int, child: str | None = None) -> None:
        for step in self.steps:
            if name in step.parents and child in (None, step.name):
                self.reach(step, key, value, time_ms)
        if child is None:
            self.out[f"out-{name}"].append((key, value, time_ms))

    def reach(self, step: Step, key: str, value: int, time_ms: int) -> None:
        match step.kind:
            case "processor":
                self.clocks[step.name] = max(self.clocks.get(step.name, time_ms), time_ms)
                self.working.append(step)
                on_record(step, self, key, value, time_ms)
                self.working.pop()
            case "filter" if value % 3 != 0:
                self.pass_on(step.name, key, value, time_ms)
            case "map":
                self.pass_on(step.name, key, value + step.number, time_ms)
            case "flat":
                self.pass_on(step.name, key, value, time_ms)
                self.pass_on(step.name, key, value + 1, time_ms)

    def call_due(self) -> None:
        """What the record that has passed through everything makes due."""
        for step in self.steps:
            if step.kind == "processor":
                self._call_due_of(step)

    def _call_due_of(self, step: Step) -> None:
        if step.name not in self.clocks:
            return
        now_ms = self.clocks[step.name]
        self.working.append(step)
        if "clock" in step.habits and self.next_ms[step.name] <= now_ms:
            self.next_ms[step.name] = (now_ms // PERIOD_MS + 1) * PERIOD_MS
            on_clock(step, self, now_ms)
        due = sorted((time_ms, key) for key, time_ms in self.timers[step.name].items() if time_ms <= now_ms)
        for _, key in due:
            del self.timers[step.name][key]
        for time_ms, key in due:
            on_timer(step, self, key, time_ms)
        self.working.pop()

    def end(self) -> None:
        """The input has ended, and the processors are closed: each once those above it are."""
        for step in self.steps:
            if step.kind == "processor":
                self._call_due_of(step)
                if step.name in self.clocks:
                    self.clocks[step.name] = END_MS
                    self._call_due_of(step)
                self.working.append(step)
                on_close(step, self)
                self.working.pop()

    def begin(self, now_ms: int) -> None:
        """What is due by the wall clock; nothing reaches a processor that is not up to date."""
        for step in reversed(self.steps):
            if step.kind == "processor" and "wall" in step.habits:
                due_ms = self.next_wall_ms.setdefault(step.name, now_ms + PERIOD_MS)
                if due_ms <= now_ms:
                    self.next_wall_ms[step.name] += ((now_ms - due_ms) // PERIOD_MS + 1) * PERIOD_MS
                    self.working.append(step)
                    on_clock(step, self, now_ms)
                    self.working.pop()

    def take(self, topic: str, key: str, value: int, time_ms: int) -> None:
        self.pass_on(topic, key, value, time_ms)
        self.call_due()


Taken = tuple[str, int, str, int, int]
"""Topic, offset, key, value, time in ms."""


def records(seed: int, topics: list[str], count: int) -> list[Taken]:
    """In the order in which a task takes them: by the greatest time of the topic so far."""
    chance = random.Random(seed)
    rows: list[tuple[tuple[int, int, int], Taken]] = []
    for rank, topic in enumerate(topics):
        time_ms, merge_ms = 0, 0
        for offset in range(count):
            time_ms += chance.choice([0, 1, 3, 30 if offset % 10 == 0 else 5])
            own_ms = max(0, time_ms - chance.choice([0, 0, 8]))
            merge_ms = max(merge_ms, own_ms)
            rows.append(((merge_ms, rank, offset), (topic, offset, chance.choice(KEYS), chance.randrange(100), own_ms)))
    return [row for _, row in sorted(rows)]


def cut(rows: list[Taken], seed: int) -> list[list[Taken]]:
    chance = random.Random(seed)
    bounds = sorted({0, len(rows), *(chance.randrange(len(rows)) for _ in range(chance.randrange(6)))})
    return [rows[start:end] for start, end in pairwise(bounds)]


def run(steps: list[Step], batches: list[list[Taken]]) -> tuple[dict, dict]:
    """What Weir writes, by table, and its stores."""
    out, found = defaultdict(list), {}
    for sub_topology in build(steps).build().sub_topologies:
        processor, session, clocks, instances, merge_ms = TaskProcessor(sub_topology), MemorySession(), {}, {}, {}
        for number, batch in enumerate(batches):
            frames = {
                source.topic: pl.DataFrame(
                    [
                        (key, value, ms, 0, offset, False)
                        for topic, offset, key, value, ms in batch
                        if topic == source.topic
                    ],
                    orient="row",
                    schema={
                        "key": pl.String,
                        "value": pl.Int64,
                        "_ts": pl.Int64,
                        "_partition": pl.Int32,
                        "_offset": pl.Int64,
                        "_deleted": pl.Boolean,
                    },
                )
                for source in sub_topology.sources
            }
            output = processor.run(
                in_turn({name: rows for name, rows in frames.items() if rows.height}, sub_topology.inputs, merge_ms),
                session,
                clocks,
                number * 40,
                instances=instances,
            )
            clocks = output.clocks
            for table, rows in output.sinks.items():
                times = rows.get_column("_ts").dt.timestamp("ms")
                out[table] += zip(rows["key"].to_list(), rows["value"].to_list(), times.to_list(), strict=True)
        output = processor.run(
            in_turn({}), session, clocks, len(batches) * 40, instances=instances, end_time_ms=END_MS, stops=True
        )
        for table, rows in output.sinks.items():
            times = rows.get_column("_ts").dt.timestamp("ms")
            out[table] += zip(rows["key"].to_list(), rows["value"].to_list(), times.to_list(), strict=True)
        for name in {name for step in steps for name in step.stores or [f"own-{step.name}"]}:
            if session.rows.get(name):
                store = KeyValueStore(name, key=str, value=int).opened(lambda: None)
                store.enter(session, StoreTime(clocks=clocks, now_ms=0))
                found[name] = dict(store.all())
    return dict(out), found


@pytest.mark.parametrize("seed", range(examples(100)))
def test_records_pass_one_after_another_whatever_the_epochs(seed):
    steps = program(seed)
    batches = cut(records(seed, [step.name for step in steps if step.kind == "source"], 12), seed)
    loop = Loop(steps)
    for number, batch in enumerate(batches):
        loop.begin(number * 40)
        loop.call_due()
        for topic, _, key, value, time_ms in batch:
            loop.take(topic, key, value, time_ms)
    loop.begin(len(batches) * 40)
    loop.end()
    out, stores = run(steps, batches)
    sinks = {f"out-{step.name}" for step in steps if step.kind != "source"}
    assert out == {table: rows for table, rows in loop.out.items() if table in sinks and rows}
    assert stores == {name: rows for name, rows in loop.stores.items() if rows}
