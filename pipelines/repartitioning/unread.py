"""Whether topics are read so far that a key's state may go where its new records are.

A key's records stay in the partition where they were produced; once a topic has more, new ones go to another. What is
still unread in the old one would find no state there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import polars as pl

from weir.pipelines.repartitioning.errors import RepartitionError, UnreadRecordsError
from weir.pipelines.repartitioning.plan import RepartitionPlan
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.source import FetchedRecords
from weir.pipelines.tasks.placement import RECORDS, check_placement
from weir.pipelines.topology.nodes import SourceNode
from weir.state.types import TopicPartition


class Offsets(Protocol):
    """Where topic partitions begin and end."""

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]: ...


class Reader(Protocol):
    """Reads one topic partition."""

    def read(self, start: int, end: int) -> FetchedRecords: ...

    def close(self) -> None: ...


def require_read(plan: RepartitionPlan, offsets: Offsets, reader: Callable[[str, int], Reader]) -> None:
    """Look at the topics of which stores are dealt out.

    Raises:
        UnreadRecordsError: A record is unread whose key's state would go elsewhere.
        PartitionerError: Keys in a new partition do not belong there by Kafka's default partitioner.
        RepartitionError: A topic has keys that its serde writes otherwise, or did not answer.
    """
    for source in _dividing_topics(plan):
        topic, now = source.topic, plan.source_counts[source.topic]
        known = plan.record.topics[topic].positions
        places = [(topic, partition) for partition in range(now)]
        begins, ends = offsets.beginning_offsets(places), offsets.end_offsets(places)
        for partition in range(now):
            begin, end = begins[topic, partition], ends[topic, partition]
            opened = reader(topic, partition)
            try:
                if partition not in known:
                    for read in _reads(plan, opened, begin, min(end, begin + RECORDS)):
                        check_placement(read, now)
                    continue
                position = max(known[partition], begin)
                if len(known) == 1:  # then no row tells whether its key is where this is sent
                    for read in _reads(plan, opened, max(begin, position - RECORDS), position):
                        _require_written_so(plan, source, read.frame["key"])
                for read in _reads(plan, opened, position, end):
                    moved = _first_moved(read.frame, partition, now)
                    if moved is not None:
                        is_split = now % len(known) == 0
                        raise UnreadRecordsError(plan.application, topic, partition, moved, is_split=is_split)
            finally:
                opened.close()


def _dividing_topics(plan: RepartitionPlan) -> Iterator[SourceNode]:
    """The topics by whose keys stores are dealt out."""
    for each in plan.resized:
        names = {topic for key in each.stores for topic in each.sub_topology.topics_of(key.spec.name)}
        for source in each.sub_topology.sources:
            before, now = each.partitions.get(source.topic, (0, 0))
            if source.topic in names and before != now:
                yield source


def _reads(plan: RepartitionPlan, reader: Reader, start: int, end: int) -> Iterator[FetchedRecords]:
    while start < end:
        read = reader.read(start, end)
        if read.next_offset <= start:
            raise RepartitionError(
                plan.application, f"topic {read.topic!r}, partition {read.partition}, was not answered for; try again"
            )
        start = read.next_offset
        yield read


def _first_moved(records: pl.DataFrame, partition: int, now: int) -> int | None:
    """The offset of the first record that belongs to another partition."""
    records = records.filter(pl.col("key").is_not_null())
    targets = (murmur2(records["key"].to_list()) & np.uint32(0x7FFFFFFF)) % now
    moved = np.flatnonzero(targets != partition)
    return int(records["offset"][int(moved[0])]) if len(moved) else None


def _require_written_so(plan: RepartitionPlan, source: SourceNode, keys: pl.Series) -> None:
    keys = keys.drop_nulls().unique()
    decoded = source.key_serde.decode(keys, source.key)
    left_out = {*decoded.absent, *decoded.bad}
    rows = pl.DataFrame([column.alias(name) for column, name in zip(decoded.columns, source.key.columns, strict=True)])
    written = source.key_bytes(rows)
    for place, (found, wanted) in enumerate(zip(keys.to_list(), written, strict=True)):
        if place not in left_out and found != wanted:
            raise RepartitionError(
                plan.application,
                f"topic {source.topic!r} has the key {found!r}, which {type(source.key_serde).__name__} writes as "
                f"{wanted!r}, so it is not known in which partition its new records are; begin with empty stores with "
                "`weir run MODULE:APP --accept-state-loss`",
            )
