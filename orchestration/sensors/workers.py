"""Marks a run failed whose worker is gone.

Dagster's code server does so for the runs that it has started, within a second. If it was killed together with them,
nobody would: such runs would show as started until somebody terminates them.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import dagster as dg
from dagster._core.launcher import DefaultRunLauncher

from weir.infra.process import start_ticks
from weir.orchestration.supervised import Supervised, owners_of

LOOK_EVERY_S = 10
STARTED = "Started process for run"
"""How the event of a run's log begins that names the process of its worker."""
UNFINISHED = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)
GONE = 0


class Worker(NamedTuple):
    """The process of a run."""

    pid: int
    started: int
    """In clock ticks since boot; ``GONE`` if it was at the last look."""


def workers_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """Looks at all runs of the code location, those of other jobs than Weir's too.

    The cursor keeps the process id of each run's worker, and when it started or that it was gone at the last look: the
    code server, if it lives, has said by the next one how the worker ended.
    """

    @dg.sensor(
        name="weir_workers",
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Marks a run failed whose worker was killed together with the code server.",
        owners=owners_of(applications),
    )
    def look(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if not isinstance(context.instance.run_launcher, DefaultRunLauncher):
            return dg.SkipReason("workers are not processes of the code server: run monitoring asks the run launcher")
        before = {run_id: Worker(*each) for run_id, each in json.loads(context.cursor or "{}").items()}
        now, failed = dict[str, Worker](), list[str]()
        for run in context.instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
            if not _is_here(context, run):
                continue
            known = before.get(run.run_id)
            pid = known.pid if known else worker_process(context.instance, run)
            if pid is None:
                continue
            started = start_ticks(pid) or GONE
            if known is None or started == known.started != GONE:
                now[run.run_id] = Worker(pid, started)
            elif known.started != GONE:  # or another process has its id
                now[run.run_id] = Worker(pid, GONE)
            elif not has_finished(context.instance, run):
                context.instance.report_run_failed(run, f"the run worker (process {pid}) was killed")
                failed.append(run.run_id)
        said = f"failed, since their workers were killed: {', '.join(failed)}" if failed else "all workers are there"
        return dg.SensorResult(skip_reason=said, cursor=json.dumps(now)) if now != before else dg.SkipReason(said)

    return look


def has_finished(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether it has meanwhile: Dagster would take a failure for its end although it has succeeded, or somebody has
    terminated it."""
    now = instance.get_run_by_id(run.run_id)
    return now is None or now.is_finished


def _is_here(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> bool:
    """Whether its worker is a process of this host, because it is a run of this code location."""
    here, origin = context.code_location_origin, run.remote_job_origin
    return here is None or origin is None or origin.location_name == here.location_name


def worker_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """The id of its worker; None before it has started, and of runs that have no process of their own."""
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        event = entry.get_dagster_event()
        if (event.message or "").startswith(STARTED):
            return int(str(event.engine_event_data.metadata["pid"].value))
    return None
