"""Real processes, killed with SIGKILL: drivers and Python workers, at every named step and at random times.

Each run must end with the outputs, changelogs and stores of an undisturbed run. ``FAULT_KILLS`` sets how many kills
there are in total, at least one per step and one at a random time; ``make faults`` runs 300.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from tests.faults.applications import PARTITIONS, TOPIC, app, records
from tests.faults.hook import DRIVER_STEPS, FAULTS_DIR, STARTS, WORKER_STEPS, left, order, steps
from tests.faults.outcome import Unfinished, assert_same, outcome, unfinished
from tests.waiting import wait_for
from weir.state.commit.log import newest_commit
from weir.state.engine.instances import current_instance
from weir.state.engine.views import open_reader
from weir.state.types import IsolationLevel, TaskId

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.spark]

EVERY_STEP = (*DRIVER_STEPS, *WORKER_STEPS)
FEWEST_KILLS = len(WORKER_STEPS) + len(EVERY_STEP) + 1
"""A worker at each of its steps, a driver at every step, and a driver at a random time."""
KILLS = max(FEWEST_KILLS, int(os.environ.get("FAULT_KILLS", FEWEST_KILLS)))
WORKER_KILLS, RANDOM_KILLS = max(len(WORKER_STEPS), (KILLS - len(EVERY_STEP)) // 2), max(1, KILLS // 10)
STEP_KILLS = KILLS - WORKER_KILLS - RANDOM_KILLS
MENDED_STEPS = ("pivot appended", *WORKER_STEPS)
"""Where a driver's death always leaves work unfinished; at a worker's steps the hook waits for uncommitted state."""
LIVES = 6
"""Until what a test waits for is there when one is killed."""
ROWS = max(12_000, 500 * KILLS)
EPOCH_ROWS = 800
LIFE_LIMIT_S, DEATH_LIMIT_S = 240, 30


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
        self.warehouse, self.state = self.folder / "warehouse", self.folder / "state" / app.id
        self.faults.mkdir(parents=True)

    def start(self, epoch_rows: int = EPOCH_ROWS) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.drive", str(self.folder), self.brokers, str(epoch_rows)],
            env={**os.environ, FAULTS_DIR: str(self.faults)},
            stderr=subprocess.PIPE,
        )

    def run(self, epoch_rows: int = EPOCH_ROWS) -> int:
        """Run one driver to its end; returns its exit code."""
        driver = self.start(epoch_rows)
        _, errors = driver.communicate(timeout=LIFE_LIMIT_S)
        assert driver.returncode in (0, -9), errors.decode()
        return driver.returncode

    def die(self, step: str) -> Unfinished:
        """Run one driver until it and all it started die at ``step``; returns what it left unfinished."""
        order(self.faults, [("driver", step)])
        assert self.run() == -9, f"the driver caught up before it met {step!r}"
        wait_for(
            lambda: not any(map(self._has_started, psutil.process_iter())),
            "no process outlives the driver",
            DEATH_LIMIT_S,
        )
        return unfinished(self.warehouse, self.state)

    def die_and_finish(self, kills: Sequence[str], undisturbed: dict) -> list[Unfinished]:
        """Run drivers that die at these steps in turn, then an undisturbed one; returns what each death left."""
        found = [self.die(step) for step in kills]
        assert_same(self.finish(), undisturbed)
        for step, rest in zip(kills, found, strict=True):
            assert rest.is_its_own or step not in MENDED_STEPS, f"at {step!r} nothing to mend: the kill proves nothing"
        assert [life.count("append redone") for life in self.lives()] == [0, *(len(rest.tables) for rest in found)]
        return found

    def finish(self) -> dict:
        """Run an undisturbed driver in a few large epochs; returns the outcome."""
        assert self.run(ROWS) == 0
        return self.outcome()

    def outcome(self) -> dict:
        """What a driver that has caught up left behind."""
        rest = unfinished(self.warehouse, self.state)
        assert not rest.states
        assert not rest.tables
        return outcome(self.warehouse / app.id, self.state)

    def lives(self) -> list[list[str]]:
        """The steps of each driver so far."""
        return [life.splitlines() for life in "\n".join(steps(self.faults)).split(STARTS)[1:]]

    def _has_started(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(FAULTS_DIR) == str(self.faults)
        except psutil.Error:  # it has just ended
            return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, brokers):
    return Runs(tmp_path_factory.mktemp("undisturbed"), brokers).finish()


def test_killed_workers_leave_what_an_undisturbed_run_leaves(tmp_path, brokers, undisturbed):
    """All in one Spark session: Spark starts the task again, and the same plan changes nothing twice."""
    runs = Runs(tmp_path, brokers)
    order(runs.faults, [("worker", step) for step in islice(cycle(WORKER_STEPS), WORKER_KILLS)])
    assert runs.run() == 0
    assert left(runs.faults) == 0, "every kill was carried out"
    assert_same(runs.outcome(), undisturbed)


def test_killed_drivers_leave_what_an_undisturbed_run_leaves(tmp_path, brokers, undisturbed):
    """Every other kill is in a second folder, at the same time: while one driver starts, the other works."""
    places = [Runs(tmp_path / name, brokers) for name in ("first", "second")]
    kills = [*EVERY_STEP, *islice(cycle(MENDED_STEPS), STEP_KILLS - len(EVERY_STEP))]
    with ThreadPoolExecutor() as pool:
        halves = [pool.submit(runs.die_and_finish, kills[each::2], undisturbed) for each, runs in enumerate(places)]
        found = [rest for half in halves for rest in half.result()]
    assert sum(rest.is_its_own for rest in found) >= len(kills) - len({*EVERY_STEP} - {*MENDED_STEPS})
    assert all(any("rolled back" in life for life in runs.lives()) for runs in places)


def test_a_driver_killed_between_producing_and_consuming_a_blob_that_a_commit_lists(tmp_path, brokers, undisturbed):
    """PROTOCOL 23: a task that has lost its store restores, and what others send it waits in the commit row."""
    runs = Runs(tmp_path, brokers)
    targets = [app.topology.task_name(TaskId(1, partition)) for partition in range(PARTITIONS)]
    target = next(found for _ in range(LIVES) for found in targets_with_rows(runs, targets))
    shutil.rmtree(current_instance(runs.state / target))
    commit = next(commit for _ in range(LIVES) if (commit := commit_of_a_life(runs)).reason == "restore")
    assert target in {blob.target for blob in commit.pending_blobs}
    assert_same(runs.finish(), undisturbed)


def targets_with_rows(runs, targets):
    """After a life that was killed at its first commit, which may be of the sources alone."""
    runs.die("pivot appended")
    return [task for task in targets if rows_of(runs.state / task)]


def commit_of_a_life(runs):
    runs.die("pivot appended")
    return newest_commit(runs.warehouse, app.id)


def rows_of(task: Path) -> int:
    instance = current_instance(task)
    if instance is None:
        return 0
    with open_reader(instance, IsolationLevel.READ_UNCOMMITTED) as reader:
        return reader.count("by_kind")


@pytest.mark.long
def test_drivers_killed_at_random_times_leave_what_an_undisturbed_run_leaves(tmp_path, brokers, undisturbed):
    """Within two seconds of its first step; the next starts at once, while workers of the dead one may still run."""
    runs, rng = Runs(tmp_path, brokers), random.Random(3)
    for life in range(1, RANDOM_KILLS + 1):
        driver = runs.start()
        while driver.poll() is None and not any(runs.lives()[life - 1 :]):
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 2.0))
        driver.kill()
        driver.communicate()
    assert_same(runs.finish(), undisturbed)
