"""``python_sum`` in Bytewax; ``processes.py`` has the arguments."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.operators import StatefulBatchLogic
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from login import properties

BATCH = 10_000


class Sum(StatefulBatchLogic):  # type: ignore[misc]
    """The sum of a key; of those that a batch has changed, the newest is passed on."""

    def __init__(self, total: int | None) -> None:
        self.total = total or 0

    def on_batch(self, values: list[dict[str, Any]]) -> tuple[list[int], bool]:
        for event in values:
            self.total = add_amount(event, self.total)
        return [self.total], StatefulBatchLogic.RETAIN

    def snapshot(self) -> int:
        return self.total


def add_amount(event: dict[str, Any], total: int) -> int:
    total += event["amount"]
    return total


def recovery(folder: Path, index: int, count: int) -> RecoveryConfig:
    """The partitions that snapshots are written to; the first process makes them."""
    if index == 0:
        fresh = folder.with_name("fresh")
        fresh.mkdir()
        init_db_dir(fresh, count)
        os.rename(fresh, folder)
    while not folder.exists():
        time.sleep(0.05)
    return RecoveryConfig(folder)


def main(index: str, ports: str, client: str, topic: str, output: str, state: str) -> None:
    settings, is_first = properties(client), True
    servers = [settings.pop("bootstrap.servers")]

    def decoded(messages: list[Any]) -> list[tuple[str, dict[str, Any]]]:
        nonlocal is_first
        if is_first and messages:
            is_first = False
            print(time.monotonic(), flush=True)
        return [(message.key.decode(), orjson.loads(message.value)) for message in messages]

    flow = Dataflow("python_sum")
    source = KafkaSource(servers, [topic], tail=False, batch_size=BATCH, add_config=settings)
    events = op.flat_map_batch("decode", op.input("events", flow, source), decoded)
    totals = op.stateful_batch("sum", events, Sum)
    messages = op.map(
        "encode", totals, lambda pair: KafkaSinkMessage(pair[0].encode(), pair[1].to_bytes(8, signed=True))
    )
    sink = KafkaSink(servers, output, add_config={**settings, "linger.ms": 5, "compression.type": "lz4"})
    op.output("totals", messages, sink)
    addresses = [f"127.0.0.1:{port}" for port in ports.split(",")]
    cli_main(
        flow,
        process_id=int(index),
        addresses=addresses,
        epoch_interval=timedelta(seconds=1),
        recovery_config=recovery(Path(state, "recovery"), int(index), len(addresses)),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
