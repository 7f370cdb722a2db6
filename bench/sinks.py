"""How fast a sink is drained: ``python -m bench.sinks [ROWS]`` prints one JSON object, rows a second.

The outbox is filled first, as by commits of 50,000 rows; then one publisher sends everything: to the embedded broker,
the rows of a commit coming from one task or from a thousand, and to PostgreSQL, appended to a table or as upserts of
50,000 keys. Both run on the same cores. Rows have a key and a value of 68 bytes together.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, Literal

import polars as pl

from bench import cluster
from weir import Application, KStream, StreamsBuilder, String
from weir.pipelines.publishing.connection import Connection
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.publishing.sql import SqlConnection
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox
from weir.state.commit.tables import AppendTable

APP, TOPIC, PARTITIONS = "bench", "out", 4
EPOCH_ROWS, KEYS = 50_000, 50_000
VALUE = "v" * 57


def rows_of(epoch: int) -> pl.DataFrame:
    """What reaches the sink in an epoch."""
    first = (epoch - 1) * EPOCH_ROWS
    number = pl.int_range(first, first + EPOCH_ROWS, eager=True) % KEYS
    users = pl.select(user=pl.format("user-{}", number.cast(pl.String).str.zfill(6))).to_series()
    return pl.DataFrame({"user": users}).with_columns(text=pl.lit(VALUE), _ts=pl.lit(epoch), _deleted=False)


def drained(
    folder: Path, rows: int, describe: Callable[[KStream], object], connect: Callable[[Any], Connection], tasks: int = 1
) -> dict[str, float]:
    """Rows a second, and processor seconds of the publisher, of a sink that ``describe`` adds to a stream."""
    builder = StreamsBuilder()
    describe(builder.stream("in", key=String("user"), value=String("text")))
    (node,) = Application(APP, builder).topology.sinks
    sink, spec = node.sink, table_spec(node)
    assert sink is not None
    table = AppendTable.create(folder / APP, spec, APP)
    for epoch in range(1, rows // EPOCH_ROWS + 1):
        outgoing = sink.outgoing(rows_of(epoch)).with_columns(_epoch=pl.lit(epoch, pl.Int64()))
        table.append(
            epoch, [write_file(folder / APP, spec, each) for each in outgoing.iter_slices(EPOCH_ROWS // tasks)]
        )
    stop = Event()
    stop.set()
    publisher = Publisher(Outbox(folder / APP, sink.name, APP), sink.name, lambda: connect(sink), application=APP)
    started, cpu = time.monotonic(), time.process_time()
    publisher.run(Event(), stop)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    assert publisher.state.published_rows == rows
    return {"rows_per_s": round(rows / seconds), "cpu_s": round(cpu, 2)}


def to_kafka(rows: int, tasks: int) -> dict[str, float]:
    """To a topic of the embedded broker."""
    with tempfile.TemporaryDirectory() as folder, cluster.embedded(Path(folder, "broker")) as client:
        cluster.admin(client).create_topic(TOPIC, PARTITIONS)
        return drained(
            Path(folder),
            rows,
            lambda stream: stream.to(TOPIC),
            lambda sink: KafkaConnection(APP, sink, cluster.properties(client)),
            tasks,
        )


def to_postgresql(rows: int, mode: Literal["append", "upsert"]) -> dict[str, float]:
    """To a table of a server that is started here."""
    from pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory() as folder:
        server = get_server(tempfile.mkdtemp(prefix="weir-postgresql-"), cleanup_mode="delete")
        try:
            return drained(
                Path(folder),
                rows,
                lambda stream: stream.to_sql("out", mode=mode, url=str(server.get_uri())),
                lambda sink: SqlConnection(APP, sink, ""),
            )
        finally:
            server.cleanup()


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    figures = {f"Kafka, {tasks:,} tasks": to_kafka(wanted, tasks) for tasks in (1, 1_000)}
    figures |= {f"PostgreSQL, {mode}": to_postgresql(wanted, mode) for mode in ("append", "upsert")}
    print(json.dumps({"rows": wanted, **figures}))
