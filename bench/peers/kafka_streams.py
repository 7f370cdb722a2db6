"""Kafka Streams, of which ``java/KafkaStreamsPeer.java`` has the jobs and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench.apps import CACHE_BYTES
from bench.peers.java import class_path, java
from bench.peers.peer import Guarantee, Run
from weir.infra.kafka.files import JAVA_CLIENT


class KafkaStreamsPeer:
    """Its jobs also include ``restore``, which restores the state of an earlier run with the same output into an empty
    folder, and ``sum_live``, which runs until it is ended."""

    name = "kafka-streams"
    title = "Kafka Streams"
    guarantee: Guarantee = "exactly once"
    jobs = frozenset(
        (
            "sum_per_key",
            "window_final",
            "repartition_sum",
            "hopping_final",
            "session_sum",
            "sliding_sum",
            "stream_join_sum",
            "table_join_sum",
            "foreign_key_join",
        )
    )
    settings: Mapping[str, str] = MappingProxyType(
        {"num.stream.threads": "2", "statestore.cache.max.bytes": str(CACHE_BYTES)}
    )

    def __init__(self) -> None:
        self._class_path = ""

    def install(self, folder: Path) -> None:
        self._class_path = class_path("streams", ["KafkaStreamsPeer.java"], folder)

    def command(self, run: Run) -> list[str]:
        login = str(run.client.with_name(JAVA_CLIENT))
        arguments = [run.job, login, run.topic, run.output, run.output, str(run.state), *self.settings.values()]
        return [*java(self._class_path, "KafkaStreamsPeer", run.state), *arguments]
