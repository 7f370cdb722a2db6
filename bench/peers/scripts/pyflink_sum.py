"""``python_sum`` in PyFlink: ``pyflink_sum.py CLIENT IN OUT STATE JARS KEY=VALUE...``.

Records are read, decoded and written by Flink's own connectors; the function runs in Flink's Python processes. Prints
one JSON object: records, and seconds from the first record to the end of the job.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from login import properties
from pyflink.common import Configuration, Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment

CONSUMER = {"max.poll.records": "5000", "fetch.max.bytes": "50000000", "max.partition.fetch.bytes": "4000000"}
CLOSED_WITHIN_S = 10.0
PRODUCER = {"transaction.timeout.ms": "600000", "linger.ms": "50", "batch.size": "262144", "compression.type": "lz4"}


def add_amount(total: int, amount: int) -> int:
    return total + amount


class Sum(KeyedProcessFunction):  # type: ignore[misc]
    """The running sum of a key; notes in the folder ``seen`` when its first record came, and how many there were."""

    def __init__(self, seen: str) -> None:
        self._seen, self._first, self._count, self._total = seen, 0.0, 0, None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._note().touch()
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        if self._count == 0:
            self._first = time.monotonic()
        self._count += 1
        state: Any = self._total
        total = add_amount(state.value() or 0, value[1])
        state.update(total)
        yield Row(value[0], total)

    def close(self) -> None:
        self._note().write_text(f"{self._first} {self._count}")

    def _note(self) -> Path:
        return Path(self._seen, f"{os.getpid()}-{id(self)}")


def with_options(client: dict[str, str], topic: str, others: dict[str, str]) -> str:
    options = {
        "connector": "kafka",
        "topic": topic,
        "key.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
        **{f"properties.{name}": value for name, value in client.items()},
        **others,
    }
    return ", ".join("'{}' = '{}'".format(name, value.replace("'", "''")) for name, value in options.items())


def noted(seen: Path) -> list[tuple[float, int]]:
    """What each function has noted; those that are closed behind the job are waited for."""
    until = time.monotonic() + CLOSED_WITHIN_S
    while not all(notes := [file.read_text().split() for file in seen.iterdir()]) and time.monotonic() < until:
        time.sleep(0.05)
    return [(float(note[0]), int(note[1])) for note in notes if note]


def main(client: str, topic: str, output: str, state: str, jars: str, *settings: str) -> None:
    seen = Path(state, "seen")
    seen.mkdir()
    configuration = Configuration()
    for name, value in (setting.split("=", 1) for setting in settings):
        configuration.set_string(name, value)
    configuration.set_string("pipeline.jars", ";".join(f"file://{jar}" for jar in jars.split(",")))
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(environment)
    source = {
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "value.format": "json",
        "key.fields": "user",
    }
    sink = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": output,
        "value.format": "raw",
        "key.fields": "key",
    }
    login = properties(client)
    tables.execute_sql(
        "CREATE TABLE events (`user` STRING, amount BIGINT NOT NULL) "
        f"WITH ({with_options({**login, **CONSUMER}, topic, source)})"
    )
    tables.execute_sql(
        f"CREATE TABLE totals (`key` STRING, total BIGINT) WITH ({with_options({**login, **PRODUCER}, output, sink)})"
    )
    totals = (
        tables.to_data_stream(tables.from_path("events"))
        .key_by(lambda event: event[0], Types.STRING())
        .process(Sum(str(seen)), Types.ROW_NAMED(["key", "total"], [Types.STRING(), Types.LONG()]))
    )
    tables.from_data_stream(totals).execute_insert("totals").wait()
    ended = time.monotonic()
    found = noted(seen)
    first, count = min(first for first, count in found if count), sum(count for _, count in found)
    print(json.dumps({"records": count, "seconds": ended - first}))


if __name__ == "__main__":
    main(*sys.argv[1:])
