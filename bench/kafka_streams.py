"""Kafka Streams' side: compiles the peer, runs it, and reads the results it committed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bench import cluster
from bench.apps import CACHE_BYTES
from bench.events import PARTITIONS
from bench.processes import BenchError, Measured, measure
from weir.infra.jars import JarsError, fetch
from weir.infra.java import MissingJavaError, java_executable
from weir.infra.kafka.files import JAVA_CLIENT

SOURCE = Path(__file__).parent / "java" / "KafkaStreamsPeer.java"
THREADS = 2


class KafkaStreamsPeer:
    """The compiled peer; each run is a separate application with an empty state folder."""

    def __init__(self, folder: Path) -> None:
        """Fetch the jars and compile into ``folder``.

        Raises:
            BenchError: No JDK, no jars, or the source does not compile; the text says what to install.
        """
        try:
            self._java, compiler = java_executable(), java_executable("javac")
            with contextlib.redirect_stdout(sys.stderr):
                jars = fetch("streams")
        except (JarsError, MissingJavaError) as error:
            raise BenchError(f"Kafka Streams cannot run: {error}") from error
        self._folder = folder
        self._class_path = ":".join(map(str, (*jars, folder)))
        command = [compiler, "-d", str(folder), "-cp", self._class_path, str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"Kafka Streams cannot run: {SOURCE.name} does not compile:\n{done.stderr}")

    def run(self, job: str, client: Path, topic: str, output: str) -> Measured:
        """Read ``topic`` to its end and write to the topic ``output``, which also names the application.

        The job ``restore`` restores the state of an earlier run with the same ``output`` into an empty folder.
        """
        cluster.admin(client).create_topic(output, PARTITIONS)
        with tempfile.TemporaryDirectory(dir=self._folder) as state:
            return measure(self.command(job, client, topic, output, state), f"Kafka Streams' {job}")

    def command(self, job: str, client: Path, topic: str, output: str, state: str) -> list[str]:
        """What ``run`` runs, with its state in the folder ``state``."""
        java = [self._java, "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        unpacked = f"-Djava.io.tmpdir={state}"  # RocksDB unpacks its library there
        login = str(client.with_name(JAVA_CLIENT))
        arguments = [job, login, topic, output, output, state, str(THREADS), str(CACHE_BYTES)]
        return [*java, unpacked, "-cp", self._class_path, SOURCE.stem, *arguments]


def read_output(properties: Mapping[str, str], topic: str) -> pl.DataFrame:
    """The newest committed value per key, without deleted keys. Columns ``key: String, total: Int64``, unordered.

    ``properties`` are librdkafka's.
    """
    consumer = Consumer(
        {
            **properties,
            "group.id": "weir-bench",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    newest: dict[Any, Any] = {}
    open_partitions = set(range(PARTITIONS))
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in open_partitions])
        while open_partitions:
            for message in consumer.consume(10_000, timeout=1.0):
                error = message.error()
                if error is None:
                    newest[message.key()] = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    standing = {key.decode(): int.from_bytes(value, signed=True) for key, value in newest.items() if value is not None}
    return pl.DataFrame(
        {"key": list(standing), "total": list(standing.values())},
        schema={"key": pl.String, "total": pl.Int64},
    )
