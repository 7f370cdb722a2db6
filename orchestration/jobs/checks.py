"""Jobs that make an application's checks: the cheap ones, or those that read all of the state and of the tables."""

import time
from collections.abc import Iterator, Sequence

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.checks.commits import commit_results
from weir.orchestration.checks.evaluations import evaluation_of
from weir.orchestration.checks.files import PRESENT_CHECK, READABLE_CHECK, file_results
from weir.orchestration.checks.lag import current_lag
from weir.orchestration.checks.quarantine import quarantine_result
from weir.orchestration.checks.running import running_result
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.checks.state import FULL_CHECK, SAMPLED_CHECK, state_result
from weir.orchestration.jobs.shared import by_application, chosen, job_of
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised


def verify_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_verify``: the full comparison of the state, and all rows of the outputs. Its run fails if they do not
    agree."""

    @dg.op(
        name="weir_compare",
        out=dg.Out(dg.Nothing),
        description="Compare the state with its changelogs, and read the output tables.",
    )
    def verify(
        context: dg.OpExecutionContext, weir: WeirResource
    ) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        supervised, settings, failed = chosen(context, applications), weir.settings(), list[str]()
        for result in (
            state_result(supervised, settings, FULL_CHECK),
            *file_results(supervised, settings, READABLE_CHECK, reads=True),
        ):
            evaluation = evaluation_of(result)
            yield evaluation
            if not evaluation.passed:
                where = f"{evaluation.asset_key.to_user_string()} {evaluation.check_name}"
                failed.append(f"{where}: {evaluation.description}")
        if failed:
            raise dg.Failure("; ".join(failed), allow_retries=False)
        yield dg.Output(None)

    return job_of(
        "weir_verify",
        verify,
        by_application(applications),
        "Compare every store with its changelog and with the commit log, and read every file of the output tables.",
    )


def audit_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_audit``: every other check."""

    @dg.op(
        name="weir_make_checks",
        out=dg.Out(dg.Nothing),
        description="Make the checks of the application, one after the other.",
    )
    def audit(
        context: dg.OpExecutionContext, weir: WeirResource
    ) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
        supervised, settings = chosen(context, applications), weir.settings()
        for result in _cheap_results(supervised, settings, context.instance):
            yield evaluation_of(result)
        yield dg.Output(None)

    return job_of(
        "weir_audit",
        audit,
        by_application(applications),
        "Every check except those that read all of the state or of a table; safe next to a running driver.",
    )


def _cheap_results(
    supervised: Supervised, settings: Settings, instance: dg.DagsterInstance
) -> Iterator[dg.AssetCheckResult]:
    database = ControlDatabase(settings.control_database_url)
    yield running_result(supervised, database, instance, time.time())
    yield current_lag(supervised, settings)
    yield from commit_results(supervised, settings)
    yield quarantine_result(supervised, settings)
    yield from sink_results(supervised, settings)
    yield state_result(supervised, settings, SAMPLED_CHECK)
    yield from file_results(supervised, settings, PRESENT_CHECK, reads=False)
