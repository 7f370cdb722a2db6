"""Flink in a mini cluster of one process: SQL and the DataStream API, each with its state in RocksDB or on the heap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from bench.peers.java import class_path, java
from bench.peers.peer import Guarantee, Run
from weir.infra.kafka.files import JAVA_CLIENT

COMMON = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "pipeline.object-reuse": "true",
    "execution.runtime-mode": "STREAMING",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.storage": "filesystem",
    "restart-strategy.type": "disable",
    "taskmanager.memory.network.min": "128 mb",
    "taskmanager.memory.network.max": "128 mb",
}
STATE = {
    "rocksdb": {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "taskmanager.memory.managed.size": "1 gb",
        "state.backend.rocksdb.use-bloom-filter": "true",
    },
    "heap": {"state.backend.type": "hashmap", "taskmanager.memory.managed.size": "128 mb"},
}
_SQL = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}
_OPENED = ("lang", "lang.reflect", "io", "net", "nio", "text", "time", "util", "util.concurrent", "math")
_OPTIONS = tuple(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED)
_WINDOWS = ("window_final", "hopping_final", "session_sum")
_OF_SQL = ("hopping_60_final", "table_join_sum", "stream_join_sum", "foreign_key_join")
"""The jobs that only SQL runs. It merges windows from slices, where the others take minutes to fold into each, and it
has these joins."""


class FlinkPeer:
    """One API with its state in one place."""

    guarantee: Guarantee = "exactly once"

    def __init__(self, api: Literal["sql", "datastream"], state: Literal["rocksdb", "heap"]) -> None:
        is_sql = api == "sql"
        self.name = f"flink-{api}-{state}"
        self.title = f"Flink {'SQL' if is_sql else 'DataStream'}, {'RocksDB' if state == 'rocksdb' else 'heap'}"
        self.jobs = frozenset(("sum_per_key", "repartition_sum", *_WINDOWS, *(_OF_SQL if is_sql else ())))
        self.settings: Mapping[str, str] = MappingProxyType({**COMMON, **STATE[state], **(_SQL if is_sql else {})})
        self._main = "FlinkSqlPeer" if is_sql else "FlinkDataStreamPeer"
        self._class_path = ""

    def install(self, folder: Path) -> None:
        self._class_path = class_path("flink", ["FlinkRun.java", f"{self._main}.java"], folder)

    def command(self, run: Run) -> list[str]:
        login = str(run.client.with_name(JAVA_CLIENT))
        arguments = [run.job, login, run.topic, run.output, str(run.closed_by_ms)]
        folders = {"execution.checkpointing.dir": f"file://{run.state}/checkpoints", "io.tmp.dirs": str(run.state)}
        settings = [f"{key}={value}" for key, value in {**self.settings, **folders}.items()]
        return [*java(self._class_path, self._main, run.state, *_OPTIONS), *arguments, *settings]
