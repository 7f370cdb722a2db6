"""Jobs that decide about sinks outside the warehouse and the rows that they refuse, with the same calls as the commands
``weir sink skip``, ``resume``, ``retry`` and ``discard``; the check ``delivered`` names the one to launch."""

from collections.abc import Sequence
from typing import Literal

import dagster as dg

from weir.orchestration.advice import in_dagster
from weir.orchestration.drivers.dagster_run import owner_of
from weir.orchestration.jobs.shared import chosen, chosen_part, job_of, refused
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.sinks import decide, discard, retry
from weir.pipelines.operations.text import counted


def sink_jobs(applications: Sequence[Supervised]) -> list[dg.JobDefinition]:
    """``weir_sink_skip``, ``weir_sink_resume``, ``weir_sink_retry`` and ``weir_sink_discard``, with one partition per
    sink (``shop:orders``); none where no application has sinks."""
    sinks = dg.StaticPartitionsDefinition([each.partition(sink) for each in applications for sink in each.sinks])
    if not sinks.get_partition_keys():
        return []
    return [
        _decision_job(
            applications,
            sinks,
            "skip",
            "Put the row aside for which the sink waits, and let the rows after it go on.",
        ),
        _decision_job(
            applications,
            sinks,
            "resume",
            "Let the sink publish the rows that wait for it, although its target may already have some of them.",
        ),
        _retry_job(applications, sinks),
        _discard_job(applications, sinks),
    ]


def _decision_job(
    applications: Sequence[Supervised],
    sinks: dg.StaticPartitionsDefinition,
    action: Literal["skip", "resume"],
    description: str,
) -> dg.JobDefinition:
    @dg.op(name=f"weir_ask_sink_{action}", description="Ask the driver and wait for its answer.")
    def ask(context: dg.OpExecutionContext, weir: WeirResource) -> None:
        sink, supervised = chosen_part(context, "sink"), chosen(context, applications)
        try:
            answer = decide(weir.settings(), supervised.id, sink, action, by=owner_of(context.run_id))
        except OperationError as error:
            raise refused(error, supervised) from None
        _record(context, supervised, sink, answer)

    return job_of(applications, f"weir_sink_{action}", ask, sinks, description)


def _retry_job(applications: Sequence[Supervised], sinks: dg.StaticPartitionsDefinition) -> dg.JobDefinition:
    @dg.op(name="weir_ask_sink_retry", description="Ask the driver, and wait for what becomes of the rows.")
    def ask(context: dg.OpExecutionContext, weir: WeirResource) -> None:
        sink, supervised = chosen_part(context, "sink"), chosen(context, applications)
        try:
            outcome, is_refused = retry(weir.settings(), supervised.id, sink, by=owner_of(context.run_id))
        except OperationError as error:
            raise refused(error, supervised) from None
        if is_refused:
            raise dg.Failure(
                f"sink {sink}: {outcome}; correct that at the sink and launch weir_sink_retry again with the "
                f"partition {supervised.partition(sink)}, or weir_sink_discard to delete what is left",
                allow_retries=False,
            )
        _record(context, supervised, sink, in_dagster(outcome, supervised.id))

    return job_of(
        applications,
        "weir_sink_retry",
        ask,
        sinks,
        "Send the rows again that the sink has refused, in the order of their refusal; the first that is refused once "
        "more ends it.",
    )


def _discard_job(applications: Sequence[Supervised], sinks: dg.StaticPartitionsDefinition) -> dg.JobDefinition:
    @dg.op(name="weir_delete_refused_rows", description="Delete the rows; a driver goes on meanwhile.")
    def delete(context: dg.OpExecutionContext, weir: WeirResource) -> None:
        sink, supervised = chosen_part(context, "sink"), chosen(context, applications)
        try:
            rows = discard(weir.settings(), supervised.id, sink)
        except OperationError as error:
            raise refused(error, supervised) from None
        _record(context, supervised, sink, f"deleted {counted(rows, 'refused row')}")

    return job_of(applications, "weir_sink_discard", delete, sinks, "Delete the rows that the sink has refused.")


def _record(context: dg.OpExecutionContext, supervised: Supervised, sink: str, outcome: str) -> None:
    """In the run, and as an observation of the sink's asset."""
    context.log.info("%s: sink %s: %s", supervised.id, sink, outcome)
    context.add_output_metadata({"outcome": outcome})
    context.log_event(dg.AssetObservation(supervised.sinks[sink], description=outcome))
