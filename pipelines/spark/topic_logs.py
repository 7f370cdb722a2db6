"""Whether topics still hold what the positions of an application belong to (PROTOCOL 28).

A topic's id tells it from another one of the same name (KIP-516), leader epochs tell whether a log was truncated below
a position and has grown again (KIP-320), and its beginning and end whether the position is still inside. Pure questions
and answers; when they are asked is up to ``weir.pipelines.spark.topic_watch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from weir.infra.kafka.log_ends import LogEnd
from weir.pipelines.spark.errors import Loss, LostPosition
from weir.state.commit.record import CommitRecord
from weir.state.types import TopicPartition


class TopicLogs(Protocol):
    """The logs of topic partitions; also implemented by ``weir.infra.kafka.admin.KafkaAdmin``."""

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """By topic, the id that it got when it was created; brokers may have none."""
        ...

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The oldest record that each partition holds."""
        ...

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        """Last stable offsets, with the leader epochs that answered."""
        ...

    def truncations(self, positions: Mapping[TopicPartition, LogEnd]) -> Mapping[TopicPartition, int]:
        """Of logs that reached ``positions``, those that were truncated below, with the offset where that was."""
        ...


def replaced(known: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Topics whose id is not the ``known`` one, with both ids in words."""
    return {
        topic: f"its id was {topic_id} and is {now[topic]} now"
        for topic, topic_id in known.items()
        if now.get(topic, topic_id) != topic_id
    }


def lost_positions(
    positions: Mapping[TopicPartition, LogEnd], known_ids: Mapping[str, str], logs: TopicLogs
) -> list[LostPosition]:
    """Those of ``positions`` where reading on would skip records or take others for those that were read.

    A position is an offset with the epoch of a leader whose log reached it.
    """
    if not positions:
        return []
    places = sorted(positions)
    ends, oldest = logs.log_ends(places), dict(logs.beginning_offsets(places))
    ids = logs.topic_ids(sorted({topic for topic, _ in places}))  # after the offsets, which may be another topic's
    others = replaced(known_ids, ids)
    oldest |= logs.beginning_offsets([place for place in places if place[0] in others]) if others else {}
    lost = [
        LostPosition(
            topic=topic,
            partition=partition,
            position=positions[topic, partition].offset,
            loss=Loss.REPLACED,
            found=others[topic],
            resume=oldest[topic, partition],
        )
        for topic, partition in places
        if topic in others
    ]
    same = {place: at for place, at in positions.items() if place[0] not in others}
    sure = known_ids.keys() & ids.keys()
    lost += cut_short(same, ends, sure, logs)
    lost += [
        LostPosition(
            topic=topic,
            partition=partition,
            position=at.offset,
            loss=Loss.EXPIRED,
            found=str(oldest[topic, partition]),
            resume=oldest[topic, partition],
        )
        for (topic, partition), at in sorted(same.items())
        if at.offset < oldest[topic, partition]
    ]
    return lost


def cut_short(
    positions: Mapping[TopicPartition, LogEnd],
    ends: Mapping[TopicPartition, LogEnd],
    sure: Iterable[str],
    logs: TopicLogs,
) -> Iterator[LostPosition]:
    """Those of ``positions`` that logs with these ``ends`` do not reach, or no longer have.

    Only for topics that are ``sure`` to be the same is it known where to read on.
    """
    led_by_others = {
        place: at
        for place, at in positions.items()
        if None not in (at.leader_epoch, now := ends[place].leader_epoch) and at.leader_epoch != now
    }
    truncated, known = logs.truncations(led_by_others) if led_by_others else {}, set(sure)
    for place, at in sorted(positions.items()):
        end = truncated.get(place, ends[place].offset)
        if at.offset > end:
            yield LostPosition(
                topic=place[0],
                partition=place[1],
                position=at.offset,
                loss=Loss.TRUNCATED if place in truncated else Loss.SHORT,
                found=str(end),
                resume=end if place[0] in known else None,
            )


def committed_ends(record: CommitRecord, topics: Iterable[str]) -> dict[TopicPartition, LogEnd]:
    """A commit's positions in ``topics``, with leader epochs where it has them."""
    wanted = set(topics)
    return {
        (topic, partition): LogEnd(offset, known.leader_epochs.get(partition))
        for topic, known in record.topics.items()
        if topic in wanted
        for partition, offset in known.positions.items()
    }
