"""The topology test driver: the operators and stores of a run, without Spark and without a broker.

Every piped record is an epoch of its own that runs to the end and commits, so no update is collapsed, and what
goes into a repartition edge comes out at the next sub-topology at once. Time moves by hand only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.arguments import not_negative_ms
from weir.pipelines.errors import BadInputError, TopologyError
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.serdes.source import RAW_SCHEMA, decode_source
from weir.pipelines.serdes.timestamps import UNKNOWN_MS
from weir.pipelines.tasks.global_tables import GlobalTables
from weir.pipelines.tasks.metrics import Reading, RunMetrics
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.tasks.plan import BadRecord
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.testing.stores import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
)
from weir.pipelines.testing.streams import TestInputTopic, TestOutputTable, encode_part, time_to_ms
from weir.pipelines.topology.foreign_key import ResponseJoinNode
from weir.pipelines.topology.nodes import RecordType
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.engine.memory import MemoryStore
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StateId, StoreKind, StoreSpec

_GENERATION = 1
MOCK_REGISTRY = {"url": "mock://tests"}


@dataclass(frozen=True)
class _Records:
    """One record in the shape of what a consumer reads."""

    topic: str
    partition: int
    frame: pl.DataFrame


class _Task:
    """One sub-topology over partition 0, with its store and clocks."""

    def __init__(self, sub_topology: SubTopology, global_tables: GlobalTables) -> None:
        self.sub_topology = sub_topology
        self._processor = TaskProcessor(sub_topology, global_tables)
        self.store = MemoryStore(f"{sub_topology.index}_0", [store.name for store in sub_topology.stores])
        self._state: StateId | None = None
        self._clocks: dict[str, int] = {}

    def run(self, inputs: dict[str, pl.DataFrame], now_ms: int) -> EpochOutput:
        """One epoch, applied and committed."""
        state = StateId(_GENERATION, self._state.epoch + 1 if self._state else 1)
        with self.store.session() as session:
            output = self._processor.run(inputs, session, self._clocks, now_ms, lets_idle=True)
            applied = self.store.apply(
                session,
                state=state,
                expected=self._state,
                generation=_GENERATION,
                plan_hash=str(state),
                make_receipt=lambda _: b"done",
            )
        if applied is None:
            raise RuntimeError(f"task {self.store.task_id}: its store is not at {self._state}")
        self.store.settle(generation=_GENERATION, expected=state, committed=state)
        self._state, self._clocks = state, dict(output.clocks)
        return output


class TopologyTestDriver:
    """Runs an application's topology in memory, which is let go when the driver is closed."""

    def __init__(
        self,
        application: Application,
        *,
        initial_wall_clock: datetime = datetime(1970, 1, 1, tzinfo=UTC),
        schema_registry: Mapping[str, str] = MOCK_REGISTRY,
    ) -> None:
        """Serdes that need a schema registry get one in memory, or the one that the client properties name."""
        if not isinstance(application, Application):
            raise TopologyError(
                f"the driver runs an Application, and got a {type(application).__name__}; pass "
                'Application("name", builder)'
            )
        connect_serdes(application.topology.serdes(), schema_registry)
        self._application = application
        self._topology = application.topology
        self._now_ms = time_to_ms(initial_wall_clock)
        self._offsets: Counter[str] = Counter()
        self._partition_times: dict[str, int] = {}
        self._outputs = {
            sink.table: TestOutputTable(sink.table, sink.record)
            for sub_topology in self._topology.sub_topologies
            for sink in sub_topology.sinks
        }
        self._counts: Counter[str] = Counter()
        self._gauges: dict[int, dict[str, int]] = {}
        self._metrics = RunMetrics(lambda: self._now_ms / 1000)
        self.dead_letters: list[BadRecord] = []
        """Records that could not be read, with ``on_error="dead_letter"``; oldest first."""
        self._global_topics = {table.source.topic: table.source for table in self._topology.global_tables}
        self._global_tables = GlobalTables(self._topology, application.on_error)
        self._tasks = [_Task(sub_topology, self._global_tables) for sub_topology in self._topology.sub_topologies]

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the stores go; closing again does nothing."""
        self._tasks = []

    @property
    def counts(self) -> dict[str, int]:
        """Since the start, over all tasks: ``records_in``, ``rows_out``, ``late_records``, ``null_keys``,
        ``null_values``, ``expired_records``, ``out_of_order_records``, ``invalid_timestamps``, ``dead_letters``; 0
        where nothing was counted."""
        names = (
            "records_in",
            "rows_out",
            "late_records",
            "null_keys",
            "null_values",
            "expired_records",
            "out_of_order_records",
            "invalid_timestamps",
            "dead_letters",
        )
        return {name: self._counts[name] for name in names}

    @property
    def open_windows(self) -> int:
        """Windows that the stores hold now."""
        return sum(gauges["open_windows"] for gauges in self._gauges.values())

    def metrics(self) -> list[Reading]:
        """Metrics by Kafka Streams' names; rates, averages and maxima are over the last minute of the wall clock."""
        return self._metrics.readings()

    def create_input_topic(
        self, topic: str, *, start: datetime | None = None, auto_advance: timedelta = timedelta(0)
    ) -> TestInputTopic:
        """The topic, with a time of its own from ``start`` on that moves by ``auto_advance`` with each record.

        Raises:
            LookupError: The topology does not read ``topic``.
        """
        topics = (*self._topology.topics(), *self._global_topics)
        if topic not in topics:
            raise LookupError(f"the topology does not read {topic!r}; it reads {', '.join(topics)}")
        return TestInputTopic(
            lambda key, value, time_ms: self._pipe(topic, key, value, time_ms),
            None if start is None else time_to_ms(start),
            not_negative_ms(auto_advance, "auto_advance"),
        )

    def create_output_table(self, table: str) -> TestOutputTable:
        """What was and will be written to ``table``; raises ``LookupError`` when nothing writes it."""
        if table not in self._outputs:
            raise LookupError(f"the topology does not write {table!r}; it writes {', '.join(self._outputs)}")
        return self._outputs[table]

    def advance_wall_clock_time(self, duration: timedelta) -> None:
        """Move the wall clock forward; event time stays where it is."""
        self._now_ms += not_negative_ms(duration, "duration")
        for task in self._tasks:
            self._run(task, {})

    def get_key_value_store(self, name: str) -> ReadOnlyKeyValueStore:
        """Raises ``LookupError`` when no key-value store has that name, or a join keeps it for itself."""
        return ReadOnlyKeyValueStore(*self._view(name, StoreKind.KEY_VALUE))

    def get_window_store(self, name: str) -> ReadOnlyWindowStore:
        """Raises ``LookupError`` when no window store has that name."""
        return ReadOnlyWindowStore(*self._view(name, StoreKind.WINDOW))

    def get_session_store(self, name: str) -> ReadOnlySessionStore:
        """Raises ``LookupError`` when no session store has that name."""
        return ReadOnlySessionStore(*self._view(name, StoreKind.SESSION))

    def get_versioned_store(self, name: str) -> ReadOnlyVersionedStore:
        """Raises ``LookupError`` when no versioned store has that name."""
        return ReadOnlyVersionedStore(*self._view(name, StoreKind.VERSIONED))

    def _pipe(self, topic: str, key: Any, value: Any, time_ms: int | None) -> None:
        source = self._global_topics.get(topic) or self._topology.source(topic)
        raw = _Records(
            topic=topic,
            partition=0,
            frame=pl.DataFrame(
                [
                    (
                        encode_part(topic, "key", source.key_serde, key),
                        encode_part(topic, "value", source.value_serde, value),
                        self._now_ms if time_ms is None else time_ms,
                        self._offsets[topic],
                    )
                ],
                schema=RAW_SCHEMA,
                orient="row",
            ),
        )
        self._offsets[topic] += 1
        if topic in self._global_topics:
            self._global_tables.take(raw, self._now_ms)
            return
        self._counts["records_in"] += 1
        task = next(task for task in self._tasks if source in task.sub_topology.sources)
        decoded = decode_source(
            source, raw, now_ms=self._now_ms, partition_time_ms=self._partition_times.get(topic, UNKNOWN_MS)
        )
        for bad in decoded.bad:
            if self._application.on_error == "fail":
                raise BadInputError(bad.topic, bad.partition, bad.offset, bad.reason)
            self.dead_letters.append(bad)
        dropped = {"dead_letters": len(decoded.bad), "invalid_timestamps": len(decoded.skipped)}
        self._counts.update(dropped)
        if decoded.frame.height:
            self._partition_times[topic] = max(decoded.frame["_ts"][0], self._partition_times.get(topic, UNKNOWN_MS))
        self._run(task, {topic: decoded.frame}, dropped)

    def _run(self, task: _Task, inputs: dict[str, pl.DataFrame], dropped: Mapping[str, int] | None = None) -> None:
        output = task.run(inputs, self._now_ms)
        self._counts.update(output.counts)
        self._metrics.epoch(f"{task.sub_topology.index}_0", output.metrics, {**output.counts, **(dropped or {})})
        self._gauges[task.sub_topology.index] = output.gauges
        for table, rows in output.sinks.items():
            self._outputs[table].add(rows)
        for edge in task.sub_topology.edges_out:
            if edge.name in output.edges:
                self._run(self._tasks[edge.target], {edge.name: output.edges[edge.name]})

    def _view(self, name: str, kind: StoreKind) -> tuple[Callable[[], pl.DataFrame], RecordType]:
        """How to read a store, and the records whose keys and values it has."""
        for task in self._tasks:
            for node in task.sub_topology.nodes:
                for store in node.stores:
                    if store.name == name and store.kind is kind:
                        if node.is_join or isinstance(node, ResponseJoinNode):
                            raise LookupError(
                                f"the store {name!r} holds what the join {node.name} keeps for itself; "
                                "read what the join forwards"
                            )
                        return partial(self._read, task, store), node.record
        known = [store.name for task in self._tasks for store in task.sub_topology.stores if store.kind is kind]
        raise LookupError(f"there is no {kind.replace('_', '-')} store {name!r}; there is {', '.join(known) or 'none'}")

    def _read(self, task: _Task, spec: StoreSpec) -> pl.DataFrame:
        with task.store.reader(IsolationLevel.READ_COMMITTED) as reader:
            typed = TypedStore(spec, reader)
            keys, rows = typed.scan()
            decoded = typed.decode(keys)
        if not keys:
            return pl.DataFrame(schema={**spec.key, **spec.value, "_ts": pl.Int64()})
        return self._topology.finish(spec.name, pl.concat([decoded, rows], how="horizontal"))
