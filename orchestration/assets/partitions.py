"""The partitions of an application's assets and jobs: its tasks, and the days that a backfill can be asked for.

The commits sensor keeps them in step with the commits (``weir.orchestration.sensors.commits``), and an ingest does when
its run ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from weir.infra.settings import Settings
from weir.orchestration.partitions import PartitionsChange, make_changes, own_partition_changes, partition_changes
from weir.orchestration.supervised import TASKS, Supervised
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations.days import held_days
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at


def task_partition_changes(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance
) -> list[PartitionsChange]:
    """What turns the known task partitions into the commit's, leaving out tasks of another program's topology."""
    topology, tasks = supervised.application.over(newest).topology, set()
    for name in newest.tasks:
        with contextlib.suppress(KeyError):
            tasks.add(str(topology.task_of(name)))
    return own_partition_changes(supervised, TASKS, tasks, instance)


def has_days(supervised: Supervised) -> bool:
    """Whether days of it can be computed again."""
    outputs = day_outputs(supervised.application.topology)
    return bool(outputs.swapped or outputs.published)


def day_partition_changes(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance, settings: Settings
) -> list[PartitionsChange]:
    """What turns the known days into those that the topics hold, as of now; while only the outputs can tell, no day
    goes."""
    if not has_days(supervised):
        return []
    end = supervised.end_day or datetime.now(UTC).date()
    within = Days(first=supervised.first_day, end=end)
    held = held_days(supervised.application.over(newest), settings, newest, within)
    days, known = set() if held.days is None else set(_keys(held.days)), known_days(supervised, instance)
    if not held.is_of_topics:
        days.update(known)
    return partition_changes(supervised.day_partitions, known, sorted(days))


def known_days(supervised: Supervised, instance: dg.DagsterInstance) -> Sequence[str]:
    """The days that Dagster offers."""
    return instance.get_dynamic_partitions(str(supervised.day_partitions.name))


def _keys(days: Days) -> list[str]:
    return [(days.first + timedelta(days=number)).isoformat() for number in range((days.end - days.first).days)]


def update_partitions(supervised: Supervised, settings: Settings, instance: dg.DagsterInstance) -> None:
    """Make the changes that the commits sensor would make at its next tick, for a run that has just ended."""
    newest = newest_commit(folder_at(settings.warehouse), supervised.id)
    if newest is None:
        return
    changes = (
        *task_partition_changes(supervised, newest, instance),
        *day_partition_changes(supervised, newest, instance, settings),
    )
    make_changes(changes, instance)
