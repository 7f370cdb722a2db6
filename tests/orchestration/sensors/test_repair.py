"""A check that finds a difference makes the repair sensor request restores of the task until it is restored."""

import json
import random
import time
from pathlib import Path

import dagster as dg
import lmdb
import polars as pl
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.events import DagsterEvent

from tests.orchestration.applications import FLIGHTS
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales
from weir.infra.control import this_host
from weir.orchestration.checks.state import state_checks
from weir.orchestration.jobs.checks import audit_job, verify_job
from weir.orchestration.jobs.restore import restore_job
from weir.orchestration.resources import WeirResource
from weir.orchestration.sensors.repair import repair_sensor
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations import verify
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.databases import Databases
from weir.state.stores.codec import KeyCodec


def compare(supervised: Supervised, settings) -> list[dg.AssetCheckResult]:
    """The full comparison and the sampled one."""
    return [check(WeirResource(dir=str(settings.dir))) for check in state_checks(supervised)]


class SalesInFolder(Place):
    """State is where the settings of a folder say, so that checks find it."""

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "sales"


@pytest.fixture
def shop(settings, monkeypatch):
    """Two tasks with five rows each, on disk."""
    place = SalesInFolder(
        application(), Topics({("sales", number): sales(40, number) for number in (0, 1)}), settings.dir
    )
    place.run()
    monkeypatch.setattr(verify, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(Databases, "check", lambda databases: None)  # the engine's tests cover what counting finds
    yield place
    TaskStoreCache.close_all()


def later(monkeypatch, seconds: float, cursor: str | None = None) -> str | None:
    """``cursor``, for a tick so many seconds after now."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + seconds)
    return cursor


def lose_a_row(shop: Place) -> None:
    (spec,) = shop.application.topology.sub_topologies[0].stores
    [lost] = KeyCodec(spec.key, spec.kind).encode(pl.DataFrame({"shop": ["shop-3"]}))
    with lmdb.open(str(shop.state_of("0_1") / "first"), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as t:
        assert t.delete(lost, db=raw.open_db(b"sums", txn=t))


@pytest.mark.slow
def test_a_lost_row_fails_the_comparison_and_restores_are_requested_until_the_task_is_restored(
    shop, settings, database, instance, tick, monkeypatch
):
    known = Supervised(application=shop.application, reference="nowhere:sales", topics={"sales": dg.AssetKey("sales")})
    sensor = repair_sensor([known], {known.id: ()}, restore_job([known]), verify_job([known]), audit_job([known]))
    full, sampled = compare(known, settings)
    assert (full.passed, full.metadata["tasks"].value, full.metadata["rows"].value) == (True, 2, 10)
    assert (sampled.passed, sampled.metadata["tasks"].value, sampled.metadata["rows"].value) == (True, 1, 5)
    lose_a_row(shop)
    monkeypatch.setattr(random, "sample", lambda tasks, count: sorted(tasks)[-count:])
    for result in compare(known, settings):
        assert (result.passed, result.metadata["task"].value) == (False, "0_1")
        assert "key shop=shop-3: wanted" in result.description
    assert isinstance(tick(sensor), dg.SkipReason)
    checks = state_checks(known)

    def evaluate() -> None:
        assert (
            not dg.materialize(
                checks,
                selection=dg.AssetSelection.all_asset_checks(),
                instance=instance,
                resources={"weir": WeirResource(dir=str(settings.dir))},
                raise_on_error=False,
            )
            .get_asset_check_evaluations()[0]
            .passed
        )

    evaluate()
    assert "a driver of sales" in tick(sensor).skip_message
    database.acquire_lease("sales", owner="weir run", pid=1, host=this_host(), ttl_s=60)
    assert "the driver restores task 0_1" in tick(sensor).skip_message
    asked = tick(sensor, later(monkeypatch, 601))
    [request] = asked.run_requests
    assert request.partition_key == "sales:0_1"
    [op] = request.run_config["ops"].values()
    assert op["config"]["from_changelog"]
    assert "less than 600 s ago" in tick(sensor, asked.cursor).skip_message
    evaluate()
    assert "less than 600 s ago" in tick(sensor, asked.cursor).skip_message

    def run_of(request: dg.RunRequest, status: dg.DagsterRunStatus) -> None:
        tags = {"dagster/run_key": request.run_key}
        instance.add_run(dg.DagsterRun(job_name="weir_restore", status=status, tags=tags))

    again = tick(sensor, later(monkeypatch, 601, asked.cursor))
    assert int(json.loads(again.cursor)["sales"].split()[0]) == 0, (
        "the cursor moves once the task is restored, not when that is requested"
    )
    [second] = again.run_requests
    run_of(second, dg.DagsterRunStatus.STARTED)
    assert "restores task 0_1" in tick(sensor, again.cursor).skip_message
    instance.delete_run(instance.get_runs()[0].run_id)
    run_of(second, dg.DagsterRunStatus.FAILURE)
    assert "less than 1,200 s ago" in tick(sensor, again.cursor).skip_message
    third = tick(sensor, later(monkeypatch, 1_201, again.cursor))
    assert third.run_requests[0].run_key not in {request.run_key, second.run_key}
    run_of(third.run_requests[0], dg.DagsterRunStatus.SUCCESS)
    assert isinstance(tick(sensor, third.cursor), dg.SkipReason), "the task is in doubt, whatever the run says"
    shop.run()
    assert [str(done.request.task) for done in shop.restores.done] == ["0_1"]
    restored = tick(sensor, third.cursor)
    checks_again = [(request.job_name, request.partition_key) for request in restored.run_requests]
    assert checks_again == [("weir_audit", "sales"), ("weir_verify", "sales")]
    assert "no check has found a new difference" in tick(sensor, restored.cursor).skip_message
    for result in compare(known, settings):
        assert result.passed


@pytest.mark.usefixtures("database")
def test_a_check_that_is_only_planned_requests_nothing(instance, tick):
    instance.report_dagster_event(
        DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
            job_name="weir_verify",
            event_specific_data=AssetCheckEvaluationPlanned(
                asset_key=FLIGHTS.ingest, check_name="state_equals_changelog"
            ),
        ),
        "a-run",
    )
    assert "no check has found" in tick(repair_sensor([FLIGHTS], {FLIGHTS.id: ()})).skip_message
