"""The lag as the brokers say it, whoever runs; compared with what a producer has counted."""

import time

import dagster as dg
import pytest
from confluent_kafka import Producer

from tests.orchestration.applications import START_S, clicks
from tests.orchestration.readings import task
from weir.infra.control.rows import MetricRow
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings
from weir.orchestration.application import supervise
from weir.orchestration.checks.lag import lag_result
from weir.orchestration.sensors.reports import reports_sensor
from weir.pipelines.operations.actions import actions_of
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.types import StateId, TaskId

pytestmark = pytest.mark.broker
PARTITIONS, EACH = 2, 30


@pytest.fixture
def clicking(broker, settings, monkeypatch):
    """The application, and 30 records in each partition of its topic."""
    KafkaAdmin(broker).create_topic("clicks", PARTITIONS)
    producer = Producer({"bootstrap.servers": broker})
    for partition in range(PARTITIONS):
        for _ in range(EACH):
            producer.produce("clicks", b"page", b"user", partition)
    assert producer.flush(30) == 0
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", broker)
    yield supervise(clicks("clicking"), "nowhere:app")
    KafkaAdmin(broker).delete_topic("clicks")


@pytest.fixture
def lag(clicking, broker, settings, database):
    def look() -> tuple[bool, int, str]:
        found = lag_result(clicking, settings, database.application_status("clicking"), KafkaAdmin(broker))
        return found.passed, found.metadata["lag_records"].value, found.description

    return look


def commit(settings: Settings, application, offsets: dict[int, int]) -> None:
    committer = Committer(settings.warehouse, application.id, application_tables(application.topology), fingerprint="f")
    generation = committer.claim().generation
    name = application.topology.task_name(TaskId(0, 0))
    committer.commit(
        CommitRecord(
            kind="commit",
            generation=generation,
            epoch=1,
            at_ms=START_S * 1000,
            fingerprint="f",
            tasks={name: TaskCommit(state=StateId(generation, 1), instance="i", positions={"clicks": offsets})},
        )
    )
    committer.close()


def test_it_counts_what_no_commit_covers_and_no_running_driver_has_read(clicking, lag, settings, database):
    assert lag() == (False, 60, "60 records wait, and nobody reads them; nothing was committed yet")
    commit(settings, clicking.application, {0: 10, 1: 30})
    assert lag() == (True, 20, "20 records wait, and nobody reads them")
    lease = database.acquire_lease("clicking", owner="weir run", pid=1, host="elsewhere", ttl_s=60)
    database.heartbeat(lease, state="paused")
    database.report_tasks("clicking", [task(positions={"clicks": {"0": 25}})])
    assert lag() == (True, 5, "5 records wait, and the driver is paused")
    database.release(lease)
    assert lag() == (True, 20, "20 records wait, and nobody reads them"), "what it had read is to be read again"


def test_it_says_how_long_the_work_takes_at_the_pace_of_the_last_hour(clicking, lag, settings, database):
    commit(settings, clicking.application, {0: 0, 1: 0})
    lease = database.acquire_lease("clicking", owner="weir run", pid=1, host="elsewhere", ttl_s=60)
    row = MetricRow(epoch=1, committed_epoch=1, records_in=9, records_per_s=4.0, lag=60, commit_ms=1.0)
    database.add_metric("clicking", row)
    database.release(lease)
    assert lag() == (True, 60, "60 records wait, 15.0 s of work, and nobody reads them")


def test_the_sensor_reports_it_although_nothing_runs(clicking, instance, tick):
    tick(reports_sensor([clicking]))
    key = dg.AssetCheckKey(clicking.ingest, "lag")
    [record] = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert not record.evaluation.passed
    assert record.evaluation.metadata["lag_by_partition"].value == {"clicks-0": 30, "clicks-1": 30}


def test_what_sensors_have_done_about_it_is_in_the_metadata(clicking, settings, database, broker):
    request = database.request("clicking", "pace", by="dagster sensor weir_lag", reason="commits take 40% of the time")
    database.finish_request(request, "commits every 1 s")
    found = lag_result(clicking, settings, None, KafkaAdmin(broker), actions_of(database, "clicking"))
    [row] = found.metadata["actions"].records
    assert {name: value for name, value in row.data.items() if name != "at"} == {
        "sensor": "weir_lag",
        "measured": "commits take 40% of the time",
        "did": "commits every 1 s",
        "brought": "not known yet",
    }


def test_a_broker_that_does_not_answer_leaves_the_lag_unknown(clicking, settings, database):
    began_s = time.monotonic()
    found = lag_result(clicking, settings, None, KafkaAdmin("127.0.0.1:1", time_limit_s=0.5))
    assert not found.passed
    assert found.description.startswith("the lag is unknown: ")
    assert "127.0.0.1:1" in found.description
    assert time.monotonic() - began_s < 5
