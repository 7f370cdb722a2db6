"""A store that is slow in its slot, on a real broker and real Spark: the sensor finds it, and has its task restored in
another slot, which ends a lag that would have lasted for minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import dagster as dg
import pytest
from confluent_kafka import Producer

from tests.integration.slow_store import DELAY_S, SLOW_SLOT, TOPIC, app
from tests.waiting import wait_for
from weir.infra.control import ControlDatabase
from weir.orchestration.application import supervise
from weir.orchestration.resources import WeirResource
from weir.orchestration.sensors.lag import lag_sensor
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.operations.actions import actions_of
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

MANY, FEW = 15_000, 300
"""Records of the two partitions, each of another user: the many go to the task in the slow slot."""
IN_TIME_S = 120.0
"""Much less than the task would take there."""
REFERENCE = "tests.integration.slow_store:app"


@pytest.fixture
def driver(settings, broker, kafka_admin):
    """``weir run`` over both partitions, with epochs of at most 200 records."""
    kafka_admin.create_topic(TOPIC, 2)
    producer = Producer({"bootstrap.servers": broker})
    for partition, count in enumerate((MANY, FEW)):
        for number in range(count):
            producer.produce(TOPIC, "page", f"user-{partition}-{number}", partition=partition)
            producer.poll(0)
    producer.flush()
    driver = subprocess.Popen(
        [
            *(sys.executable, "-c", "from weir.pipelines.cli import main; main()"),
            *("run", REFERENCE, "--dir", str(settings.dir)),
            *("--bootstrap-servers", broker, "--set", "slots=2", "--set", "max_epoch_records=200"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    yield driver
    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 0


def test_a_restore_to_another_slot_ends_the_lag_of_a_task_whose_store_is_slow(settings, driver):
    assert MANY * DELAY_S > 2 * IN_TIME_S
    database = ControlDatabase(settings.control_database_url)
    sensor = lag_sensor([supervise(app, REFERENCE, thresholds=Thresholds(lag_max_records=1_000))])
    with dg.DagsterInstance.ephemeral() as instance:

        def asked() -> list[str]:
            resources = {"weir": WeirResource(dir=str(settings.dir))}
            sensor(dg.build_sensor_context(instance=instance, resources=resources))
            return [request.kind for request in database.requests_by("slow_store", "dagster sensor weir_lag", 0)]

        def slots() -> dict[str, int]:
            status = database.application_status("slow_store")
            return {task.task: task.slot for task in status.tasks} if status else {}

        wait_for(lambda: len(slots()) == 2, "it runs")
        assert slots() == {"0_0": SLOW_SLOT, "0_1": 1}
        wait_for(asked, "the sensor has found the slow store")
        took_s = wait_for(lambda: _lag(database) == 0, "everything is read", IN_TIME_S)
        assert slots() == {"0_0": 1, "0_1": 1}
        assert asked() == ["restore"]
        [action] = actions_of(database, "slow_store")
        print(f"lag 0 after {took_s:.1f} s: {action}")
    assert action.measured.startswith("task 0_0 alone is behind, by ")
    assert "because its store is slow" in action.measured
    assert (action.task, action.did) == ("0_0", "task 0_0 is restoring in slot 1")
    assert action.lag_before > 1_000
    assert action.lag_after < action.lag_before
    wait_for(lambda: _visits(settings) == {(user, 1) for user in _users()}, "each user is counted once")


def _lag(database: ControlDatabase) -> int:
    status = database.application_status("slow_store")
    return -1 if status is None or status.metric is None else status.metric.lag


def _users() -> set[str]:
    return {f"user-{partition}-{number}" for partition, count in enumerate((MANY, FEW)) for number in range(count)}


def _visits(settings) -> set[tuple[str, int]]:
    return set(read_table(settings.warehouse / "slow_store" / "totals").select("user", "visits").iter_rows())
