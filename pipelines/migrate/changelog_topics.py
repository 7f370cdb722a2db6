"""Changelog topics and other topics of a stopped application: read to the ends of their last transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from weir.pipelines.cluster import Cluster
from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.serdes.source import RAW_SCHEMA, FetchedRecords
from weir.state.types import TopicPartition

BATCH_BYTES = 16 << 20
HELD_ROWS = 1_000_000
"""Rows of a changelog in memory before older ones of the same key are dropped."""
EMPTY_READS = 10
"""Reads without progress, one second each, after which the brokers are considered away."""
TRANSACTION_LIMIT_S = 30.0
"""How long a transaction may take to end: brokers abort that of a killed application after 10 to 20 s."""
TRANSACTION_LOOK_S = 0.1


class ChangelogReader(Protocol):
    """Reads a topic partition, committed records only; implemented by ``weir.infra.kafka.reader.PartitionReader``."""

    def read(self, start: int, end: int, *, max_bytes: int) -> FetchedRecords: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ChangelogTopics:
    """Topics that only one application writes."""

    cluster: Cluster
    reader: Callable[[str, int], ChangelogReader]

    def settled_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The ends of partitions that only the application writes, once its last transaction has ended in each.

        A broker answers a commit before it has marked all records that belong to it.
        """
        until = time.monotonic() + TRANSACTION_LIMIT_S
        while True:
            written = self.cluster.end_offsets(partitions, is_committed=False)
            ends = self.cluster.end_offsets(partitions)
            still_open = [partition for partition in partitions if ends[partition] < written[partition]]
            if not still_open:
                return ends
            if time.monotonic() > until:
                topic, number = still_open[0]
                raise MigrationError(
                    f"topic {topic!r}, partition {number} has had an open transaction for "
                    f"{TRANSACTION_LIMIT_S:.0f} s; stop what writes there, and try again"
                )
            time.sleep(TRANSACTION_LOOK_S)

    def newest(self, topic: str, partition: int, end: int, *, keeps_versions: bool) -> pl.DataFrame:
        """The newest record of each key below ``end``, without deleted keys, as ``RAW_SCHEMA``; with ``keeps_versions``
        of each key and timestamp, deletions included."""
        held = RAW_SCHEMA.to_frame()
        parts: list[pl.DataFrame] = []
        by = ["key", "timestamp_ms"] if keeps_versions else ["key"]
        for raw in self.read(topic, partition, end):
            parts.append(raw.frame)
            if sum(part.height for part in parts) > max(HELD_ROWS, held.height):
                held, parts = _newest_of([held, *parts], by), []
        newest = _newest_of([held, *parts], by).filter(pl.col("key").is_not_null())
        return newest if keeps_versions else newest.filter(pl.col("value").is_not_null())

    def read(self, topic: str, partition: int, end: int, start: int | None = None) -> Iterable[FetchedRecords]:
        """All committed records of ``[start, end)``. By default from the oldest one kept: those that the brokers remove
        meanwhile, since they have expired, may then be missing."""
        at = self._beginning(topic, partition) if start is None else start
        reader, empty = self.reader(topic, partition), 0
        try:
            while at < end:
                try:
                    raw = reader.read(at, end, max_bytes=BATCH_BYTES)
                except Exception:
                    if start is not None or (beginning := self._beginning(topic, partition)) <= at:
                        raise
                    at = beginning
                    continue
                empty = 0 if raw.next_offset > at else empty + 1
                if empty > EMPTY_READS:
                    raise MigrationError(
                        f"topic {topic!r}, partition {partition} gave nothing after offset {at} of "
                        f"{end}; check that the brokers are up, and try again"
                    )
                at = raw.next_offset
                yield raw
        finally:
            reader.close()

    def _beginning(self, topic: str, partition: int) -> int:
        return self.cluster.beginning_offsets([(topic, partition)])[topic, partition]


def _newest_of(parts: Sequence[pl.DataFrame], by: Sequence[str]) -> pl.DataFrame:
    """The newest row of each key, as a copy: one row of a read would keep the bytes of all its rows in memory."""
    newest = pl.concat(parts).unique(by, keep="last", maintain_order=True)
    return pl.DataFrame({name: newest[name].to_list() for name in newest.columns}, schema=RAW_SCHEMA)
