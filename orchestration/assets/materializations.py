"""A commit as Dagster records it: materializations of every asset.

The commits sensor records them while a driver runs (``weir.orchestration.sensors.commits``), and an ingest does if its
run was terminated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # has no public name

from weir.infra.settings import Settings
from weir.orchestration.assets.columns import with_lineage
from weir.orchestration.drivers.metadata import (
    ingest_metadata,
    offsets_metadata,
    table_data_version,
    table_metadata,
)
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.positions import committed_positions
from weir.pipelines.topology.naming import names_over, stored_table
from weir.state.commit.record import CommitRecord
from weir.state.commit.upserts import shown_name
from weir.state.storage.places import folder_at, is_table


def commit_materializations(
    supervised: Supervised,
    newest: CommitRecord,
    instance: dg.DagsterInstance,
    settings: Settings,
    *,
    health: dict[str, Any],
) -> list[dg.AssetMaterialization]:
    """The materializations of a commit. Upstream comes first, otherwise Dagster would show what is downstream as stale.

    A topic is reported when the commit has read further than Dagster knows the topic to reach. ``health`` is further
    metadata of the ingest.
    """
    found = f"commit {newest.state_id}, found in the commit log"
    positions = committed_positions(newest, supervised.topics)
    events = []
    for topic, key in supervised.topics.items():
        reaches = recorded_metadata(instance, key).get("offsets", {})
        offsets = {str(partition): offset for partition, offset in positions[topic].items()}
        if any(offset > reaches.get(partition, 0) for partition, offset in offsets.items()):
            events.append(
                dg.AssetMaterialization(
                    key, description=f"as far as read by {found}", metadata=dagster_values(offsets_metadata(offsets))
                )
            )
    ingest = {**health, **ingest_metadata(newest, supervised.topics)}
    events.append(dg.AssetMaterialization(supervised.ingest, description=found, metadata=dagster_values(ingest)))
    return [*events, *table_materializations(supervised, newest, settings, supervised.tables, description=found)]


def table_materializations(
    supervised: Supervised, newest: CommitRecord, settings: Settings, tables: Iterable[str], *, description: str
) -> list[dg.AssetMaterialization]:
    """Those of tables, as a commit has left them; none for a table that is not there yet."""
    names, events = names_over(supervised.application.topology, newest), []
    for table in tables:
        name = stored_table(table, names)
        folder = folder_at(settings.warehouse) / supervised.id / shown_name(name)
        if is_table(folder):  # the next start creates a table that an older program did not have
            events.append(
                dg.AssetMaterialization(
                    supervised.tables[table],
                    description=description,
                    metadata=dagster_values(table_metadata(settings, newest, supervised.id, name)),
                    tags={DATA_VERSION_TAG: table_data_version(newest, name)},
                )
            )
    return list(with_lineage(supervised, events))


def recorded_metadata(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, Any]:
    """The metadata of the asset's newest materialization as plain values; empty without one."""
    event = instance.get_latest_materialization_event(asset)
    metadata = event.asset_materialization.metadata if event and event.asset_materialization else {}
    return {name: entry.value for name, entry in metadata.items()}


def dagster_values(metadata: dict[str, Any]) -> dict[str, Any]:
    """Pipes metadata as Dagster's own metadata values."""
    return {
        name: getattr(dg.MetadataValue, value["type"])(value["raw_value"]) if isinstance(value, dict) else value
        for name, value in metadata.items()
    }
