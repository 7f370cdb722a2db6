"""Which offsets a backfill reads: from the days' first record, less a margin, to the cut (docs/backfill.md, 2, 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pipelines.application import Application
from pipelines.backfill.errors import HistoryLostError, NoCutError
from state.commit.record import CommitRecord

TopicPartition = tuple[str, int]
Ranges = dict[str, dict[int, tuple[int, int]]]
"""Topic to partition to ``[start, end)``."""


class Cluster(Protocol):
    """What is asked of the brokers; ``infra.kafka.admin.KafkaAdmin`` fits."""

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def offsets_at(self, partitions: Sequence[TopicPartition], time_ms: int) -> Mapping[TopicPartition, int | None]:
        """The first offset of each whose record is of ``time_ms`` or later; None where there is none."""
        ...


def cut_of(application: Application, newest: CommitRecord | None) -> CommitRecord:
    """The live application's newest commit, as the cut of a backfill that begins now.

    Raises:
        NoCutError: There is none, or it does not know a topic, or rows between sub-topologies are under way in it.
    """
    if newest is None:
        raise NoCutError(application.id, "it has committed nothing; run it first")
    known = {topic for task in newest.tasks.values() for topic in task.positions}
    if new := sorted(set(application.topology.topics()) - known):
        raise NoCutError(application.id, f"its newest commit does not know topic {new[0]!r}; run this program first")
    if newest.pending_blobs:
        raise NoCutError(application.id, "rows between its sub-topologies wait for tasks that restore; try again when "
                         "these have, which `weir status` shows")
    return newest


def partitions_of(application: Application, cut: CommitRecord) -> Ranges:
    """Of each topic partition that ``cut`` knows and the program reads, the offsets up to the cut."""
    topics, ranges = set(application.topology.topics()), Ranges()
    for task in cut.tasks.values():
        for topic in topics & task.positions.keys():
            ranges.setdefault(topic, {}).update(
                {partition: (0, offset) for partition, offset in task.positions[topic].items()})
    return ranges


def kafka_ranges(application: Application, cluster: Cluster, cut: CommitRecord, from_ms: int) -> Ranges:
    """Of each topic partition that ``cut`` knows, the offsets from the first record at or after ``from_ms`` to the cut.

    The brokers know the records' own timestamps alone: where the program takes time from elsewhere, a topic is read
    from its beginning.

    Raises:
        HistoryLostError: A partition may have lost records at or after ``from_ms``.
    """
    ends = {(topic, partition): end for topic, partitions in partitions_of(application, cut).items()
            for partition, (_, end) in partitions.items()}
    wanted = sorted(ends)
    oldest, first = cluster.beginning_offsets(wanted), cluster.offsets_at(wanted, from_ms)
    ranges: Ranges = {}
    for (topic, partition), end in sorted(ends.items()):
        found = first[topic, partition]
        start = end if found is None else min(found, end)
        if not application.topology.source(topic).timestamp.is_records_own:
            start = oldest[topic, partition]
        if start <= oldest[topic, partition] and oldest[topic, partition] > 0:
            raise HistoryLostError(application.id, topic, partition, oldest[topic, partition])
        ranges.setdefault(topic, {})[partition] = (start, end)
    return ranges
