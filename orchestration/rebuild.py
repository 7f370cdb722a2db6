"""A backfill of everything as a job: the whole history computed anew, stores included, beside the running ingest; and
the swap of it, while the ingest is at rest (docs/backfill.md). Days are the backfill asset's.
"""

import dagster as dg
from pydantic import Field

from weir.orchestration.backfill import followed
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.backfill.files import TIME_COLUMN


class RebuildConfig(dg.Config):
    """What is computed, and whether it takes the place of what is there."""

    swap: bool = Field(default=False, description="Swap it in when it is there; the ingest must have ended by then.")
    backfill: str | None = Field(
        default=None,
        description="The id of one that was computed before: it reads on to where the ingest stands and "
        "is swapped in, and nothing else is computed. The ingest must be at rest.",
    )


def rebuild_job(supervised: Supervised) -> dg.JobDefinition:
    """``<app>_rebuild``."""

    @dg.op(
        name=f"{supervised.name}_compute_everything",
        description="Start a driver over the whole history, follow it "
        "to its end, and swap in what it made if the configuration says so.",
    )
    def compute(
        context: dg.OpExecutionContext, config: RebuildConfig, weir: WeirResource, pipes: dg.PipesSubprocessClient
    ) -> None:
        finished = followed(
            supervised,
            context,
            weir,
            pipes,
            {
                "first": None,
                "end": None,
                "swap": config.swap,
                "backfill": config.backfill,
                "margin_hours": None,
                "paths": {},
                "time_column": TIME_COLUMN,
            },
        )
        [closing] = finished.get_custom_messages()
        context.add_output_metadata({name: value for name, value in closing["metadata"].items() if name != "left_out"})

    @dg.job(
        name=f"{supervised.name}_rebuild",
        tags=supervised.tags,
        description="Compute the whole history anew by the program as it is now, stores and running totals too, "
        "while the ingest goes on; and put it in the place of what is there, while the ingest is at "
        "rest. Terminating the run leaves everything as it was.",
    )
    def job() -> None:
        compute()

    return job
