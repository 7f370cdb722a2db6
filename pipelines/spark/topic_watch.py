"""The topics of a run while it runs: where they end, and whether they are still the ones that were read (PROTOCOL 28).

Everything is asked of the source; what the answers mean is decided in ``weir.pipelines.spark.topic_logs``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from weir.infra.kafka.admin import BrokerUnreachableError, UnknownTopicError
from weir.infra.kafka.log_ends import LogEnd
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.errors import (
    GlobalTopicReplacedError,
    Loss,
    LostPosition,
    MatchedTopicGoneError,
    OffsetsLostError,
)
from weir.pipelines.spark.parts import Source
from weir.pipelines.spark.topic_logs import cut_short, lost_positions, replaced
from weir.state.types import TopicPartition

log = logging.getLogger("weir.driver")

Answer = TypeVar("Answer")


class TopicWatch:
    """Compares the topics with the coordinator's positions, and tells it their ids and leader epochs."""

    def __init__(self, coordinator: Coordinator, source: Source, source_counts: Mapping[str, int]) -> None:
        """``source_counts`` are the partitions of each topic that is read, as the run began."""
        self._coordinator, self._source = coordinator, source
        self._ids: dict[str, str] = {}
        self._ends: dict[TopicPartition, int] = {}
        """Where the topics were last seen to end."""
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
            OffsetsLostError, MatchedTopicGoneError: A topic no longer reaches what was read of it, or is gone.
            UnknownTopicError: The topic of a global table is gone.
            BrokerUnreachableError: No broker answered in time.
        """
        positions = self._positions()
        ends = self._asked(lambda: self._source.log_ends([*positions, *self._coordinator.global_beginnings]))
        lost = list(cut_short(positions, ends, self._ids, self._source))
        if lost:
            self.require_readable()  # it may be another topic, which is to be read from its start
            raise self._error(lost)
        self._note_leaders(ends)
        self._ends = {place: end.offset for place, end in ends.items()}
        return dict(self._ends)

    def require_readable(self) -> None:
        """Ask all that a start asks: whether every topic can be read on at its position.

        Raises what ``ends`` raises.
        """
        lost = self._asked(lambda: lost_positions(self._positions(), self._ids, self._source))
        if lost:
            raise self._error(lost)

    def has_read_since_commit(self, lost: Sequence[LostPosition]) -> bool:
        """Whether what was read since the last commit may be of the logs that took the place of these.

        Records that expired, and topics that are gone, have nothing in their place.
        """
        committed = self._committed()
        return any(
            each.position != committed[each.topic, each.partition]
            for each in lost
            if each.loss not in (Loss.EXPIRED, Loss.DELETED)
        )

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

    def confirm(self, apart_from: Collection[str] = ()) -> None:
        """Call it between the last read of an epoch and its commit: what was read since the last one came from the
        topics of the start, and the logs of their leaders have it. Of topics ``apart_from`` the ids are not compared.

        Raises:
            OffsetsLostError, GlobalTopicReplacedError: A topic was deleted and recreated, or a log that was read is cut
                short; nothing of it was committed.
            BrokerUnreachableError: Something was read since the last commit, and no broker answered in time.
        """
        committed = self._committed()
        read = {place: at for place, at in self._positions().items() if at.offset != committed[place]}
        try:
            ends = self._ends_of_those_there(read, apart_from)
            lost = list(cut_short({place: read[place] for place in ends}, ends, self._ids, self._source))
            self._require_same(apart_from)  # after the offsets, which may be another topic's
        except BrokerUnreachableError:
            if read:
                raise
            return
        if lost:
            raise self._error(lost)
        self._note_leaders(ends)

    def _ends_of_those_there(
        self, places: Collection[TopicPartition], apart_from: Collection[str]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Where those of ``places`` end whose topics have not been deleted."""
        try:
            return self._source.log_ends(sorted(places))
        except UnknownTopicError as error:
            self._require_same(apart_from)
            there = self._source.topics()
            if error.topic in there:
                raise _not_known_yet(error) from None
            return self._source.log_ends(sorted(place for place in places if place[0] in there))

    def _note_leaders(self, ends: Mapping[TopicPartition, LogEnd]) -> None:
        """Leaders have told these ends, and their logs reach the positions."""
        for task in self._coordinator.tasks.values():
            for topic in task.topics:
                end = ends.get((topic, task.id.partition))
                if end is not None and end.leader_epoch is not None:
                    task.reached(topic, end.leader_epoch)
                    task.end_epochs = {**task.end_epochs, topic: end.leader_epoch}

    def _require_same(self, apart_from: Collection[str] = ()) -> None:
        """Raise if topics were recreated."""
        others = replaced(self._ids, self._source.topic_ids(sorted(self._ids)))
        self._refuse({topic: found for topic, found in others.items() if topic not in apart_from})

    def _refuse(self, others: Mapping[str, str]) -> None:
        """Raise if topics were recreated; by topic, both ids in words."""
        lost = self._of(others, Loss.REPLACED)
        if lost:
            raise self._error(lost)
        for topic, found in others.items():
            raise GlobalTopicReplacedError(self._coordinator.application.id, topic, found)

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """The brokers' answer. What one of them does not know may be on its way to it: then the brokers count as away
        for the moment."""
        try:
            return question()
        except UnknownTopicError as error:
            application, there = self._coordinator.application, self._source.topics()
            self._require_same()
            gone = {topic: "" for topic, _ in self._positions() if topic not in there}
            for topic in application.topology.matched(gone):
                raise MatchedTopicGoneError(application.id, topic) from None
            if gone:
                raise self._error(self._of(gone, Loss.DELETED)) from None
            if error.topic not in there:
                raise
            raise _not_known_yet(error) from None

    def _of(self, topics: Mapping[str, str], loss: Loss) -> list[LostPosition]:
        """The positions in topics that are no longer there, with what was found of each."""
        return [
            LostPosition(topic=topic, partition=partition, position=at.offset, loss=loss, found=topics[topic], resume=0)
            for (topic, partition), at in self._positions().items()
            if topic in topics
        ]

    def _error(self, lost: Sequence[LostPosition]) -> OffsetsLostError:
        gone, committed = (Loss.REPLACED, Loss.DELETED), self._committed()

        def known(each: LostPosition) -> LostPosition:
            if each.loss in gone:
                return replace(each, end=self._ends.get((each.topic, each.partition)))
            is_before = (committed[each.topic, each.partition] or 0) <= int(each.found)
            return replace(each, is_uncommitted=each.loss is Loss.TRUNCATED and is_before)

        found = sorted(map(known, lost), key=lambda each: each.is_uncommitted)
        return OffsetsLostError(self._coordinator.application.id, found)

    def _committed(self) -> dict[TopicPartition, int | None]:
        """The positions of the last commit; None where it has none."""
        return {
            (topic, task.id.partition): task.committed_positions.get(topic, {}).get(task.id.partition)
            for task in self._coordinator.tasks.values()
            for topic in task.topics
        }

    def _positions(self) -> dict[TopicPartition, LogEnd]:
        return {
            (topic, task.id.partition): LogEnd(
                task.positions[topic][task.id.partition], task.leader_epochs.get(topic, {}).get(task.id.partition)
            )
            for task in self._coordinator.tasks.values()
            for topic in task.topics
        }


def _not_known_yet(error: UnknownTopicError) -> BrokerUnreachableError:
    """A topic that other brokers have may be on its way to the one that was asked."""
    return BrokerUnreachableError(error.bootstrap_servers, f"topic {error.topic!r} is not known yet")
