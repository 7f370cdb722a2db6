"""Dynamic partitions: what makes those that Dagster knows the ones that are wanted, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import dagster as dg

from weir.orchestration.supervised import Supervised

PartitionsChange = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


def partition_changes(
    partitions: dg.DynamicPartitionsDefinition, known: Sequence[str], wanted: Sequence[str]
) -> list[PartitionsChange]:
    """What turns the ``known`` ones of ``partitions`` into those that are ``wanted``; empty if they are.

    Dagster keeps partitions in the order in which they were added, and a range is one of that order: where a new one
    belongs between others, all are added anew. What is known of their runs stays.
    """
    added = [key for key in wanted if key not in known]
    gone = [key for key in known if key not in wanted]
    if [*(key for key in known if key in wanted), *added] != list(wanted):
        added, gone = list(wanted), list(known)
    return [
        *([partitions.build_delete_request(gone)] if gone else []),
        *([partitions.build_add_request(added)] if added else []),
    ]


def own_partition_changes(
    supervised: Supervised,
    partitions: dg.DynamicPartitionsDefinition,
    parts: Collection[str],
    instance: dg.DagsterInstance,
) -> list[PartitionsChange]:
    """The same where all applications of a Dagster instance share ``partitions``: what makes ``parts`` (tasks or
    backfills) the only ones of this application."""
    own = supervised.partition("")
    known = [key for key in instance.get_dynamic_partitions(str(partitions.name)) if key.startswith(own)]
    return partition_changes(partitions, known, sorted(map(supervised.partition, parts)))


def make_changes(changes: Iterable[PartitionsChange], instance: dg.DagsterInstance) -> None:
    """What the daemon does with the changes that a sensor asks for."""
    for change in changes:
        if isinstance(change, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(change.partitions_def_name, change.partition_keys)
        else:
            for key in change.partition_keys:
                instance.delete_dynamic_partition(change.partitions_def_name, key)
