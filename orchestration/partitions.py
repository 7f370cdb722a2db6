"""Partitions that all applications of a Dagster instance share: each application changes its own alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import dagster as dg

from weir.orchestration.supervised import Supervised

PartitionsChange = dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest


def partition_changes(
    supervised: Supervised,
    partitions: dg.DynamicPartitionsDefinition,
    parts: Collection[str],
    instance: dg.DagsterInstance,
) -> list[PartitionsChange]:
    """What makes ``parts`` (tasks or backfills) the application's only partitions; empty if they are."""
    wanted, own = {supervised.partition(part) for part in parts}, supervised.partition("")
    known = {key for key in instance.get_dynamic_partitions(str(partitions.name)) if key.startswith(own)}
    added, gone = sorted(wanted - known), sorted(known - wanted)
    return [
        *([partitions.build_add_request(added)] if added else []),
        *([partitions.build_delete_request(gone)] if gone else []),
    ]


def make_changes(changes: Iterable[PartitionsChange], instance: dg.DagsterInstance) -> None:
    """What the daemon does with the changes that a sensor asks for."""
    for change in changes:
        if isinstance(change, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(change.partitions_def_name, change.partition_keys)
        else:
            for key in change.partition_keys:
                instance.delete_dynamic_partition(change.partitions_def_name, key)
