"""Tells Dagster of an application's commits while its driver runs, whoever started that driver.

A materialization a commit would flood Dagster's database, so commits are folded; the events themselves remember up to
which commit, and there is no cursor beside them. A run that Dagster started reports once more at its end
(``weir.orchestration.worker``). The partitions of the restore job, one a task, are kept in step here too, by looks and
at the end of a run (``weir.orchestration.ingest``).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # has no public name

from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised

if TYPE_CHECKING:
    from weir.state.commit.record import CommitRecord

LOOK_EVERY_S = 60
"""Also the least time between two materializations of an asset that come from here."""
FOLD_S = 600.0
"""A driver that goes on committing shows so often; the last commit of one that has ended shows at the next look."""


def commits_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """Shows the newest commit in every asset of the application."""

    @dg.sensor(
        name=f"{supervised.name}_commits",
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows what the application has committed, whoever runs it: Dagster or the command line.",
    )
    def commits(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        """Reads the newest commit and how its driver stands; reports the assets when there is news."""
        from weir.infra.control import ControlDatabase
        from weir.orchestration.committed import pace_metadata
        from weir.state.commit.protocol import newest_commit

        settings = weir.settings()
        newest = newest_commit(settings.warehouse, supervised.id)
        if newest is None:
            return dg.SkipReason(f"{supervised.id} has committed nothing in {settings.dir} yet")
        is_running = ControlDatabase(settings.control_database_url).is_running(supervised.id)
        events: list[dg.AssetMaterialization] = []
        if is_due(supervised, newest, context.instance, is_running=is_running, now_s=time.time()):
            events = news(
                supervised, newest, context.instance, settings.warehouse, pace=pace_metadata(settings, supervised.id)
            )
        partitions = partition_changes(supervised, newest, context.instance)
        if not (events or partitions):
            return dg.SkipReason(f"commit {newest.state_id} is known, or will be shown within {FOLD_S:.0f} s")
        return dg.SensorResult(asset_events=events, dynamic_partitions_requests=partitions)

    return commits


def is_due(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance, *, is_running: bool, now_s: float
) -> bool:
    """Whether Dagster is to hear of ``newest``: not when it knows that commit, nor when it knows one that is less than
    ``FOLD_S`` old while the driver goes on."""
    known = _known(instance, supervised.ingest)
    committed_at_s = known.get("committed_at", 0.0)
    if (known.get("generation"), known.get("epoch"), committed_at_s) == (
        newest.generation,
        newest.epoch,
        newest.at_ms / 1000,
    ):
        return False
    return not is_running or now_s - committed_at_s >= FOLD_S


def news(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance, warehouse: Path, *, pace: dict[str, Any]
) -> list[dg.AssetMaterialization]:
    """The materializations of a commit. Upstream comes first, or Dagster would take what is downstream for stale.

    A topic is reported when the commit has read further than Dagster knows the topic to reach. ``pace`` is further
    metadata of the ingest.
    """
    from weir.orchestration.committed import ingest_metadata, offsets_metadata, table_data_version, table_metadata
    from weir.pipelines.operations.positions import committed_positions

    found = f"commit {newest.state_id}, found in the commit log"
    positions = committed_positions(newest, supervised.topics)
    events = []
    for topic, key in supervised.topics.items():
        reaches = _known(instance, key).get("offsets", {})
        offsets = {str(partition): offset for partition, offset in positions[topic].items()}
        if any(offset > reaches.get(partition, 0) for partition, offset in offsets.items()):
            events.append(
                dg.AssetMaterialization(
                    key, description=f"as far as read by {found}", metadata=_values(offsets_metadata(offsets))
                )
            )
    ingest = {**pace, **ingest_metadata(newest, supervised.topics)}
    events.append(dg.AssetMaterialization(supervised.ingest, description=found, metadata=_values(ingest)))
    for name, key in supervised.tables.items():
        folder = warehouse / supervised.id / name
        if (folder / "_delta_log").is_dir():  # one that an older program did not have comes with the next start
            events.append(
                dg.AssetMaterialization(
                    key,
                    description=found,
                    metadata=_values(table_metadata(newest, folder)),
                    tags={DATA_VERSION_TAG: table_data_version(newest, name)},
                )
            )
    return events


def partition_changes(
    supervised: Supervised, newest: CommitRecord, instance: dg.DagsterInstance
) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
    """What makes the task partitions those of the commit; tasks of another program's topology are left out."""
    partitions, topology = supervised.task_partitions, supervised.application.topology
    tasks = set()
    for name in newest.tasks:
        with contextlib.suppress(KeyError):
            tasks.add(str(topology.task_of(name)))
    known = set(instance.get_dynamic_partitions(str(partitions.name)))
    added, gone = sorted(tasks - known), sorted(known - tasks)
    return [
        *([partitions.build_add_request(added)] if added else []),
        *([partitions.build_delete_request(gone)] if gone else []),
    ]


def keep_partitions_in_step(supervised: Supervised, warehouse: Path, instance: dg.DagsterInstance) -> None:
    """As the sensor does at its next look, for a run that has just ended."""
    from weir.state.commit.protocol import newest_commit

    newest = newest_commit(warehouse, supervised.id)
    for change in partition_changes(supervised, newest, instance) if newest else ():
        if isinstance(change, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(change.partitions_def_name, change.partition_keys)
        else:
            for task in change.partition_keys:
                instance.delete_dynamic_partition(change.partitions_def_name, task)


def _known(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, Any]:
    """The metadata of the asset's newest materialization as plain values; empty without one."""
    event = instance.get_latest_materialization_event(asset)
    metadata = event.asset_materialization.metadata if event and event.asset_materialization else {}
    return {name: entry.value for name, entry in metadata.items()}


def _values(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata as Pipes has it, as Dagster has it."""
    return {
        name: getattr(dg.MetadataValue, value["type"])(value["raw_value"]) if isinstance(value, dict) else value
        for name, value in metadata.items()
    }
