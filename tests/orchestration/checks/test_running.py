"""Whether the ingest runs, in each state of a driver and of its runs, and what the sensor reports of that and when."""

import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.storage.tags import SENSOR_NAME_TAG

from tests.orchestration.applications import FLIGHTS, clicks
from tests.orchestration.readings import task
from weir.infra.control import AssignmentRow, this_host
from weir.orchestration import runs
from weir.orchestration.checks import running as check
from weir.orchestration.checks.running import running_result
from weir.orchestration.definitions import defs
from weir.orchestration.drivers.dagster_run import owner_of
from weir.orchestration.examples.report import REPORT
from weir.orchestration.sensors import reports
from weir.orchestration.sensors.reports import reports_sensor
from weir.orchestration.supervised import Supervised

HERE = f"process {os.getpid()} on {this_host()}"


LOG = Path("/weir/logs/flights.log")


@pytest.fixture
def look(database, instance):
    """``look(after_s)`` is what the check says that long after the last heartbeat, if there was one: passed, severity
    if not, state, sentence."""

    def result(after_s: float = 0.0) -> tuple[bool, str, str, str]:
        status = database.application_status("flights")
        now_s = time.time() if status is None else status.heartbeat_at_ms / 1000
        driver = database.application_status("flights", of_driver=True)
        found = running_result(FLIGHTS, driver, instance, now_s + after_s, LOG)
        assert found.metadata["log"].value == str(LOG)
        is_living = driver is not None and not driver.has_ended and driver.tasks
        assert ("tasks" in found.metadata) == bool(is_living)
        severity = "" if found.passed else found.severity.value
        return found.passed, severity, found.metadata["state"].value, found.description

    return result


def failed_run_of(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dg.DagsterRun:
    """A run as *Materialize* on the asset's page makes it, failed before its op began."""
    return instance.create_run_for_job(
        defs.resolve_implicit_global_asset_job_def(),
        status=dg.DagsterRunStatus.FAILURE,
        asset_selection=frozenset({asset}),
    )


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_that_was_never_started_is_well_and_names_the_job(look):
    assert look() == (True, "", "never started", "never started; launch flights_run")


def test_a_driver_that_starts_and_runs_is_well(database, drive, look):
    lease = drive()
    assert look() == (True, "", "starting", f"starting: {HERE}, by weir run")
    database.heartbeat(lease, state="running")
    assert look() == (True, "", "running", f"running: {HERE}, by weir run")


def test_a_driver_without_heartbeats_is_silent_while_its_process_lives(database, drive, look):
    drive()
    assert look(9.0)[0]
    passed, severity, state, sentence = look(11.0)
    assert (passed, severity, state) == (False, "ERROR", "silent")
    assert "no sign of life for 11 s" in sentence
    assert "weir_stalled ends it after 180 s" in sentence


def test_a_paused_a_waiting_and_a_restoring_driver_are_warned_of(database, drive, look):
    lease = drive()
    database.heartbeat(lease, state="paused")
    assert look() == (
        False,
        "WARN",
        "paused",
        "paused, and reads nothing; launch weir_resume with the partition flights",
    )
    database.heartbeat(lease, state="waiting")
    database.report_waiting("flights", "no broker at b:9092 answers")
    assert look() == (False, "WARN", "waiting", "no broker at b:9092 answers")
    database.report_waiting("flights", "")
    database.heartbeat(lease, state="running")
    database.report_tasks("flights", [task(), task(task="0_1", status="restoring", reason="40 per cent")])
    assert look() == (False, "WARN", "restoring", "1 of 2 tasks are being restored (0_1: 40 per cent)")
    database.report_tasks("flights", [task(status="corrupted", reason="key user='ann' differs")])
    sentence = "1 of 2 tasks are corrupted and process nothing (0_0: key user='ann' differs)"
    assert look() == (False, "ERROR", "corrupted", sentence)


def test_the_newest_assignment_is_a_table_beside_the_tasks(database, instance):
    lease = database.acquire_lease("flights", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=60)
    database.heartbeat(lease, state="running")
    database.report_tasks("flights", [task()])
    moves = [{"task": "0_0", "role": "active", "source": "1/0", "target": "2/1", "reason": "executor 1 is lost"}]
    executors = {
        "2": {"slots": 2, "active": ["0_0", "0_1"], "standby": [], "previous": ["0_1"]},
        "3": {"slots": 1, "active": [], "standby": ["0_0"], "previous": []},
    }
    row = AssignmentRow(reason="executor 1 is lost", seconds=0.002, executors=executors, moves=moves, at_ms=1_000)
    database.add_assignment("flights", row)
    driver = database.application_status("flights", of_driver=True)
    table = running_result(FLIGHTS, driver, instance, time.time(), LOG).metadata["assignment"]
    first, second = (record.data for record in table.records)
    assert first == {
        "at": "1970-01-01 00:00:01 UTC",
        "took": "2.0 ms",
        "why": "executor 1 is lost",
        "executor": "2",
        "slots": "2",
        "active": "2",
        "standby": "0",
        "previous": "1",
        "new": "0_0 active: executor 1 is lost",
    }
    assert (second["executor"], second["standby"], second["new"]) == ("3", "1", "-")


@pytest.mark.parametrize(
    ("owner", "what"),
    [("dagster run x", "weir_succession starts the next run"), ("weir run", "launch flights_run")],
)
def test_a_killed_driver_is_dead_and_it_is_said_who_goes_on(drive, look, owner, what):
    pid = ended_pid()
    drive(owner, pid)
    passed, severity, state, sentence = look()
    assert (passed, severity, state) == (False, "ERROR", "dead")
    assert f"(process {pid} on {this_host()}) was killed" in sentence
    assert what in sentence


def test_a_driver_that_ended_well_since_its_run_was_killed_is_dead_too(database, drive, instance, look):
    """It commits and ends once its run worker is gone; what should run does not."""
    run = instance.create_run_for_job(
        defs.resolve_job_def("flights_run"), status=dg.DagsterRunStatus.FAILURE, tags=FLIGHTS.tags
    )
    database.release(drive(owner_of(run.run_id)))
    passed, severity, state, sentence = look()
    assert (passed, severity, state) == (False, "ERROR", "dead")
    assert f"run {run.run_id} was killed, and its driver ({HERE}) has committed and ended; the sensor" in sentence
    ended = instance.create_run_for_job(
        defs.resolve_job_def("flights_run"), status=dg.DagsterRunStatus.CANCELED, tags=FLIGHTS.tags
    )
    database.release(drive(owner_of(ended.run_id)))
    assert look()[:3] == (True, "", "stopped")


def test_a_driver_that_failed_says_why_and_one_that_was_stopped_is_well(database, drive, look):
    database.release(drive(), state="failed", error="topic clicks does not exist; create it")
    passed, severity, _, sentence = look()
    assert (passed, severity) == (False, "ERROR")
    assert "topic clicks does not exist; create it; once that is corrected, launch flights_run" in sentence
    database.release(drive())
    assert look()[:3] == (True, "", "stopped")


@pytest.mark.parametrize("has_run_before", [False, True])
def test_a_run_that_failed_before_its_driver_began_fails_the_check_until_another_begins(
    database, drive, instance, look, has_run_before
):
    if has_run_before:
        database.release(drive())
        time.sleep(0.01)
    run = instance.create_run_for_job(
        defs.resolve_job_def("flights_run"), status=dg.DagsterRunStatus.FAILURE, tags=FLIGHTS.tags
    )
    passed, severity, state, sentence = look()
    assert (passed, severity, state) == (False, "ERROR", "not started")
    assert f"run {run.run_id} failed before its driver began" in sentence
    assert "launch flights_run again" in sentence
    drive(owner_of(run.run_id))
    assert look()[0], "its driver had begun, after all"


def test_a_run_that_was_refused_since_another_driver_held_the_lease_is_no_failure_once_that_has_ended(
    database, drive, instance, look
):
    lease = drive()
    time.sleep(0.01)
    instance.create_run_for_job(
        defs.resolve_job_def("flights_run"), status=dg.DagsterRunStatus.FAILURE, tags=FLIGHTS.tags
    )
    time.sleep(0.01)
    database.release(lease)
    assert look()[:3] == (True, "", "stopped")


def test_a_run_that_the_sensor_started_and_that_failed_before_its_driver_began_is_followed_by_another(
    database, drive, instance, look
):
    database.release(drive())
    time.sleep(0.01)
    tags = {**FLIGHTS.tags, SENSOR_NAME_TAG: "weir_succession"}
    run = instance.create_run_for_job(
        defs.resolve_job_def("flights_run"), status=dg.DagsterRunStatus.FAILURE, tags=tags
    )
    assert look() == (
        False,
        "ERROR",
        "not started",
        f"run {run.run_id} failed before its driver began: its log says why; the sensor weir_succession starts the "
        "next run, each time after a longer pause",
    )


@pytest.mark.parametrize(
    ("asset", "state"),
    [(FLIGHTS.ingest, "not started"), (FLIGHTS.tables["late_departures"], "not started"), (REPORT, "never started")],
)
def test_a_run_of_any_asset_that_the_driver_produces_is_one_of_the_ingest(instance, look, asset, state):
    """It has no tag of the application: its op, which puts it there, did not begin."""
    failed_run_of(instance, asset)
    assert look()[2] == state


def test_a_run_of_the_ingest_that_failed_long_ago_is_found_by_the_tag_that_the_sensor_has_put_on_it(
    instance, look, tick, monkeypatch
):
    run = failed_run_of(instance, FLIGHTS.ingest)
    tick(reports_sensor([FLIGHTS]))
    for each in (runs, check):
        monkeypatch.setattr(each, "NEWEST_RUNS", 1)
    failed_run_of(instance, REPORT)
    assert f"run {run.run_id} failed before its driver began" in look()[3]


@pytest.mark.parametrize("asset", [FLIGHTS.tables["late_departures"], FLIGHTS.backfill])
def test_the_sensor_tags_a_run_that_ended_before_its_op_began_at_its_next_look(instance, tick, asset):
    sensor = reports_sensor([FLIGHTS])
    cursor = tick(sensor).cursor
    own, other = failed_run_of(instance, asset), failed_run_of(instance, REPORT)
    tick(sensor, cursor)
    assert [each.run_id for each in instance.get_runs(dg.RunsFilter(tags=FLIGHTS.tags))] == [own.run_id]
    assert instance.get_run_by_id(other.run_id).tags == other.tags


def test_runs_are_tagged_while_a_driver_runs_too(database, drive, instance, tick):
    database.heartbeat(drive(), state="running")
    run = failed_run_of(instance, FLIGHTS.backfill)
    tick(reports_sensor([FLIGHTS]))
    assert instance.get_run_by_id(run.run_id).tags.items() >= FLIGHTS.tags.items()


def test_dagster_is_asked_for_no_runs_while_a_driver_does_well_and_once_for_all_applications_without(
    database, drive, instance, tick, monkeypatch
):
    asked, get_run_records = [], instance.get_run_records

    def counted(filters=None, *args, **kwargs):
        asked.append(filters.job_name)
        return get_run_records(filters, *args, **kwargs)

    monkeypatch.setattr(instance, "get_run_records", counted)
    other = Supervised(application=clicks("clicks"), reference="elsewhere:app", topics={})
    tick(reports_sensor([FLIGHTS, other]))
    assert sorted(asked) == [IMPLICIT_ASSET_JOB_NAME, "clicks_run", "flights_run"]
    database.heartbeat(drive(), state="running")
    sensor = reports_sensor([FLIGHTS])
    cursor = tick(sensor).cursor
    asked.clear()
    assert isinstance(tick(sensor, cursor), dg.SkipReason)
    assert asked == []


def test_failed_runs_of_other_jobs_say_nothing_about_the_ingest(instance, look):
    instance.create_run_for_job(
        defs.resolve_job_def("weir_compaction"), status=dg.DagsterRunStatus.FAILURE, tags=FLIGHTS.tags
    )
    assert look()[2] == "never started"


def evaluations(instance: dg.DagsterInstance) -> list[tuple[bool, str]]:
    key = dg.AssetCheckKey(FLIGHTS.ingest, "running")
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
    return [
        (record.evaluation.passed, record.evaluation.metadata["state"].value)
        for record in reversed(records)
        if record.evaluation
    ]


def test_a_change_is_reported_at_once_and_the_same_again_after_minutes(database, drive, instance, tick, monkeypatch):
    sensor, cursor = reports_sensor([FLIGHTS]), None

    def look() -> dg.SensorResult | dg.SkipReason:
        nonlocal cursor
        answer = tick(sensor, cursor)
        cursor = getattr(answer, "cursor", None) or cursor
        return answer

    look()
    lease = drive()
    look()
    database.heartbeat(lease, state="running")
    look()
    database.heartbeat(lease, state="working")
    assert isinstance(look(), dg.SkipReason), "a driver that does well takes turns between these"
    database.heartbeat(lease, state="paused")
    look()
    started = [(True, "never started"), (True, "starting"), (True, "running")]
    assert evaluations(instance) == [*started, (False, "paused")]
    assert isinstance(look(), dg.SkipReason)
    monkeypatch.setattr(reports, "REPEAT_S", 0.0)
    look()
    assert evaluations(instance)[4:] == [(False, "paused")]


def test_what_nobody_reads_is_reported_at_once_and_when_it_has_grown_tenfold(
    database, drive, instance, tick, monkeypatch
):
    """While a driver reads, the number goes up and down, and is reported with the others each few minutes."""
    sensor, cursor, waiting, reported = reports_sensor([FLIGHTS]), None, 0, []

    def lag(look):
        return dg.AssetCheckResult(
            asset_key=FLIGHTS.ingest, check_name="lag", passed=True, metadata={"lag_records": waiting}
        )

    monkeypatch.setattr(reports, "_lag", lag)
    lease = drive()
    for state, waiting in (
        *(("running", 0), ("running", 90), ("working", 2_000)),
        *(("paused", 2_000), ("paused", 2_500), ("paused", 9_999), ("paused", 10_000), ("paused", 70_000)),
        *(("running", 80_000), ("running", 3)),
    ):
        database.heartbeat(lease, state=state)
        answer = tick(sensor, cursor)
        cursor = getattr(answer, "cursor", None) or cursor
        events = answer.asset_events if isinstance(answer, dg.SensorResult) else []
        reported += [(state, waiting) for event in events if event.check_name == "lag"]
    assert reported == [("running", 0), ("paused", 2_000), ("paused", 10_000), ("running", 80_000)]


def test_both_checks_are_reported_together_and_what_changes_to_and_fro_only_so_often(
    database, drive, instance, tick, monkeypatch
):
    sensor, cursor, is_much = reports_sensor([FLIGHTS]), None, False

    def lag(look):
        return dg.AssetCheckResult(
            asset_key=FLIGHTS.ingest, check_name="lag", passed=not is_much, severity=dg.AssetCheckSeverity.WARN
        )

    monkeypatch.setattr(reports, "_lag", lag)
    lease, reported = drive(), 0
    for look in range(40):
        database.heartbeat(lease, state="running")
        is_much = look % 2 == 1
        answer = tick(sensor, cursor)
        cursor = getattr(answer, "cursor", None) or cursor
        if isinstance(answer, dg.SensorResult):
            reported += 1
            assert {event.check_name for event in answer.asset_events} == {"running", "lag"}
    assert reported == reports.MOST_CHANGES
    database.release(lease, state="failed", error="it has failed")
    assert isinstance(tick(sensor, cursor), dg.SensorResult), "what is wrong is always reported"


def test_while_the_folders_own_broker_is_down_nothing_waits_for_anybody(database, drive, instance, tick):
    tick(reports_sensor([FLIGHTS]))
    key = dg.AssetCheckKey(FLIGHTS.ingest, "lag")
    [record] = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert record.evaluation.description == (
        "the folder's own broker does not run, so nothing arrives; the next run starts it; nothing was committed yet"
    )


def test_the_next_driver_is_reported_although_it_runs_as_the_one_before_did(database, drive, instance, tick):
    """Otherwise the page would name a process that was killed, for minutes."""
    sensor, first = reports_sensor([FLIGHTS]), drive()
    database.heartbeat(first, state="running")
    cursor = tick(sensor).cursor
    database.release(first)
    time.sleep(0.01)
    database.heartbeat(drive(), state="running")
    assert isinstance(tick(sensor, cursor), dg.SensorResult)
    assert evaluations(instance) == [(True, "running")] * 2


def test_it_is_reported_again_after_a_run_has_materialized_the_ingest(database, drive, instance, tick):
    """A report between the end of the driver and that would be of another materialization, for Dagster."""
    sensor = reports_sensor([FLIGHTS])
    database.release(drive())
    cursor = tick(sensor).cursor

    @dg.asset(key=FLIGHTS.ingest)
    def ingest() -> None: ...

    assert dg.materialize([ingest], instance=instance).success
    again = tick(sensor, cursor)
    cursor = again.cursor
    assert evaluations(instance) == [(True, "stopped")] * 2
    assert {"offsets_continuous", "rows_as_committed", "quarantine"} < {
        each.check_name for each in again.asset_events
    }, "the run has made them with records older than those of the sensor weir_commits"
    instance.report_runless_asset_event(dg.AssetMaterialization(FLIGHTS.ingest))
    assert isinstance(tick(sensor, cursor), dg.SkipReason)


def test_the_tasks_are_a_table_with_those_furthest_behind_first(database, drive, instance):
    lease = drive()
    database.heartbeat(lease, state="running")
    database.report_tasks(
        "flights",
        [
            task(lag=3, positions={"flights": {"0": 1_200}}, records_in=1_200, uncommitted_bytes=3 << 20),
            task(task="0_10", slot=1, lag=7),
            task(task="0_2", lag=3),
        ],
    )
    measured = {"process-rate": 1.5, "num-keys": 2_000.0, "map-used-bytes": float(5 << 20)}
    database.report_readings(
        "flights",
        [
            {"group": "stream-task-metrics", "name": name, "tags": {"task-id": "0_0"}, "value": value}
            for name, value in measured.items()
        ]
        + [
            {"group": "stream-thread-metrics", "name": "process-rate", "tags": {}, "value": 99.0},
            {
                "group": "stream-state-metrics",
                "name": "num-keys",
                "tags": {"task-id": "0_0", "store-id": "one"},
                "value": 7.0,
            },
        ],
    )
    driver = database.application_status("flights")
    records = running_result(FLIGHTS, driver, instance, time.time(), LOG).metadata["tasks"].records
    assert [record.data["task"] for record in records] == ["0_10", "0_0", "0_2"]
    assert records[0].data["reads"] == "rows of other tasks"
    first = records[1].data
    assert (first["reads"], first["lag"], first["records read"]) == ("flights-0 at 1,200", "3", "1,200")
    assert first["uncommitted"] == "3.0 MiB"
    shown = [first[name] for name in ("behind", "records/s", "rows", "size")]
    assert shown == ["2,000 ms", "2", "2,000", "5.0 MiB"]
    assert [records[0].data[name] for name in ("behind", "records/s", "rows", "size")] == ["-"] * 4
