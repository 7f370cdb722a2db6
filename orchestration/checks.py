"""Judges an application from outside its driver: how far its newest commit is behind the topics."""

from __future__ import annotations

import dagster as dg

from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised


def lag_check(supervised: Supervised) -> dg.AssetChecksDefinition:
    """The newest commit's offsets beside the topics' end offsets."""
    max_records = supervised.thresholds.lag_max_records

    @dg.asset_check(
        asset=supervised.ingest,
        name="lag",
        description=(f"There is a commit, and the newest is at most {max_records:,} records behind the topics' ends."),
    )
    def lag(weir: WeirResource) -> dg.AssetCheckResult:
        """Compare the newest commit's offsets with the topics' ends."""
        from weir.infra.kafka.admin import KafkaAdmin
        from weir.infra.kafka.broker import broker_for
        from weir.pipelines.operations.positions import committed_lag, committed_positions
        from weir.state.commit.protocol import newest_commit

        settings = weir.settings()
        newest = newest_commit(settings.warehouse, supervised.id)
        with broker_for(settings) as bootstrap_servers:
            behind = committed_lag(
                committed_positions(newest, supervised.topics), KafkaAdmin(bootstrap_servers, settings.kafka)
            )
        records = sum(behind.values())
        return dg.AssetCheckResult(
            passed=newest is not None and records <= max_records,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "lag_records": records,
                "max_records": max_records,
                "committed_epoch": newest.epoch if newest else 0,
                "lag_by_partition": {f"{topic}-{number}": lag for (topic, number), lag in behind.items()},
            },
        )

    return lag
