"""Warns before a topic deletes records that the application has not read yet."""

from __future__ import annotations

import time
from collections.abc import Mapping

import dagster as dg

from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.broker import EmbeddedBroker, broker_for
from weir.orchestration.resources import WeirResource
from weir.orchestration.sensors.observations import report_changes
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.positions import committed_positions
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at
from weir.state.types import Positions

LOOK_EVERY_S = 300
ANSWER_LIMIT_S = 2.0


def retention_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """Compares committed offsets with the oldest offsets that the brokers keep, whether a driver is running or not."""
    thresholds = supervised.thresholds

    @dg.sensor(
        name=f"{supervised.name}_retention",
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Warns when the next records to read are among the oldest that a topic keeps.",
    )
    def retention(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        settings = weir.settings()
        newest = newest_commit(folder_at(settings.warehouse), supervised.id)
        if newest is None:
            return dg.SkipReason(f"{supervised.id} has committed nothing yet")
        if settings.bootstrap_servers is None and not EmbeddedBroker(settings.kafka_dir).is_supervised():
            return dg.SkipReason("the embedded broker is down, so it deletes nothing")
        positions = committed_positions(newest)
        partitions = [(topic, number) for topic, offsets in positions.items() for number in offsets]
        with broker_for(settings) as (bootstrap_servers, settings):
            admin = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
            try:
                oldest, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
            except BrokerUnreachableError as error:
                return dg.SkipReason(str(error))
        return report_changes(
            supervised.ingest,
            endangered(positions, oldest, ends, thresholds.retention_min_share),
            context.cursor,
            at_ms=round(time.time() * 1000),
            cooldown_s=thresholds.cooldown_s,
        )

    return retention


def endangered(
    positions: Positions, oldest: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int], min_share: float
) -> dict[str, str]:
    """Partitions that have deleted records and whose next one to read is gone or among the oldest: a sentence each."""
    found = {}
    for (topic, number), first in oldest.items():
        position, end = positions[topic][number], ends[topic, number]
        name = f"{topic}-{number}"
        if first > 0 and position < first:
            found[f"{name} has lost records"] = (
                f"{name}: {first - position:,} records, from offset {position}, were deleted before they were read"
            )
        elif first > 0 and position < end and position - first < min_share * (end - first):
            found[f"{name} near retention"] = (
                f"{name}: offset {position} is read next, and the oldest of {end - first:,} kept is {first}: "
                "read faster, or lengthen the topic's retention"
            )
    return found
