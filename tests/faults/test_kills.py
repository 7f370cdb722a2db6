"""Real processes, killed with SIGKILL: drivers and Python workers, at every named step and at random times.

Each run must end with the outputs, changelogs and stores of an undisturbed run. ``FAULT_KILLS`` sets how many kills
are ordered in all; ``make faults`` asks for 300.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.faults.applications import PARTITIONS, TOPIC, records
from tests.faults.hook import FAULTS_DIR, STEPS_FILE, left, order
from tests.faults.outcome import assert_same, outcome

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.spark]

WORKER_STEPS = ("blob written", "files written", "state written", "blob consumed", "undo dropped")
DRIVER_STEPS = ("pivot appended", "table appended", "settled")
KILLS = int(os.environ.get("FAULT_KILLS", "31"))
ROWS = 400 * KILLS
START_LIMIT_S = 240


@pytest.fixture(scope="module")
def brokers(broker, kafka_admin):
    """A topic with the records of all runs here."""
    kafka_admin.create_topic(TOPIC, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 20})
    for partition, key, value, timestamp_ms in records(ROWS):
        producer.produce(TOPIC, value, key, partition=partition, timestamp=timestamp_ms)
        producer.poll(0)
    producer.flush()
    return broker


class Runs:
    """Drivers of the faulty application, one after another, in one folder."""

    def __init__(self, base: Path, brokers: str) -> None:
        self.folder, self.faults, self.brokers = base / "weir", base / "faults", brokers
        self.faults.mkdir(parents=True)

    def start(self) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-m", "tests.faults.drive", str(self.folder), self.brokers],
                                env={**os.environ, FAULTS_DIR: str(self.faults)}, stderr=subprocess.PIPE)

    def run(self) -> int:
        """One driver to its end; gives its exit code."""
        driver = self.start()
        _, errors = driver.communicate(timeout=START_LIMIT_S)
        assert driver.returncode in (0, -9), errors.decode()
        return driver.returncode

    def steps(self) -> list[str]:
        return (self.faults / STEPS_FILE).read_text().splitlines()

    def outcome(self) -> dict:
        return outcome(self.folder / "warehouse" / "faulty", self.folder / "state" / "faulty")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, brokers):
    runs = Runs(tmp_path_factory.mktemp("undisturbed"), brokers)
    assert runs.run() == 0
    assert set(WORKER_STEPS + DRIVER_STEPS) <= set(runs.steps())
    return runs.outcome()


def test_killed_workers_leave_what_an_undisturbed_run_leaves(tmp_path, brokers, undisturbed):
    """All within one Spark session: Spark starts the task again, and the same plan changes nothing twice."""
    runs = Runs(tmp_path, brokers)
    order(runs.faults, [("worker", step) for step in WORKER_STEPS] * max(3, KILLS // 10))
    assert runs.run() == 0
    assert left(runs.faults) == 0, "every kill was carried out"
    assert_same(runs.outcome(), undisturbed)


def test_killed_drivers_leave_what_an_undisturbed_run_leaves(tmp_path, brokers, undisturbed):
    runs = Runs(tmp_path, brokers)
    order(runs.faults, [("driver", step) for step in WORKER_STEPS + DRIVER_STEPS] * max(2, KILLS // 16))
    while left(runs.faults):
        assert runs.run() == -9
    assert runs.run() == 0
    assert_same(runs.outcome(), undisturbed)
    lives = "\n".join(runs.steps()).split("driver starts")
    mended = sum("rolled back" in life or "append redone" in life for life in lives)
    assert mended >= 10, "kills that nobody had to mend prove nothing"


def test_drivers_killed_at_random_times_leave_what_an_undisturbed_run_leaves(tmp_path, brokers, undisturbed):
    runs, rng, kills = Runs(tmp_path, brokers), random.Random(3), max(3, KILLS // 10)
    for _ in range(kills):
        driver = runs.start()
        time.sleep(rng.uniform(0.5, 9.0))
        driver.kill()
        driver.communicate()
    assert runs.run() == 0
    assert_same(runs.outcome(), undisturbed)
