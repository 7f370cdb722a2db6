"""Tells Dagster of the flights application's commits while its driver runs, whoever started that driver.

A materialization a commit would flood Dagster's database, so commits are folded; the events themselves remember up to
which commit, and there is no cursor beside them. A run that Dagster started reports once more at its end
(``orchestration.worker``).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from orchestration.flights.assets import INGEST, TABLES, TOPIC
from orchestration.resources import WeirResource
from pipelines.examples.flights import app

if TYPE_CHECKING:
    from state.commit.record import CommitRecord

LOOK_EVERY_S = 60
"""Also the least time between two materializations of an asset that come from here."""
FOLD_S = 300.0
"""A driver that goes on committing shows so often; the last commit of one that has ended shows at the next look."""


@dg.sensor(name="flights_commits", minimum_interval_seconds=LOOK_EVERY_S,
           default_status=dg.DefaultSensorStatus.RUNNING,
           description="Shows what the application has committed, whether Dagster, `weir run` or `weir demo` runs it.")
def flights_commits(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
    """Reads the newest commit and whether a driver runs; reports the assets when there is news."""
    from infra.control import ControlDatabase
    from state.commit.protocol import newest_commit

    settings = weir.settings()
    newest = newest_commit(settings.warehouse, app.id)
    if newest is None:
        return dg.SkipReason(f"{app.id} has committed nothing in {settings.dir} yet")
    is_running = ControlDatabase(settings.control_database_url).is_running(app.id)
    events = news(newest, context.instance, settings.warehouse, is_running=is_running, now_s=time.time())
    if not events:
        return dg.SkipReason(f"commit {newest.state_id} is known, or will be shown within {FOLD_S:.0f} s")
    return dg.SensorResult(asset_events=events)


def news(newest: CommitRecord, instance: dg.DagsterInstance, warehouse: Path, *, is_running: bool,
         now_s: float) -> list[dg.AssetMaterialization]:
    """What Dagster is to hear of ``newest``: nothing when it knows that commit, or an earlier one that is less than
    ``FOLD_S`` old while the driver goes on. Upstream comes first, or Dagster would take what is downstream for stale.

    The topic is reported when the commit has read further than Dagster knows the topic to reach.
    """
    from orchestration.committed import ingest_metadata, offsets_metadata, table_metadata
    from pipelines.cli.positions import committed_positions

    known = _known(instance, INGEST)
    committed_at_s = known.get("committed_at", 0.0)
    if (known.get("generation"), known.get("epoch"), committed_at_s) == (
            newest.generation, newest.epoch, newest.at_ms / 1000):
        return []
    if is_running and now_s - committed_at_s < FOLD_S:
        return []
    found = f"commit {newest.state_id}, found in the commit log"
    events = []
    [offsets] = committed_positions(newest, app.topology.topics()).values()
    reaches = _known(instance, TOPIC).get("offsets", {})
    if any(offset > reaches.get(str(partition), 0) for partition, offset in offsets.items()):
        seen = offsets_metadata({str(partition): offset for partition, offset in offsets.items()})
        events.append(dg.AssetMaterialization(TOPIC, description=f"as far as read by {found}", metadata=_values(seen)))
    events.append(dg.AssetMaterialization(INGEST, description=found,
                                          metadata=_values(ingest_metadata(newest, app.topology.topics()))))
    events += [dg.AssetMaterialization(key, description=found,
                                       metadata=_values(table_metadata(newest, warehouse / app.id / name)))
               for name, key in TABLES.items()]
    return events


def _known(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, Any]:
    """The metadata of the asset's newest materialization as plain values; empty without one."""
    event = instance.get_latest_materialization_event(asset)
    metadata = event.asset_materialization.metadata if event and event.asset_materialization else {}
    return {name: entry.value for name, entry in metadata.items()}


def _values(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata as Pipes has it, as Dagster has it."""
    return {name: getattr(dg.MetadataValue, value["type"])(value["raw_value"]) if isinstance(value, dict) else value
            for name, value in metadata.items()}
