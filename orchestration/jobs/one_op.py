"""A job of one op of an application. It runs in the process of its run: a process of its own would only take time."""

import dagster as dg

from weir.orchestration.supervised import Supervised


def job_of(
    op: dg.OpDefinition,
    supervised: Supervised,
    name: str,
    description: str,
    *,
    partitions: dg.PartitionsDefinition[str] | None = None,
) -> dg.JobDefinition:
    """The job ``name``, with one partition of ``partitions`` for each run if there are some."""

    @dg.job(
        name=name,
        description=description,
        tags=supervised.tags,
        partitions_def=partitions,
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job
