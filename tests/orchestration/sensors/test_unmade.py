"""Checks that a failed run has left red are made beside a driver that does well, once."""

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.events import DagsterEvent

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.checks.evaluations import evaluation_of
from weir.orchestration.jobs.checks import audit_job, verify_job
from weir.orchestration.sensors.repair import repair_sensor

OUTPUT = FLIGHTS.tables["carrier_totals"]
CHECKS = [
    dg.AssetCheckKey(FLIGHTS.ingest, "offsets_continuous"),
    dg.AssetCheckKey(FLIGHTS.ingest, "state_equals_changelog"),
    dg.AssetCheckKey(OUTPUT, "files_present"),
    dg.AssetCheckKey(OUTPUT, "files_readable"),
]


@pytest.fixture
def look(tick):
    sensor = repair_sensor([FLIGHTS], {FLIGHTS.id: CHECKS}, audit_job([FLIGHTS]), verify_job([FLIGHTS]))
    return lambda: getattr(tick(sensor), "run_requests", None) or []


@pytest.fixture
def run_of(instance):
    """``run_of(status, asset, checks)`` is a run of that asset, which has planned those checks."""

    def make(status: dg.DagsterRunStatus, asset: dg.AssetKey, checks: list[dg.AssetCheckKey]) -> dg.DagsterRun:
        run = dg.DagsterRun(job_name="flights_run", status=status, asset_selection=frozenset({asset}))
        instance.add_run(run)
        for key in checks:
            instance.report_dagster_event(
                DagsterEvent(
                    event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
                    job_name=run.job_name,
                    event_specific_data=AssetCheckEvaluationPlanned(asset_key=key.asset_key, check_name=key.name),
                ),
                run.run_id,
            )
        return run

    return make


def evaluate(instance, key: dg.AssetCheckKey) -> None:
    instance.report_runless_asset_event(
        evaluation_of(dg.AssetCheckResult(passed=True, asset_key=key.asset_key, check_name=key.name))
    )


def test_each_job_is_requested_once_when_a_driver_runs_and_has_committed(
    instance, database, drive, committer, commit_of, look, run_of
):
    run_of(dg.DagsterRunStatus.FAILURE, FLIGHTS.ingest, CHECKS)
    assert look() == [], "no driver runs, and red is right"
    database.heartbeat(drive(), state="running")
    assert look() == [], "nothing is committed yet"
    committer.commit(commit_of(1))
    requests = look()
    assert [(each.job_name, each.partition_key) for each in requests] == [
        ("weir_audit", "flights"),
        ("weir_verify", "flights"),
    ]
    assert all(FLIGHTS.tags.items() <= each.tags.items() for each in requests)
    for each in requests:
        instance.add_run(dg.DagsterRun(job_name=each.job_name, tags={"dagster/run_key": each.run_key}))
    assert look() == [], "they are on their way"
    run_of(dg.DagsterRunStatus.FAILURE, FLIGHTS.ingest, CHECKS[:1])
    (again,) = look()
    assert (again.job_name, again.run_key in {each.run_key for each in requests}) == ("weir_audit", False)


def test_only_what_is_left_is_made(instance, database, drive, committer, commit_of, look, run_of):
    committer.commit(commit_of(1))
    database.heartbeat(drive(), state="running")
    run_of(dg.DagsterRunStatus.FAILURE, FLIGHTS.ingest, CHECKS)
    for key in CHECKS:
        if key.name != "files_readable":
            evaluate(instance, key)
    assert [each.job_name for each in look()] == ["weir_verify"]
    evaluate(instance, CHECKS[-1])
    assert look() == []


@pytest.mark.parametrize(
    ("status", "asset"),
    [
        (dg.DagsterRunStatus.STARTED, FLIGHTS.ingest),
        (dg.DagsterRunStatus.CANCELED, FLIGHTS.ingest),
        (dg.DagsterRunStatus.FAILURE, dg.AssetKey(["other", "ingest"])),
    ],
)
def test_a_run_that_may_still_make_them_was_canceled_or_is_of_another_application_requests_nothing(
    database, drive, committer, commit_of, look, run_of, status, asset
):
    committer.commit(commit_of(1))
    database.heartbeat(drive(), state="running")
    run_of(status, asset, CHECKS)
    assert look() == []
