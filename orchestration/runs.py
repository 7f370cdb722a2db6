"""Which runs are of an application: those that have its tag, and those that select its assets.

Runs of jobs have the tag from the beginning. Dagster makes those of its implicit job, which *Materialize* on an asset's
page launches, without: their op tags them once it begins, and the sensor ``weir_reports`` those that failed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME  # has no public name

from weir.orchestration.supervised import Supervised

NEWEST_RUNS = 50
"""How many runs of the implicit job are looked through; most are of other assets."""


def newest_asset_runs(instance: dg.DagsterInstance) -> Sequence[dg.RunRecord]:
    """The newest runs of the implicit job, whatever they select, the newest first."""
    return instance.get_run_records(dg.RunsFilter(job_name=IMPLICIT_ASSET_JOB_NAME), limit=NEWEST_RUNS)


def is_of(supervised: Supervised, run: dg.DagsterRun) -> bool:
    """Whether the run has the application's tag, or selects one of its assets or their checks."""
    checked = {key.asset_key for key in run.asset_check_selection or ()}
    return supervised.tags.items() <= run.tags.items() or not supervised.assets.isdisjoint(
        checked.union(run.asset_selection or ())
    )


def tag_runs(supervised: Supervised, runs: Iterable[dg.RunRecord], instance: dg.DagsterInstance) -> None:
    """Put the application's tag on those of its runs that have none; one that is of two applications gets either's."""
    for record in runs:
        run = record.dagster_run
        if supervised.tags.keys().isdisjoint(run.tags) and is_of(supervised, run):
            instance.add_run_tags(run.run_id, supervised.tags)
