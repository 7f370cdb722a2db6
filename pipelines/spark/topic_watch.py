"""The topics of a run while it runs: where they end, and whether they are still the ones that were read (PROTOCOL 28).

Everything is asked of the source; what the answers mean is decided in ``weir.pipelines.spark.topic_logs``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from weir.infra.kafka.admin import BrokerUnreachableError
from weir.infra.kafka.log_ends import LogEnd
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.errors import GlobalTopicReplacedError, Loss, LostPosition, OffsetsLostError
from weir.pipelines.spark.parts import Source
from weir.pipelines.spark.topic_logs import cut_short, lost_positions, replaced
from weir.state.types import TopicPartition

log = logging.getLogger("weir.driver")


class TopicWatch:
    """Compares the topics with the coordinator's positions, and tells it their ids and leader epochs."""

    def __init__(self, coordinator: Coordinator, source: Source, source_counts: Mapping[str, int]) -> None:
        """``source_counts`` are the partitions of each topic that is read, as the run began."""
        self._coordinator, self._source = coordinator, source
        self._ids: dict[str, str] = {}
        self._is_away = False
        self._partitions = {topic: source_counts[topic] for topic in coordinator.application.topology.topics()}

    def begin(self, *, accept_lost_records: bool) -> None:
        """Compare the topics with what is committed; a loss that is accepted is committed at once.

        Raises:
            OffsetsLostError: They differ, and that was not accepted or it is unknown where to read on.
            BrokerUnreachableError: No broker answered in time.
        """
        coordinator = self._coordinator
        positions, known = self._positions(), coordinator.topic_ids
        ids = self._source.topic_ids(sorted({topic for topic, _ in (*positions, *coordinator.global_beginnings)}))
        lost = lost_positions(positions, known, self._source)
        offsets = {(each.topic, each.partition): each.resume for each in lost if each.resume is not None}
        if lost and not (accept_lost_records and len(offsets) == len(lost)):
            raise OffsetsLostError(coordinator.application.id, lost)
        self._ids = dict(ids)
        topics = {topic for topic, _ in positions}
        coordinator.topic_ids = {topic: topic_id for topic, topic_id in {**known, **ids}.items() if topic in topics}
        if lost:
            for each in lost:
                log.warning("accepted: %s; it is read on at offset %s", each, each.resume)
            coordinator.read_on_at(offsets)

    def ends(self) -> dict[TopicPartition, int]:
        """Where the topics end.

        Raises:
            OffsetsLostError: A topic no longer reaches what was read of it.
            BrokerUnreachableError: No broker answered in time.
        """
        positions = self._positions()
        self._is_away = True
        ends = self._source.log_ends([*positions, *self._coordinator.global_beginnings])
        lost = list(cut_short(positions, ends, self._ids, self._source))
        self._is_away = False
        if lost:
            raise OffsetsLostError(self._coordinator.application.id, lost)
        for task in self._coordinator.tasks.values():
            for topic in task.topics:
                epoch = ends[topic, task.id.partition].leader_epoch
                if epoch is not None:
                    task.leader_epochs.setdefault(topic, {})[task.id.partition] = epoch
        return {place: end.offset for place, end in ends.items()}

    def grown(self) -> str:
        """What there is to read that was not there when the run began, in words; "" for nothing.

        Raises:
            BrokerUnreachableError: No broker answered in time.
        """
        topics = self._source.topics()
        new = [
            topic for topic in self._coordinator.application.topology.matched(topics) if topic not in self._partitions
        ]
        more = [topic for topic, count in self._partitions.items() if topics.get(topic, count) > count]
        return "; ".join(
            [
                *(f"topic {topic!r} is new, with {topics[topic]} partitions" for topic in new),
                *(
                    f"topic {topic!r} has {topics[topic]} partitions, {self._partitions[topic]} before"
                    for topic in more
                ),
            ]
        )

    def require_same(self) -> None:
        """Call it between the last read of an epoch and its commit: what was read came from the topics of the start.

        While brokers are away it is skipped: the ids that the commit names are still those of the topics that were
        read before, so the next start compares them.

        Raises:
            OffsetsLostError, GlobalTopicReplacedError: A topic was deleted and recreated; nothing of it was committed.
        """
        if self._is_away:
            return
        try:
            others = replaced(self._ids, self._source.topic_ids(sorted(self._ids)))
        except BrokerUnreachableError:
            self._is_away = True
            return
        lost = [
            LostPosition(
                topic=topic, partition=partition, position=at.offset, loss=Loss.REPLACED, found=others[topic], resume=0
            )
            for (topic, partition), at in self._positions().items()
            if topic in others
        ]
        if lost:
            raise OffsetsLostError(self._coordinator.application.id, lost)
        for topic, found in others.items():
            raise GlobalTopicReplacedError(self._coordinator.application.id, topic, found)

    def _positions(self) -> dict[TopicPartition, LogEnd]:
        return {
            (topic, task.id.partition): LogEnd(
                task.positions[topic][task.id.partition], task.leader_epochs.get(topic, {}).get(task.id.partition)
            )
            for task in self._coordinator.tasks.values()
            for topic in task.topics
        }
