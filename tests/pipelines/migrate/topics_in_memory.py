"""A Kafka cluster in memory, as far as a migration asks one."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from weir.infra.kafka.raw_records import RawRecords
from weir.pipelines.serdes.source import RAW_SCHEMA


@dataclass
class Cluster:
    """Topic partitions as lists of ``(key, value, time)``; the index is the offset."""

    rows: dict = field(default_factory=dict)
    offsets: dict = field(default_factory=dict)
    configs: dict = field(default_factory=dict)
    headers: dict = field(default_factory=dict)
    beginnings: dict = field(default_factory=dict)
    members: int = 0
    open_looks: int = 0
    """How many more times the last record of each partition counts as part of an open transaction."""

    def partition_counts(self, topics):
        counts = {topic: sum(name == topic for name, _ in self.rows) for topic in topics}
        return {topic: count for topic, count in counts.items() if count}

    def topic_ids(self, topics):
        return {topic: f"id of {topic}" for topic in topics}

    def beginning_offsets(self, partitions):
        return {partition: self.beginnings.get(partition, 0) for partition in partitions}

    def end_offsets(self, partitions, *, is_committed=True):
        is_open = is_committed and self.open_looks > 0
        self.open_looks -= is_committed
        return {partition: max(0, len(self.rows[partition]) - is_open) for partition in partitions}

    def group_offsets(self, group):
        return self.offsets

    def group_members(self, group):
        return self.members

    def create_topic(self, topic, partitions, config=None):
        self.configs[topic] = dict(config or {})
        self.rows.update({(topic, number): [] for number in range(partitions)})
        return True

    def set_group_offsets(self, group, offsets):
        self.offsets = {**self.offsets, **offsets}

    def write(self, topic, partition, records, headers=()):
        self.headers[topic] = tuple(headers)
        self.rows[topic, partition] += [(key, value, time or 0) for key, value, time in records.rows()]

    def reader(self, topic, partition):
        return Reader(topic, partition, self.rows[topic, partition])


@dataclass
class Reader:
    """Two records at a time."""

    topic: str
    partition: int
    rows: list

    def read(self, start, end, *, max_bytes):
        taken = self.rows[start : min(end, start + 2)]
        frame = pl.DataFrame(
            [(*row, offset) for offset, row in enumerate(taken, start)], schema=RAW_SCHEMA, orient="row"
        )
        return RawRecords(self.topic, self.partition, frame, start + len(taken))

    def close(self):
        pass
