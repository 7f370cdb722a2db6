"""Judges the flights ingest: how far it is behind its topic."""

import dagster as dg

from infra.kafka.admin import KafkaAdmin
from infra.kafka.broker import broker_for
from orchestration.flights.assets import INGEST
from orchestration.resources import WeirResource
from pipelines.cli.positions import committed_lag, committed_positions
from pipelines.examples.flights import app


class LagConfig(dg.Config):
    """What counts as too far behind."""

    max_records: int = 1000
    """Committed offsets may trail the topic's end by so many records, over all partitions."""


@dg.asset_check(asset=INGEST, description="The newest commit is close to the end of the topic.")
def lag(config: LagConfig, weir: WeirResource) -> dg.AssetCheckResult:
    """Compares the newest commit's offsets with the topic's end offsets; fails when there is no commit at all."""
    from state.commit.protocol import newest_commit

    settings = weir.settings()
    newest = newest_commit(settings.warehouse, app.id)
    positions = committed_positions(newest, app.topology.topics())
    with broker_for(settings) as bootstrap_servers:
        behind = committed_lag(positions, KafkaAdmin(bootstrap_servers, settings.kafka))
    records = sum(behind.values())
    return dg.AssetCheckResult(
        passed=newest is not None and records <= config.max_records,
        metadata={"lag_records": records, "max_records": config.max_records,
                  "committed_epoch": newest.epoch if newest else 0,
                  "lag_by_partition": {f"{topic}-{number}": lag for (topic, number), lag in behind.items()}})
