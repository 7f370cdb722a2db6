"""A backfill of everything: recompute the whole history, stores included, next to the running ingest, and swap it in
while the ingest is stopped (docs/backfill.md). Days are recomputed by the backfill asset.
"""

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from weir.orchestration.assets.backfill import MAX_CHANGE_FIELD, PUBLISH_FIELD, WALL_CLOCK_FIELD, run_backfill
from weir.orchestration.jobs.shared import by_application, chosen, job_of
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.backfill.files import TIME_COLUMN


class RebuildConfig(dg.Config):
    """What to compute, and whether it replaces what is there."""

    swap: bool = Field(
        default=False, description="Swap it in when it is complete; the ingest must have stopped by then."
    )
    publish: bool = PUBLISH_FIELD
    max_change: float = MAX_CHANGE_FIELD
    wall_clock: bool = WALL_CLOCK_FIELD


def rebuild_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_rebuild``."""

    @dg.op(
        name="weir_compute_everything",
        description="Start a driver over the whole history, follow it "
        "to its end, and swap in the result if the configuration says so.",
    )
    def compute(
        context: dg.OpExecutionContext, config: RebuildConfig, weir: WeirResource, pipes: dg.PipesSubprocessClient
    ) -> None:
        _, closing = run_backfill(
            chosen(context, applications),
            context,
            weir,
            pipes,
            {
                "first": None,
                "end": None,
                "swap": config.swap,
                "publish": config.publish,
                "max_change": config.max_change,
                "margin_hours": None,
                "paths": {},
                "time_column": TIME_COLUMN,
                "wall_clock": config.wall_clock,
            },
        )
        context.add_output_metadata({name: value for name, value in closing["metadata"].items() if name != "left_out"})

    return job_of(
        applications,
        "weir_rebuild",
        compute,
        by_application(applications),
        "Recompute the whole history with the program as it is now, stores and running totals too, "
        "while the ingest keeps running; then swap it in while the ingest is stopped, by weir_swap_backfill. "
        "Terminating the run leaves everything as it was.",
    )
