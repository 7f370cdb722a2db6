"""The partitions of an application's assets and jobs: its tasks, and the days that a backfill can be asked for.

The commits sensor keeps them in step with the commits (``weir.orchestration.sensors.commits``), and an ingest does when
its run ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES  # has no public name
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_START_TAG, PARTITION_NAME_TAG

from weir.infra.settings import Settings
from weir.orchestration.partitions import PartitionsChange, make_changes, own_partition_changes, partition_changes
from weir.orchestration.supervised import TASKS, Supervised
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations.days import held_days
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at
from weir.state.types import TaskId


def tasks_of(supervised: Supervised, newest: CommitRecord) -> Mapping[str, TaskId]:
    """The tasks of a commit by their stored names, leaving out those of another program's topology."""
    topology, tasks = supervised.application.over(newest).topology, {}
    for name in newest.tasks:
        with contextlib.suppress(KeyError):
            tasks[name] = topology.task_of(name)
    return tasks


def task_partition_changes(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance
) -> list[PartitionsChange]:
    """What turns the known task partitions into ``tasks_of`` the commit."""
    tasks = {str(task) for task in tasks_of(supervised, newest).values()}
    own = supervised.task_partitions
    return [
        *own_partition_changes(supervised, TASKS, tasks, instance),
        *partition_changes(own, instance.get_dynamic_partitions(str(own.name)), sorted(tasks)),
    ]


def has_days(supervised: Supervised) -> bool:
    """Whether days of it can be computed again."""
    outputs = day_outputs(supervised.application.topology)
    return bool(outputs.swapped or outputs.published)


def day_partition_changes(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance, settings: Settings
) -> list[PartitionsChange] | None:
    """What adds the days that there are records or rows of, as of now, to the known days; None if that has to wait.

    No day goes: records of an expired one may be in an archive, and a run over days ends with an error if one of them
    goes meanwhile. So all days are added anew, as an earlier one asks for, only while no such run is unfinished.
    """
    if not has_days(supervised):
        return []
    end = supervised.end_day or datetime.now(UTC).date()
    within = Days(first=supervised.first_day, end=end)
    held = held_days(supervised.application.over(newest), settings, newest, within)
    if held is None:
        return []
    known = known_days(supervised, instance)
    days = [*map(date.fromisoformat, known), held.first, held.end - timedelta(days=1)]
    changes = partition_changes(supervised.day_partitions, known, _keys(min(days), max(days)))
    are_all_anew = any(isinstance(change, dg.DeleteDynamicPartitionsRequest) for change in changes)
    return None if are_all_anew and _is_running_over(known, supervised, instance) else changes


def known_days(supervised: Supervised, instance: dg.DagsterInstance) -> Sequence[str]:
    """The days that Dagster offers."""
    return instance.get_dynamic_partitions(str(supervised.day_partitions.name))


def _keys(first: date, last: date) -> list[str]:
    """All days from one to the other: Dagster takes neighbours in its list for a range, so there may be no gap."""
    return [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]


def _is_running_over(days: Collection[str], supervised: Supervised, instance: dg.DagsterInstance) -> bool:
    """Whether a run of the backfill asset over some of ``days`` is unfinished; one of a job whose assets are not told
    apart counts as one."""
    return any(
        not days_of_run.isdisjoint(days) and (not run.asset_selection or supervised.backfill in run.asset_selection)
        for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES))
        for days_of_run in [{run.tags.get(PARTITION_NAME_TAG), run.tags.get(ASSET_PARTITION_RANGE_START_TAG)}]
    )


def update_partitions(supervised: Supervised, settings: Settings, instance: dg.DagsterInstance) -> None:
    """Make the changes that the commits sensor would make at its next tick, for a run that has just ended."""
    newest = newest_commit(folder_at(settings.warehouse), supervised.id)
    if newest is None:
        return
    changes = (
        *task_partition_changes(supervised, newest, instance),
        *(day_partition_changes(supervised, newest, instance, settings) or ()),
    )
    make_changes(changes, instance)
