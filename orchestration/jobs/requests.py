"""Jobs that ask a running driver to commit, pause, resume, scale or stop, by the same calls as the commands so called.

A request reaches the driver through the control database; the run's metadata holds the driver's answer.
"""

from collections.abc import Mapping, Sequence

import dagster as dg
from pydantic import Field

from weir.infra.control.rows import RequestKind
from weir.infra.settings import Settings
from weir.orchestration.drivers.dagster_run import owner_of
from weir.orchestration.jobs.shared import by_application, chosen, job_of, refused
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.control import ask
from weir.pipelines.operations.errors import OperationError

RESUME = "weir_resume"


class RequestConfig(dg.Config):
    """What the driver is told, and logs, besides which run asks."""

    reason: str = Field(default="", description="Why, for the driver's log and the observation of the ingest.")


class ScaleConfig(RequestConfig):
    """What ``weir_scale`` needs besides."""

    slots: int = Field(default=0, description="How many slots there are to be until the driver ends, from 1 on.")


def request_jobs(applications: Sequence[Supervised]) -> list[dg.JobDefinition]:
    """``weir_commit_now``, ``weir_pause``, ``weir_resume``, ``weir_scale`` and ``weir_stop``."""
    return [
        _request_job(applications, "commit_now", "commit", "Make the running application commit now."),
        _request_job(applications, "pause", "pause", "Make the running application commit and then stop reading."),
        _request_job(applications, "resume", "resume", "Make the paused application resume reading."),
        _scale_job(applications),
        _request_job(applications, "stop", "stop", "Make the running application finish its epoch, commit and end."),
    ]


def _request_job(
    applications: Sequence[Supervised], name: str, kind: RequestKind, description: str
) -> dg.JobDefinition:
    @dg.op(name=f"weir_ask_{name}", description="Ask the driver and wait for its answer.")
    def request(context: dg.OpExecutionContext, config: RequestConfig, weir: WeirResource) -> None:
        ask_driver(context, chosen(context, applications), weir.settings(), kind, config.reason)

    return job_of(applications, f"weir_{name}", request, by_application(applications), description)


def _scale_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    @dg.op(name="weir_ask_scale", description="Ask the driver and wait for its answer.")
    def request(context: dg.OpExecutionContext, config: ScaleConfig, weir: WeirResource) -> None:
        arguments = {"slots": str(config.slots)}
        ask_driver(context, chosen(context, applications), weir.settings(), "slots", config.reason, arguments)

    description = "Make the running application have more slots, or fewer; tasks move with their stores."
    return job_of(applications, "weir_scale", request, by_application(applications), description)


def ask_driver(
    context: dg.OpExecutionContext,
    supervised: Supervised,
    settings: Settings,
    kind: RequestKind,
    reason: str,
    arguments: Mapping[str, str] | None = None,
) -> None:
    """Send the request, wait for the answer, and record it in the run and as an observation of the ingest.

    Raises:
        dagster.Failure: No driver could be asked, or it refused; with the message and no stack trace.
    """
    try:
        answer = ask(settings, supervised.id, kind, arguments, by=owner_of(context.run_id), reason=reason)
    except OperationError as error:
        raise refused(error, supervised) from None
    context.log.info("%s: %s", supervised.id, answer)
    context.add_output_metadata({"answer": answer})
    context.log_event(
        dg.AssetObservation(
            supervised.ingest,
            description=answer,
            metadata={"request": kind, **({"reason": reason} if reason else {}), **(arguments or {})},
        )
    )
