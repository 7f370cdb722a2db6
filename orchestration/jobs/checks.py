"""Jobs that make an application's checks: the cheap ones, or those that read all of the state and of the tables."""

import time
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.checks.evaluations import Check, evaluations_of
from weir.orchestration.checks.files import PRESENT_CHECK, READABLE_CHECK, file_results
from weir.orchestration.checks.lag import LAG_CHECK, current_lag
from weir.orchestration.checks.light import light_checks
from weir.orchestration.checks.running import RUNNING_CHECK, running_result
from weir.orchestration.checks.sinks import CHECK as SINK_CHECK
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.checks.state import FULL_CHECK, SAMPLED_CHECK, state_result
from weir.orchestration.jobs.shared import by_application, chosen, job_of
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.log_files import log_file

VERIFY, AUDIT = "weir_verify", "weir_audit"
VERIFIED = (FULL_CHECK, READABLE_CHECK)


def job_that_makes(check: str) -> str:
    """The name of the job, by the name of the check."""
    return VERIFY if check in VERIFIED else AUDIT


def checks_request(supervised: Supervised, job: str, run_key: str) -> dg.RunRequest:
    """Of a run of ``job``, which makes checks, for one application."""
    return dg.RunRequest(run_key=run_key, job_name=job, partition_key=supervised.id, tags=supervised.tags)


def verify_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_verify``: the full comparison of the state, and all rows of the outputs. Its run fails if they do not
    agree, or if a check cannot be made."""

    @dg.op(
        name="weir_compare",
        out=dg.Out(dg.Nothing),
        description="Compare the state with its changelogs, and read the output tables.",
    )
    def verify(
        context: dg.OpExecutionContext, weir: WeirResource
    ) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        supervised, settings, failed = chosen(context, applications), weir.settings(), list[str]()
        checks: dict[str, Check] = {
            FULL_CHECK: lambda: [state_result(supervised, settings, FULL_CHECK)],
            READABLE_CHECK: lambda: file_results(supervised, settings, READABLE_CHECK, reads=True),
        }
        for evaluation in _evaluations(context, supervised.id, checks, failed):
            yield evaluation
            if not evaluation.passed:
                where = f"{evaluation.asset_key.to_user_string()} {evaluation.check_name}"
                failed.append(f"{where}: {evaluation.description}")
        if failed:
            raise dg.Failure("; ".join(failed), allow_retries=False)
        yield dg.Output(None)

    return job_of(
        applications,
        VERIFY,
        verify,
        by_application(applications),
        "Compare every store with its changelog and with the commit log, and read every file of the output tables.",
    )


def audit_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_audit``: every other check. Its run fails if one cannot be made, once the others are."""

    @dg.op(
        name="weir_make_checks",
        out=dg.Out(dg.Nothing),
        description="Make the checks of the application, one after the other.",
    )
    def audit(
        context: dg.OpExecutionContext, weir: WeirResource
    ) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        supervised, failed = chosen(context, applications), list[str]()
        yield from _evaluations(
            context, supervised.id, _cheap_checks(supervised, weir.settings(), context.instance), failed
        )
        if failed:
            raise dg.Failure("; ".join(failed))
        yield dg.Output(None)

    return job_of(
        applications,
        AUDIT,
        audit,
        by_application(applications),
        "Every check except those that read all of the state or of a table; safe next to a running driver.",
    )


def _cheap_checks(supervised: Supervised, settings: Settings, instance: dg.DagsterInstance) -> dict[str, Check]:
    database = ControlDatabase(settings.control_database_url)
    return {
        RUNNING_CHECK: lambda: [
            running_result(
                supervised,
                database.application_status(supervised.id, of_driver=True),
                instance,
                time.time(),
                log_file(settings.logs, supervised.id),
            )
        ],
        LAG_CHECK: lambda: [current_lag(supervised, settings)],
        **light_checks(supervised, settings),
        SINK_CHECK: lambda: sink_results(supervised, settings),
        SAMPLED_CHECK: lambda: [state_result(supervised, settings, SAMPLED_CHECK)],
        PRESENT_CHECK: lambda: file_results(supervised, settings, PRESENT_CHECK, reads=False),
    }


def _evaluations(
    context: dg.OpExecutionContext, application: str, checks: Mapping[str, Check], failed: list[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Make every check; those that raise are added to ``failed``, with their errors."""

    def note(name: str, error: Exception) -> None:
        context.log.error(f"{name} could not be made", exc_info=error)
        failed.append(in_dagster(f"{name} could not be made: {error}", application))

    return evaluations_of(checks, note)
