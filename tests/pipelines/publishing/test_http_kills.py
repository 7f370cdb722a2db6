"""Whole runs with sinks that get batches, killed at each step: every row arrives, and repeats are recognizable."""

import json
import os
import random
import subprocess
import sys
from collections import defaultdict

import pytest
from confluent_kafka import Producer

from tests.faults.hook import FAULTS_DIR, left, order
from tests.pipelines.publishing.batches_shop import ORDERS, TOKEN, TOTALS, URL
from tests.pipelines.publishing.requests_server import DROP, Answer, RequestsServer

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.long]

PARTITIONS, RECORDS, EPOCH_ROWS, LIFE_LIMIT_S = 2, 800, 100, 120
"""``RECORDS`` come before each life of the driver."""
MOST_LIVES = 10
STEPS = ("rows read", "rows published", "outbox emptied")
DRIVER_DEATHS = ("rows read", "pivot appended")


def drive(folder, faults, broker, environment):
    """One driver until it has caught up or dies."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.faults.drive", str(folder), broker, str(EPOCH_ROWS)),
            "tests.pipelines.publishing.batches_shop:app",
        ],
        env={**os.environ, **environment, FAULTS_DIR: str(faults)},
        timeout=LIFE_LIMIT_S,
        check=False,
    ).returncode


def test_endpoints_get_each_row_whoever_is_killed_while_it_is_sent(tmp_path, broker, topic):
    folder, faults, lines = tmp_path / "weir", tmp_path / "faults", tmp_path / "totals.ndjson"
    faults.mkdir()
    server = RequestsServer()
    environment = {ORDERS: topic(PARTITIONS), URL: server.url, TOTALS: str(lines), TOKEN: "Bearer secret"}
    producer, rng, number = Producer({"bootstrap.servers": broker, "linger.ms": 20}), random.Random(5), 0
    checked, counts, codes = defaultdict(list), defaultdict(int), []
    order(faults, [("worker", step) for step in STEPS] + [("driver", step) for step in DRIVER_DEATHS])
    try:
        while (has_kills := left(faults) > 0) or codes[-1] != 0:
            assert len(codes) < MOST_LIVES
            server.next += [Answer(), Answer(503), Answer(DROP)]
            for _ in range(RECORDS * has_kills):
                number += 1
                user, value = f"user-{rng.randrange(20)}", number if rng.random() < 0.9 else -number
                producer.produce(environment[ORDERS], value.to_bytes(8, "big", signed=True), user, timestamp=1_000)
                if value >= 0:
                    checked[user].append(value)
                counts[user] += 1
            producer.flush()
            codes.append(drive(folder, faults, broker, environment))
    finally:
        server.close()
    assert codes.count(-9) == len(DRIVER_DEATHS)
    found = defaultdict(list)
    for request in server.delivered():
        for row in request.rows:
            found[row["user"]].append(row["number"])
    assert found == checked
    server.check_repeats("number")
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer secret"}
    batches = {}
    for line in lines.read_text().splitlines():
        batch = json.loads(line)
        assert batches.setdefault(batch["key"], batch["totals"]) == batch["totals"]
    totals = defaultdict(list)
    for user, count in (row for batch in batches.values() for row in batch):
        totals[user].append(count)
    assert {user: each[-1] for user, each in totals.items()} == counts
    assert all(each == sorted(set(each)) for each in totals.values()), "each update once, in order"
