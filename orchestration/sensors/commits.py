"""Shows an application's commits in Dagster while its driver runs, whoever started that driver.

One materialization per commit would flood Dagster's database, so commits are folded. The events themselves record up to
which commit, so the sensor needs no cursor. A run that Dagster started reports again at its end
(``weir.orchestration.drivers.ingest``).
"""

from __future__ import annotations

import time

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.orchestration.assets.materializations import (
    commit_materializations,
    recorded_metadata,
    task_partition_changes,
)
from weir.orchestration.drivers.metadata import health_metadata
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at

LOOK_EVERY_S = 60
"""Also the minimum time between two materializations of an asset that this sensor makes."""
FOLD_S = 600.0
"""A driver that keeps committing is shown this often; the last commit of one that ended is shown at the next tick."""


def commits_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """Shows the newest commit in every asset of the application, and keeps the task partitions in step with it."""

    @dg.sensor(
        name=f"{supervised.name}_commits",
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows what the application has committed, whoever runs it: Dagster or the command line.",
    )
    def commits(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        """Read the newest commit and whether its driver runs; report the assets when there is news."""
        settings = weir.settings()
        newest = newest_commit(folder_at(settings.warehouse), supervised.id)
        if newest is None:
            return dg.SkipReason(f"{supervised.id} has committed nothing in {settings.dir} yet")
        is_running = ControlDatabase(settings.control_database_url).is_running(supervised.id)
        events: list[dg.AssetMaterialization] = []
        if is_due(supervised, newest, context.instance, is_running=is_running, now_s=time.time()):
            events = commit_materializations(
                supervised,
                newest,
                context.instance,
                settings,
                health=health_metadata(settings, supervised.id),
            )
        partitions = task_partition_changes(supervised, newest, context.instance)
        if not (events or partitions):
            return dg.SkipReason(
                f"commit {newest.state_id} is shown already, or will be within {FOLD_S:.0f} s of the previous one"
            )
        return dg.SensorResult(asset_events=events, dynamic_partitions_requests=partitions)

    return commits


def is_due(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance, *, is_running: bool, now_s: float
) -> bool:
    """Whether to show ``newest``: not if Dagster knows it; and while the driver keeps running, not if the commit that
    Dagster knows is less than ``FOLD_S`` old either."""
    known = recorded_metadata(instance, supervised.ingest)
    committed_at_s = known.get("committed_at", 0.0)
    if (known.get("generation"), known.get("epoch"), committed_at_s) == (
        newest.generation,
        newest.epoch,
        newest.at_ms / 1000,
    ):
        return False
    return not is_running or now_s - committed_at_s >= FOLD_S
