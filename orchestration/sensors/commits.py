"""Shows an application's commits in Dagster while its driver runs, whoever started that driver.

One materialization per commit would flood Dagster's database, so commits are folded. The events themselves record up to
which commit. A run that Dagster started reports again at its end (``weir.orchestration.drivers.ingest``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from weir.orchestration.assets.materializations import (
    commit_materializations,
    recorded_metadata,
)
from weir.orchestration.assets.partitions import day_partition_changes, has_days, known_days, task_partition_changes
from weir.orchestration.drivers.metadata import health_metadata
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at

LOOK_EVERY_S = 10
FOLD_S = 600.0
"""A driver that keeps committing is shown this often; its first commit, and the last of one that ended, at once."""
ASK_AGAIN_S = 300.0
"""Days are asked for with each commit that is shown, and this long after the last time if none is known yet or if they
wait for a run to end."""


def commits_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """Shows the newest commit in every asset of an application, and keeps the partitions in step with it: tasks, and
    the days that a backfill can be asked for."""
    return watch(
        "commits",
        commits,
        applications,
        every_s=LOOK_EVERY_S,
        description="Shows what applications have committed, whoever runs them: Dagster or the command line.",
    )


def commits(look: Look) -> Found:
    """Read the newest commit and whether its driver runs; report the assets when there is news.

    The cursor is when days were last asked for, in seconds since 1970; empty once they are offered.
    """
    newest = newest_commit(folder_at(look.settings.warehouse), look.id)
    if newest is None:
        return Found(said=f"nothing was committed in {look.settings.dir} yet")
    events: list[dg.AssetMaterialization] = []
    is_running, now_s = look.database.is_running(look.id), time.time()
    if is_due(look.supervised, newest, look.instance, is_running=is_running, now_s=now_s):
        events = commit_materializations(
            look.supervised,
            newest,
            look.instance,
            look.settings,
            health=health_metadata(look.settings, look.id),
        )
    partitions = task_partition_changes(look.supervised, newest, look.instance)
    cursor = None
    if events or (look.cursor != "" and now_s - float(look.cursor or 0) >= ASK_AGAIN_S):
        days = day_partition_changes(look.supervised, newest, look.instance, look.settings)
        partitions += days or ()
        are_offered = days is not None and (days or known_days(look.supervised, look.instance))
        cursor = "" if are_offered or not has_days(look.supervised) else str(now_s)
    return Found(
        said=f"commit {newest.state_id} "
        + ("is news" if events else f"is shown already, or will be within {FOLD_S:.0f} s of the previous one"),
        cursor=cursor,
        events=events,
        partitions=partitions,
    )


def is_due(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance, *, is_running: bool, now_s: float
) -> bool:
    """Whether to show ``newest``: not if Dagster knows it; and while the driver keeps running, not if the commit that
    Dagster knows is less than ``FOLD_S`` old either, unless that was an earlier driver's."""
    known = recorded_metadata(instance, supervised.ingest)
    committed_at_s = known.get("committed_at", 0.0)
    if (known.get("generation"), known.get("epoch"), committed_at_s) == (
        newest.generation,
        newest.epoch,
        newest.at_ms / 1000,
    ):
        return False
    return not is_running or known.get("generation") != newest.generation or now_s - committed_at_s >= FOLD_S
