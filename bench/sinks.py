"""How fast a sink is drained: ``python -m bench.sinks [ROWS]`` prints one JSON object, rows a second.

The outbox is filled first, as by commits of 50,000 rows from one task, and from a thousand; then one publisher sends
everything to the embedded broker, which runs on the same cores. Rows have a key and a value of 68 bytes together.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from threading import Event
from typing import cast

import polars as pl

from weir import Application, StreamsBuilder, String
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox
from weir.state.commit.tables import AppendTable

APP, TOPIC, PARTITIONS = "bench", "out", 4
EPOCH_ROWS, KEYS = 50_000, 50_000
VALUE = "v" * 57


def drained(rows: int, tasks: int) -> dict[str, float]:
    """Rows a second, processor seconds, and the producers that one publisher holds for ``tasks`` tasks."""
    builder = StreamsBuilder()
    builder.stream("in", key=String("user"), value=String("text")).to(TOPIC)
    (node,) = Application(APP, builder).topology.sinks
    sink = cast(KafkaTopic, node.sink)
    with tempfile.TemporaryDirectory() as made, broker_for(Settings(dir=Path(made, "weir"))) as servers:
        folder, spec = Path(made, APP), table_spec(node)
        table = AppendTable.create(folder, spec, APP)
        for epoch in range(1, rows // EPOCH_ROWS + 1):
            first = (epoch - 1) * EPOCH_ROWS
            number = pl.int_range(first, first + EPOCH_ROWS, eager=True) % KEYS
            users = pl.select(user=pl.format("user-{}", number.cast(pl.String).str.zfill(6))).to_series()
            records = pl.DataFrame({"user": users}).with_columns(text=pl.lit(VALUE), _ts=pl.lit(epoch), _deleted=False)
            outgoing = sink.outgoing(records).with_columns(_epoch=pl.lit(epoch, pl.Int64()))
            table.append(epoch, [write_file(folder, spec, each) for each in outgoing.iter_slices(EPOCH_ROWS // tasks)])
        KafkaAdmin(servers).create_topic(TOPIC, PARTITIONS)
        connections: list[KafkaConnection] = []

        def connect() -> KafkaConnection:
            connections.append(KafkaConnection(APP, sink, {"bootstrap.servers": servers}))
            return connections[-1]

        stop = Event()
        stop.set()
        publisher = Publisher(Outbox(folder, sink.name, APP), sink.name, connect, application=APP)
        started, cpu = time.monotonic(), time.process_time()
        publisher.run(Event(), stop)
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        assert publisher.state.published_rows == rows
    return {"rows_per_s": round(rows / seconds), "cpu_s": round(cpu, 2), "producers": len(connections)}


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(json.dumps({"rows": wanted, **{f"{tasks:,} tasks": drained(wanted, tasks) for tasks in (1, 1_000)}}))
