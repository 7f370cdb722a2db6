"""How near a run comes to balance with one heavy task: ``python -m bench.heavy_task [--records N] [--workers N]``.

Of a topic's partitions (``--partitions``, 4), one has 60 % of the records; a function takes 0.6 ms for each, and they
are summed per key. The slots (``--slots``, 2) are on the workers of a standalone cluster (2), or on this host with
``--workers 0``. A task is not divided, so nothing is faster than what the heavy one takes; and each executor gets its
share of the tasks, so one of few slots has others beside the heavy one. Prints one JSON object, with the moves and when
they were made.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench import cluster
from bench.apps import Event
from bench.drivers import configure, driver
from bench.processes import BenchError
from weir import Application, Json, StreamsBuilder, String, Sum
from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.infra.spark.standalone import StandaloneCluster

TOPIC, USERS = "events", 1_000
HEAVY = 0.6
"""The share of the first partition."""
CALL_S = 0.0006
SLEEPS = 0.8
"""The share of a call that sleeps: what is left is more than the system oversleeps."""
LIMIT_S = 1_200.0


def _called(event: Event) -> Event:
    until_s = time.perf_counter() + CALL_S
    time.sleep(SLEEPS * CALL_S)
    while time.perf_counter() < until_s:
        pass
    return event


def _application() -> Application:
    builder = StreamsBuilder()
    events = builder.stream(TOPIC, key=String("user"), value=Json(Event)).map_values(_called)
    events.group_by_key().agg("sums", total=Sum("amount")).to_delta("totals")
    return Application("heavy_task", builder, commit_interval=timedelta(seconds=1))


app = _application()


def main(records: int, workers: int, slots: int, partitions: int) -> None:
    heavy = round(HEAVY * records)
    light = (records - heavy) // (partitions - 1)
    counts = [heavy, *[light] * (partitions - 1)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = stack.enter_context(cluster.embedded(folder / "broker"))
        _produce(client, counts)
        settings, there = Settings(dir=folder / "driver", slots=slots), dict[str, Any]()
        if workers:
            planned = settings.model_copy(update={"executors": workers})
            settings = stack.enter_context(StandaloneCluster(folder / "cluster", planned, workers)).settings
            there = {"master": settings.master, "executors": workers}
        configure(folder, dict(settings.spark), slots=slots, **there)
        with driver(client, folder, "bench.heavy_task:app", "--until-caught-up") as process:
            process.wait(LIMIT_S)
        said = " ".join((folder / "output").read_text().split())
        if (found := re.search(r"has caught up: ([\d,]+) records in ([\d.]+) s", said)) is None:
            raise BenchError(f"weir run ended with code {process.returncode}:\n{said[-2000:]}")
        read, seconds = int(found[1].replace(",", "")), float(found[2])
        if read != sum(counts):
            raise BenchError(f"{read} of {sum(counts)} records were read")
        share = heavy + (partitions // max(1, workers) - 1) * light
        least_s = CALL_S * max(heavy, share / (slots // max(1, workers)))
        result = {
            "records": read,
            "heavy_task_s": round(CALL_S * heavy, 1),
            "balance_allows_s": round(least_s, 1),
            "seconds": seconds,
            "above": f"{100 * (seconds / least_s - 1):.0f} %",
            "moves": _moves(settings),
        }
        print(json.dumps(result, indent=2))


def _moves(settings: Settings) -> list[dict[str, Any]]:
    begun, *later = ControlDatabase(settings.control_database_url).assignments(app.id)
    return [
        {
            "after_s": round((row.at_ms - begun.at_ms) / 1000, 1),
            **{name: move[name] for name in ("task", "role", "target")},
        }
        for row in later
        for move in row.moves
    ]


def _produce(client: Path, counts: list[int]) -> None:
    cluster.admin(client).create_topic(TOPIC, len(counts))
    producer = Producer({**cluster.properties(client), "linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(TOPIC, b'{"amount":1}', b"user-%d-%d" % (partition, number % USERS), partition=partition)
        producer.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=120_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args()
    main(given.records, given.workers, given.slots, given.partitions)
