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
from weir.orchestration.supervised import Supervised
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations.days import held_days
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at

Change = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


def task_partition_changes(supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance) -> list[Change]:
    """What turns the known task partitions into the commit's, leaving out tasks of another program's topology."""
    topology = supervised.application.over(newest).topology
    tasks = set()
    for name in newest.tasks:
        with contextlib.suppress(KeyError):
            tasks.add(str(topology.task_of(name)))
    return _changes(supervised.task_partitions, sorted(tasks), instance)


def has_days(supervised: Supervised) -> bool:
    """Whether days of it can be computed again."""
    outputs = day_outputs(supervised.application.topology)
    return bool(outputs.swapped or outputs.published)


def day_partition_changes(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance, settings: Settings
) -> list[Change]:
    """What turns the known days into those that the topics hold, as of now; while only the outputs can tell, no day
    goes."""
    if not has_days(supervised):
        return []
    end = supervised.end_day or datetime.now(UTC).date()
    within = Days(first=supervised.first_day, end=end)
    held = held_days(supervised.application.over(newest), settings, newest, within)
    days = set() if held.days is None else set(_keys(held.days))
    if not held.is_of_topics:
        days.update(known_days(supervised, instance))
    return _changes(supervised.day_partitions, sorted(days), instance)


def known_days(supervised: Supervised, instance: dg.DagsterInstance) -> Sequence[str]:
    """The days that Dagster offers."""
    return instance.get_dynamic_partitions(str(supervised.day_partitions.name))


def _keys(days: Days) -> list[str]:
    return [(days.first + timedelta(days=number)).isoformat() for number in range((days.end - days.first).days)]


def _changes(
    partitions: dg.DynamicPartitionsDefinition, wanted: Sequence[str], instance: dg.DagsterInstance
) -> list[Change]:
    """Dagster keeps partitions in the order in which they were added, and a range is one of that order: where a new one
    belongs between others, all are added anew. What is known of their runs stays."""
    known = instance.get_dynamic_partitions(str(partitions.name))
    added = [key for key in wanted if key not in known]
    gone = [key for key in known if key not in wanted]
    if [*(key for key in known if key in wanted), *added] != list(wanted):
        added, gone = list(wanted), list(known)
    return [
        *([partitions.build_delete_request(gone)] if gone else []),
        *([partitions.build_add_request(added)] if added else []),
    ]


def update_partitions(supervised: Supervised, settings: Settings, instance: dg.DagsterInstance) -> None:
    """Make the changes that the commits sensor would make at its next tick, for a run that has just ended."""
    newest = newest_commit(folder_at(settings.warehouse), supervised.id)
    if newest is None:
        return
    for change in (
        *task_partition_changes(supervised, newest, instance),
        *day_partition_changes(supervised, newest, instance, settings),
    ):
        if isinstance(change, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(change.partitions_def_name, change.partition_keys)
        else:
            for key in change.partition_keys:
                instance.delete_dynamic_partition(change.partitions_def_name, key)
