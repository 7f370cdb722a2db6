"""What a warehouse on an object store costs: ``python -m bench.object_store`` prints one JSON object.

A server of moto behind a proxy that delays each answer. First commits of three tables with a file each: requests,
bytes, how many answers follow one another, and seconds by the delay. Then a program that sums per user, two partitions
in two slots and commits each second, which reads for some seconds: records per second between its first and its last
commit, with the warehouse on the local disk, on the store, and on the store at 50 ms. The server and the proxy share
the machine's cores with the program; what that costs is in the second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import requests
from confluent_kafka import Producer

from bench import cluster
from bench.apps import CACHE_BYTES, Event
from bench.events import SMALL_BYTES, event_frame
from bench.processes import ROOT, BenchError
from tests.s3_proxy import Proxy, s3_proxy
from tests.s3_server import s3_server
from tests.state.commit.commits import TABLES, record
from weir import Application, Json, StreamsBuilder, String, Sum
from weir.infra.process import end_with_parent
from weir.state.commit.log import COMMITS, commits_above
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at, is_table, table_at

TOPIC, PARTITIONS, EVENTS = "clicks", 2, 10_000_000
DELAYS_S = (0.0, 0.02, 0.1)
DELAY_S = 0.05
COMMITS_TIMED = 5
START_LIMIT_S = 180.0

_builder = StreamsBuilder()
_clicks = _builder.stream(TOPIC, key=String("user"), value=Json(Event))
_clicks.group_by_key().agg("sums", total=Sum("amount")).to_delta("totals")
app = Application("distant", _builder, commit_interval=timedelta(seconds=1), uncommitted_max_bytes=CACHE_BYTES)


def main(seconds: float, events: int) -> None:
    with tempfile.TemporaryDirectory() as folder, _store() as proxy:
        found: dict[str, Any] = {
            "commit": {f"{1000 * delay_s:.0f}_ms": _commit(proxy, delay_s) for delay_s in DELAYS_S}
        }
        proxy.delay_s = 0.0
        with cluster.embedded(Path(folder, "broker")) as client:
            _produce(client, events)
            rates = {
                "local": _rate(client, Path(folder, "local"), Path(folder, "local", "warehouse"), seconds),
                "store": _rate(client, Path(folder, "near"), "s3://bench/near", seconds),
            }
            proxy.delay_s = DELAY_S
            rates["store_at_50_ms"] = _rate(client, Path(folder, "far"), "s3://bench/far", seconds)
        found["records_per_s"] = rates
        found["share_of_local"] = round(rates["store_at_50_ms"] / rates["local"], 2)
        found["share_of_store"] = round(rates["store_at_50_ms"] / rates["store"], 2)
    print(json.dumps(found, indent=2))


@contextmanager
def _store() -> Iterator[Proxy]:
    with s3_server() as url, s3_proxy(url) as proxy:
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": proxy.url,
        }
        requests.put(f"{url}/bench", timeout=10).raise_for_status()
        yield proxy


def _commit(proxy: Proxy, delay_s: float) -> dict[str, Any]:
    proxy.delay_s = 0.0
    warehouse = folder_at(f"s3://bench/commits-{delay_s}")
    driver, taken_s = Committer(warehouse, "app", TABLES, fingerprint="f"), []
    driver.claim()
    for epoch in range(1, COMMITS_TIMED + 1):
        written = record(warehouse, 1, epoch)
        proxy.requests, proxy.rounds, proxy.sent_bytes, proxy.got_bytes = Counter(), 0, 0, 0
        proxy.delay_s, began_s = delay_s, time.monotonic()
        driver.commit(written)
        taken_s.append(time.monotonic() - began_s)
        proxy.delay_s = 0.0
    driver.close()
    return {
        "seconds": round(statistics.median(taken_s), 3),
        "requests": dict(proxy.requests),
        "answers_in_turn": proxy.rounds,
        "sent_bytes": proxy.sent_bytes,
        "got_bytes": proxy.got_bytes,
    }


def _produce(client: Path, events: int) -> None:
    cluster.admin(client).create_topic(TOPIC, PARTITIONS)
    producer = Producer({**cluster.properties(client), "linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
    for number, (key, value) in enumerate(event_frame(0, events, SMALL_BYTES).select("key", "value").iter_rows()):
        producer.produce(TOPIC, value, key)
        if number % 100_000 == 0:
            producer.flush()
    producer.flush()


def _rate(client: Path, place: Path, warehouse: Path | str, seconds: float) -> int:
    """Records per second, by the commit log."""
    log = folder_at(warehouse) / app.id / COMMITS.name
    command = [str(Path(sys.executable).with_name("weir")), "run", "bench.object_store:app", "--dir", str(place)]
    command += ["--set", "slots=2", "--set", "snapshot_rows=0", "--set", f"warehouse={warehouse}"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=errors,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **cluster.variables(client)},
            preexec_fn=end_with_parent(),
        )
        until = time.monotonic() + START_LIMIT_S
        while not _commits(log):
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                errors.seek(0)
                raise BenchError(f"no commit within {START_LIMIT_S:g} s:\n{errors.read()[-2000:]}")
            time.sleep(0.2)
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    first, *_, last = [each for each in _commits(log) if each.reason in ("interval", "bytes")]
    return round(1000 * (_position(last) - _position(first)) / (last.at_ms - first.at_ms))


def _commits(log: Folder) -> list[CommitRecord]:
    return list(commits_above(log, file_actions(table_at(log)), 0)) if is_table(log) else []


def _position(commit: CommitRecord) -> int:
    return sum(sum(task.positions.get(TOPIC, {}).values()) for task in commit.tasks.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--events", type=int, default=EVENTS)
    arguments = parser.parse_args()
    main(arguments.seconds, arguments.events)
