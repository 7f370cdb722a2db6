"""Jobs that all applications of a code location share: a run's partition names the application that it is for.

So the number of jobs does not grow with the number of applications. A job runs in the process of its run: a process of
its own would only take time.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from weir.orchestration.advice import in_dagster
from weir.orchestration.supervised import Supervised, application_tags, owners_of


def partitioned(
    op: dg.OpDefinition, partitions: dg.PartitionsDefinition[str]
) -> dg.PartitionedConfig[dg.PartitionsDefinition[str]]:
    """For the job whose configuration is that of ``op``: choosing a partition fills in the op's defaults, and the run
    gets the application's tag. A partition is an application, or ``<application>:<part of it>``."""
    field = op.config_field
    form = {"ops": {op.name: {"config": field.default_value}}} if field is not None and field.default_provided else {}
    return dg.PartitionedConfig(
        partitions,
        run_config_for_partition_key_fn=lambda key: form,
        tags_for_partition_key_fn=lambda key: application_tags(key.partition(":")[0]),
    )


def by_application(applications: Sequence[Supervised]) -> dg.StaticPartitionsDefinition:
    """One partition per application."""
    return dg.StaticPartitionsDefinition([each.id for each in applications])


def job_of(
    applications: Sequence[Supervised],
    name: str,
    op: dg.OpDefinition,
    partitions: dg.PartitionsDefinition[str],
    description: str,
) -> dg.JobDefinition:
    """The job ``name`` of that one op, for all ``applications``."""

    @dg.job(
        name=name,
        description=description,
        config=partitioned(op, partitions),
        executor_def=dg.in_process_executor,
        owners=owners_of(applications),
    )
    def job() -> None:
        op()

    return job


def refused(error: Exception, supervised: Supervised) -> dg.Failure:
    """For a run whose job was refused: what the error says, for Dagster, without its stack trace; not tried again."""
    return dg.Failure(in_dagster(str(error), supervised.id), allow_retries=False)


def chosen(context: dg.OpExecutionContext, applications: Sequence[Supervised]) -> Supervised:
    """The application that the run's partition names; where there is only one, a run needs no partition.

    Raises:
        dagster.Failure: No partition was chosen, or it names an application that is not here.
    """
    if not context.has_partition_key:
        if len(applications) != 1:
            raise dg.Failure("choose the application as the partition of the run", allow_retries=False)
        context.instance.add_run_tags(context.run_id, applications[0].tags)
        return applications[0]
    name = context.partition_key.partition(":")[0]
    for each in applications:
        if each.id == name:
            return each
    raise dg.Failure(
        f"{name} is not an application of this code location; choose another partition", allow_retries=False
    )


def chosen_part(context: dg.OpExecutionContext, what: str) -> str:
    """What the run's partition names of its application.

    Raises:
        dagster.Failure: No partition was chosen.
    """
    if not context.has_partition_key:
        raise dg.Failure(f"choose the {what} as the partition of the run", allow_retries=False)
    return context.partition_key.partition(":")[2]
