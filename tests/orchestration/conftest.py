"""The flights application without a driver: commits and leases are written as a driver writes them."""

import os

import dagster as dg
import pytest

from tests.orchestration.applications import START_S, TASKS
from weir.infra.control import ControlDatabase, Lease, this_host
from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource
from weir.pipelines.examples.flights import app
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.types import StateId


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(dir=tmp_path)


@pytest.fixture
def database(settings) -> ControlDatabase:
    return ControlDatabase(settings.control_database_url)


@pytest.fixture
def drive(database):
    """``drive(owner, pid)`` takes the lease as a driver does."""

    def acquire(owner: str = "weir run", pid: int | None = None) -> Lease:
        return database.acquire_lease(
            "flights", owner=owner, pid=pid or os.getpid(), host=this_host(), ttl_s=60, take_over=True
        )

    return acquire


@pytest.fixture
def committer(settings):
    driver = Committer(settings.warehouse, app.id, application_tables(app.topology), fingerprint="f")
    driver.claim()
    yield driver
    driver.close()


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def commit_of():
    """``commit_of(epoch, at_s, offset, totals)`` is a commit of two tasks, the first read up to ``offset``."""

    def make(
        epoch: int,
        *,
        at_s: float = START_S,
        offset: int = 10,
        records_in: int | None = None,
        dead_letters: int = 0,
        late_records: int = 1,
        **fields,
    ) -> CommitRecord:
        first = {
            "records_in": offset if records_in is None else records_in,
            "late_records": late_records,
            "dead_letters": dead_letters,
        }
        tasks = {
            TASKS[0]: TaskCommit(
                state=StateId(1, epoch), instance="i", positions={"flights": {0: offset}}, totals=first
            ),
            TASKS[1]: TaskCommit(state=StateId(1, epoch), instance="i", totals={"records_in": 7, "late_records": 2}),
        }
        return CommitRecord(
            kind="commit", generation=1, epoch=epoch, at_ms=round(at_s * 1000), fingerprint="f", tasks=tasks, **fields
        )

    return make


@pytest.fixture
def tick(instance, settings):
    """``tick(sensor, cursor)`` evaluates a sensor once and records its events and partitions as the daemon does."""

    def look(sensor: dg.SensorDefinition, cursor: str | None = None) -> dg.SensorResult | dg.SkipReason:
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={"weir": WeirResource(dir=str(settings.dir))}
        )
        answer = sensor(context)
        assert isinstance(answer, dg.SensorResult | dg.SkipReason)
        if isinstance(answer, dg.SensorResult):
            for event in answer.asset_events:
                instance.report_runless_asset_event(event)
            for request in answer.dynamic_partitions_requests or ():
                if isinstance(request, dg.AddDynamicPartitionsRequest):
                    instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
                else:
                    for key in request.partition_keys:
                        instance.delete_dynamic_partition(request.partitions_def_name, key)
        return answer

    return look


@pytest.fixture
def shown(instance):
    """``shown(asset)`` is the metadata of its newest materialization, as plain values."""

    def metadata(key: dg.AssetKey) -> dict[str, object]:
        event = instance.get_latest_materialization_event(key)
        if event is None:
            return {}
        return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}

    return metadata
