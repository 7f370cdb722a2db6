"""What headers cost: ``python -m bench.headers [RECORDS]`` prints one JSON object, microseconds of processor time per
record.

Records with a key and a value of 68 bytes together, with three headers of 16 bytes or none, are read from the embedded
broker, decoded, filtered and made ready for a Kafka sink, in a program that asks for headers and in one that does not.
The time is that of this process, librdkafka's threads included; the least of several rounds counts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from confluent_kafka import Producer
from polars import col

from bench import cluster
from weir import StreamsBuilder, String
from weir.infra.kafka.reader import PartitionReader
from weir.pipelines.serdes.source import decode_source
from weir.pipelines.tasks.order import Arrivals, Part, with_keys
from weir.pipelines.tasks.processor import TaskProcessor
from weir.state.engine.memory import MemoryStore

RECORDS, EPOCH_RECORDS, ROUNDS = 200_000, 50_000, 5
HEADERS: list[tuple[str, str | bytes | None]] = [(name, b"0123456789abcdef") for name in ("trace", "tenant", "sender")]
VALUE = "v" * 57


def produce(client: Path, topic: str, records: int, headers: list[tuple[str, str | bytes | None]]) -> None:
    cluster.admin(client).create_topic(topic, 1)
    producer = Producer({**cluster.properties(client), "linger.ms": 20, "queue.buffering.max.messages": 2 * records})
    for number in range(records):
        producer.produce(topic, VALUE, f"user-{number % 1_000:06}", headers=headers)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def cost_us(client: Path, topic: str, records: int, **asked: bool) -> float:
    """``asked`` is ``headers=True`` for a program that asks for them."""
    builder = StreamsBuilder()
    stream = builder.stream(topic, key=String("user"), value=String("text"), **cast(Any, asked))
    stream.filter(col("text") != "").to("out")
    topology = builder.build()
    (sub_topology,), source = topology.sub_topologies, topology.source(topic)
    processor = TaskProcessor(sub_topology)
    store = MemoryStore("0_0", [], {})
    options: dict[str, Any] = {"with_headers": True} if asked else {}
    reader = PartitionReader(cluster.properties(client), topic, 0, **options)
    began = time.process_time()
    position = 0
    while position < records:
        raw = reader.read(position, min(records, position + EPOCH_RECORDS))
        position = raw.next_offset
        decoded = decode_source(source, raw, partition_time_ms=-1, now_ms=0)
        part = Part(input=topic, rank=0, partition=0, frame=with_keys(decoded.frame, 0, 0))
        with store.session() as session:
            processor.run(Arrivals([part]).turns, session, {}, 0)
    spent = time.process_time() - began
    reader.close()
    return spent / records * 1e6


def main(records: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="headers-") as made,
        cluster.embedded(Path(made, "broker")) as client,
    ):
        produce(client, "none", records, [])
        produce(client, "three", records, HEADERS)
        found: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for topic in ("none", "three"):
                found.setdefault(f"{topic}, not asked for", []).append(cost_us(client, topic, records))
                if "--plain" not in sys.argv:
                    found.setdefault(f"{topic}, asked for", []).append(cost_us(client, topic, records, headers=True))
    print(json.dumps({name: round(min(costs), 2) for name, costs in found.items()}, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS)
