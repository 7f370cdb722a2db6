"""Warns before a topic deletes records that the application has not read yet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import dagster as dg

from weir.infra.kafka.admin import BrokerUnreachableError
from weir.orchestration.sensors.observations import report_changes
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.positions import committed_positions
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at
from weir.state.types import Positions

LOOK_EVERY_S = 300


def retention_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """Compares committed offsets with the oldest offsets that the brokers keep, whether a driver is running or not."""
    return watch(
        "retention",
        retention,
        applications,
        every_s=LOOK_EVERY_S,
        description="Warns when the next records to read are among the oldest that a topic keeps.",
    )


def retention(look: Look) -> Found:
    """Nothing to warn of before the first commit, and while no broker answers."""
    newest = newest_commit(folder_at(look.settings.warehouse), look.id)
    if newest is None:
        return Found(said="nothing was committed yet")
    positions = committed_positions(newest)
    partitions = [(topic, number) for topic, offsets in positions.items() for number in offsets]
    try:
        if (admin := look.tick.kafka) is None:
            return Found(said="the embedded broker is down, so it deletes nothing")
        oldest, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    except BrokerUnreachableError as error:
        return Found(said=str(error))
    return report_changes(
        look.supervised.ingest,
        endangered(positions, oldest, ends, look.supervised.thresholds.retention_min_share),
        look.cursor,
        at_ms=round(time.time() * 1000),
        cooldown_s=look.supervised.thresholds.cooldown_s,
    )


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
