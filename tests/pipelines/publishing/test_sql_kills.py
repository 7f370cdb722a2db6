"""Whole runs with SQL sinks, killed at each step of publishing: the tables are what plain Python computes."""

import os
import random
import subprocess
import sys
from collections import defaultdict

import pytest
from confluent_kafka import Producer

from tests.faults.hook import FAULTS_DIR, left, order
from tests.pipelines.publishing.sql_program import DATABASE, ORDERS

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.long]

PARTITIONS, RECORDS, EPOCH_ROWS, LIFE_LIMIT_S = 2, 800, 100, 120
"""``RECORDS`` come before each life of the driver."""
MOST_LIVES = 10
STEPS = ("rows read", "rows published", "outbox emptied")
DRIVER_DEATHS = ("rows read", "rows published", "pivot appended")


def test_tables_have_each_row_once_whoever_is_killed_while_it_is_published(tmp_path, broker, topic, postgresql):
    folder, faults = tmp_path / "weir", tmp_path / "faults"
    faults.mkdir()
    environment = {ORDERS: topic(PARTITIONS), DATABASE: postgresql.url, FAULTS_DIR: str(faults)}
    producer, rng = Producer({"bootstrap.servers": broker, "linger.ms": 20}), random.Random(5)
    checked, totals, codes = defaultdict(list), defaultdict(lambda: (0, 0)), []
    order(faults, [("worker", step) for step in STEPS] + [("driver", step) for step in DRIVER_DEATHS])
    while (has_kills := left(faults) > 0) or codes[-1] != 0:
        assert len(codes) < MOST_LIVES
        for _ in range(RECORDS * has_kills):
            customer, cents = f"customer-{rng.randrange(20)}", rng.randrange(-100, 1000)
            producer.produce(environment[ORDERS], cents.to_bytes(8, "big", signed=True), customer, timestamp=1_000)
            if cents >= 0:
                checked[customer].append(cents)
            totals[customer] = totals[customer][0] + cents, totals[customer][1] + 1
        producer.flush()
        program = "tests.pipelines.publishing.sql_program:app"
        command = [sys.executable, "-m", "tests.faults.drive", str(folder), broker, str(EPOCH_ROWS), program]
        life = subprocess.run(command, env={**os.environ, **environment}, timeout=LIFE_LIMIT_S, check=False)
        codes.append(life.returncode)
    assert codes.count(-9) == len(DRIVER_DEATHS)
    found = defaultdict(list)
    for row in postgresql.rows("checked"):
        found[row["customer"]].append(row["cents"])
    assert found == checked
    assert {row["customer"]: (row["total"], row["orders"]) for row in postgresql.rows("customer_totals")} == {
        customer: each for customer, each in totals.items() if each[0] % 2 == 0
    }
