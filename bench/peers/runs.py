"""One run of a peer, and the results that it committed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bench import cluster
from bench.events import PARTITIONS
from bench.peers.peer import Peer, Run
from bench.processes import Measured, measure


def run_peer(
    peer: Peer, job: str, client: Path, topic: str, output: str, folder: Path, closed_by_ms: int = 0
) -> Measured:
    """Run ``job`` from ``topic`` to the topic ``output``, with its state in a new folder below ``folder``.

    Raises:
        BenchError: It ended with an error, or took too long.
    """
    cluster.admin(client).create_topic(output, PARTITIONS)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as state:
        run = Run(job=job, client=client, topic=topic, output=output, state=Path(state), closed_by_ms=closed_by_ms)
        return measure(peer.command(run), f"{peer.title}: {job}")


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
