"""Whether an ingest runs and, if not, what to do: from what its driver left, and from Dagster's runs of it.

A sensor reports it within seconds (``weir.orchestration.sensors.reports``); the audit makes the same check.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME  # has no public name
from dagster._core.storage.tags import SENSOR_NAME_TAG

from weir.infra.control import ApplicationStatus, ControlDatabase
from weir.orchestration.advice import in_dagster
from weir.orchestration.checks.killed import was_cut_short
from weir.orchestration.checks.tasks import assignment_table, task_table
from weir.orchestration.drivers.dagster_run import run_of
from weir.orchestration.jobs.requests import RESUME
from weir.orchestration.resources import WeirResource
from weir.orchestration.runs import NEWEST_RUNS, newest_asset_runs
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.log_files import log_file

RUNNING_CHECK = "running"
SUCCESSION = "weir_succession"
"""The sensor that starts a run for each one that was killed, or that it started and that failed before its driver
began (``weir.orchestration.sensors.restart``)."""
SILENT_MAX_S = 10.0
"""A driver gives a heartbeat each two seconds, whatever it is at. A sensor looks each ten, so that a page shows within
half a minute that there is none."""
SHOWN_TASKS = 5


def running_check(supervised: Supervised) -> dg.AssetChecksDefinition:
    """Fails if a driver that should run does not, or does not read."""

    @dg.asset_check(
        asset=supervised.ingest,
        name=RUNNING_CHECK,
        description="The ingest runs and reads, or was ended on purpose; if not, the check says what to do.",
    )
    def running(context: dg.AssetCheckExecutionContext, weir: WeirResource) -> dg.AssetCheckResult:
        """Look at what the driver has left, and at the newest run."""
        settings = weir.settings()
        database = ControlDatabase(settings.control_database_url)
        driver = database.application_status(supervised.id, of_driver=True)
        log = log_file(settings.logs, supervised.id)
        return running_result(supervised, driver, context.instance, time.time(), log)

    return running


def running_result(
    supervised: Supervised,
    driver: ApplicationStatus | None,
    instance: dg.DagsterInstance,
    now_s: float,
    log: Path,
    asset_runs: Callable[[], Sequence[dg.RunRecord]] | None = None,
) -> dg.AssetCheckResult:
    """``driver`` is the newest that there was, ``log`` the file that drivers write to. ``asset_runs`` is called for
    ``newest_asset_runs`` if no driver runs. The state is in the metadata as one word: the driver's own, or ``never
    started``, ``silent``, ``dead``, ``not started``, ``corrupted``."""
    found = _judged(supervised, driver, instance, now_s, asset_runs)
    shown = dict[str, dg.MetadataValue]()
    if driver is not None and not driver.has_ended and driver.tasks:
        shown["tasks"] = task_table(driver)
        if driver.assignment is not None:
            shown["assignment"] = assignment_table(driver.assignment)
    if driver is not None and (run_id := run_of(driver.owner)) is not None:
        shown["run"] = dg.MetadataValue.dagster_run(run_id)
    shown["log"] = dg.MetadataValue.path(log)
    return _result(
        supervised,
        str(found.metadata["state"].value),
        found.description or "",
        None if found.passed else found.severity,
        **{**shown, **{name: value for name, value in found.metadata.items() if name != "state"}},
    )


def _judged(
    supervised: Supervised,
    driver: ApplicationStatus | None,
    instance: dg.DagsterInstance,
    now_s: float,
    asset_runs: Callable[[], Sequence[dg.RunRecord]] | None,
) -> dg.AssetCheckResult:
    if driver is not None and not driver.has_ended:
        return _living(supervised, driver, now_s)
    runs = asset_runs() if asset_runs is not None else newest_asset_runs(instance)
    if (run := _run_without_driver(supervised, instance, driver, runs)) is not None:
        what_next = (
            f"the sensor {SUCCESSION} starts the next run, each time after a longer pause"
            if run.tags.get(SENSOR_NAME_TAG) == SUCCESSION
            else f"correct that and launch {supervised.ingest_job} again"
        )
        return _result(
            supervised,
            "not started",
            f"run {run.run_id} failed before its driver began: its log says why; {what_next}",
            dg.AssetCheckSeverity.ERROR,
            run=dg.MetadataValue.dagster_run(run.run_id),
        )
    if driver is None:
        return _result(supervised, "never started", f"never started; launch {supervised.ingest_job}")
    where = f"process {driver.pid} on {driver.host}"
    who = (
        f"the sensor {SUCCESSION} starts the next run"
        if run_of(driver.owner) is not None and "succession" not in supervised.unwatched
        else f"launch {supervised.ingest_job}, which goes on from the last commit"
    )
    if driver.ended_at_ms is None or driver.state == "dead":
        return _result(supervised, "dead", f"the driver ({where}) was killed; {who}", dg.AssetCheckSeverity.ERROR)
    if driver.state == "failed":
        return _result(
            supervised,
            "failed",
            f"the driver ended: {driver.error}; once that is corrected, launch {supervised.ingest_job}",
            dg.AssetCheckSeverity.ERROR,
        )
    if (run := _killed_run(supervised, instance, driver)) is not None:
        return _result(
            supervised,
            "dead",
            f"run {run.run_id} was killed, and its driver ({where}) has committed and ended; {who}",
            dg.AssetCheckSeverity.ERROR,
            run=dg.MetadataValue.dagster_run(run.run_id),
        )
    return _result(
        supervised, driver.state, f"ended by itself or on request; {supervised.ingest_job} goes on from there"
    )


def _living(supervised: Supervised, driver: ApplicationStatus, now_s: float) -> dg.AssetCheckResult:
    warn, silent_s = dg.AssetCheckSeverity.WARN, now_s - driver.heartbeat_at_ms / 1000
    if silent_s > SILENT_MAX_S:
        return _result(
            supervised,
            "silent",
            f"the driver (process {driver.pid} on {driver.host}) has given no sign of life for {silent_s:,.0f} s: it "
            f"hangs or is stopped. The sensor weir_stalled ends it after {supervised.thresholds.stalled_max_s:,.0f} s "
            "if a run of Dagster started it",
            dg.AssetCheckSeverity.ERROR,
        )
    if driver.state == "paused":
        return _result(
            supervised, "paused", f"paused, and reads nothing; launch {RESUME} with the partition {supervised.id}", warn
        )
    if driver.waits_for:
        return _result(supervised, "waiting", driver.waits_for, warn)
    for state, what, severity in (
        ("corrupted", "corrupted and process nothing", dg.AssetCheckSeverity.ERROR),
        ("isolated", "isolated: their epochs fail, and the others go on", dg.AssetCheckSeverity.ERROR),
        ("restoring", "being restored", warn),
    ):
        if tasks := [task for task in driver.tasks if task.status == state]:
            first = "; ".join(f"{task.task}: {task.reason}" for task in tasks[:SHOWN_TASKS])
            sentence = f"{len(tasks)} of {len(driver.tasks)} tasks are {what} ({first})"
            return _result(supervised, state, sentence, severity)
    return _result(
        supervised, driver.state, f"{driver.state}: process {driver.pid} on {driver.host}, by {driver.owner}"
    )


def _run_without_driver(
    supervised: Supervised,
    instance: dg.DagsterInstance,
    driver: ApplicationStatus | None,
    asset_runs: Sequence[dg.RunRecord],
) -> dg.DagsterRun | None:
    """The newest run of the ingest, if it has failed and its driver had not begun."""
    selecting = _of_ingest(supervised, asset_runs)
    if not selecting and len(asset_runs) == NEWEST_RUNS:  # its own are older, and tagged since
        older = dg.RunsFilter(tags=supervised.tags, job_name=IMPLICIT_ASSET_JOB_NAME)
        selecting = _of_ingest(supervised, instance.get_run_records(older, limit=NEWEST_RUNS))
    of_job = dg.RunsFilter(tags=supervised.tags, job_name=supervised.ingest_job)
    records = [*selecting, *instance.get_run_records(of_job, limit=1)]
    if not records:
        return None
    newest = max(records, key=lambda record: record.create_timestamp)
    run, made_s = newest.dagster_run, newest.create_timestamp.timestamp()
    is_passed = driver is not None and (
        run_of(driver.owner) == run.run_id  # its driver had begun
        or driver.started_at_ms / 1000 > made_s  # another has begun since
        or (driver.ended_at_ms or 0) / 1000 > made_s  # another held the lease, and the run was refused
    )
    return run if run.status == dg.DagsterRunStatus.FAILURE and not is_passed else None


def _of_ingest(supervised: Supervised, asset_runs: Sequence[dg.RunRecord]) -> list[dg.RunRecord]:
    return [
        record
        for record in asset_runs
        if not (record.dagster_run.asset_selection or frozenset()).isdisjoint(supervised.produced)
    ]


def _killed_run(
    supervised: Supervised, instance: dg.DagsterInstance, driver: ApplicationStatus
) -> dg.DagsterRun | None:
    """The run of a driver that has ended in good order, if the run did not."""
    run = instance.get_run_by_id(run_of(driver.owner) or "")
    is_killed = (
        run is not None
        and run.status == dg.DagsterRunStatus.FAILURE
        and was_cut_short(instance, run.run_id, supervised.ingest_op)
    )
    return run if is_killed else None


def _result(
    supervised: Supervised,
    state: str,
    sentence: str,
    severity: dg.AssetCheckSeverity | None = None,
    **metadata: dg.MetadataValue,
) -> dg.AssetCheckResult:
    """Passed without a ``severity``."""
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name=RUNNING_CHECK,
        passed=severity is None,
        severity=severity or dg.AssetCheckSeverity.ERROR,
        description=in_dagster(sentence, supervised.id),
        metadata={"state": state, **metadata},
    )
