"""How far an application's commits have reached: the offsets and counts of a commit, and the lag behind the topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weir.infra.kafka.admin import KafkaAdmin
from weir.state.commit.record import CommitRecord
from weir.state.types import Positions


def committed_positions(newest: CommitRecord | None, topics: Iterable[str] = ()) -> Positions:
    """The next offsets to read by topic and partition, over all tasks; ``topics`` are included even before a commit."""
    merged: Positions = {topic: {} for topic in topics}
    for task in newest.tasks.values() if newest else ():
        for topic, offsets in task.positions.items():
            merged.setdefault(topic, {}).update(offsets)
    return {topic: dict(sorted(merged[topic].items())) for topic in sorted(merged)}


def committed_totals(newest: CommitRecord | None) -> dict[str, int]:
    """Counts over all tasks since the application began, such as ``late_records``; ``open_windows`` at the commit."""
    totals: dict[str, int] = {}
    for task in newest.tasks.values() if newest else ():
        for name, count in task.totals.items():
            if name != "records_in" or task.positions:  # other tasks read what these have passed on
                totals[name] = totals.get(name, 0) + count
    return totals


def committed_lag(positions: Positions, admin: KafkaAdmin) -> Mapping[tuple[str, int], int]:
    """Records that no commit covers yet, by topic partition; a partition without a position counts from its oldest one.

    Raises:
        BrokerUnreachableError: No broker answered in time.
    """
    counts = admin.partition_counts(positions)
    partitions = [(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]
    ends, beginnings = admin.end_offsets(partitions), admin.beginning_offsets(partitions)
    return {
        (topic, number): ends[topic, number] - positions[topic].get(number, beginnings[topic, number])
        for topic, number in partitions
    }
