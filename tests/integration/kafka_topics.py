"""Topics of a real broker where tests otherwise have topics in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.reader import PartitionReader


@dataclass
class KafkaTopics:
    """Topics of a real broker, for a ``Place`` that otherwise has topics in memory."""

    admin: KafkaAdmin
    names: tuple[str, ...]
    readers: dict = field(default_factory=dict)

    def topics(self):
        return self.partition_counts()

    def partition_counts(self):
        return self.admin.partition_counts(self.names)

    def topic_ids(self, topics):
        return self.admin.topic_ids(topics)

    def log_ends(self, partitions):
        return self.admin.log_ends(partitions)

    def truncations(self, positions):
        return self.admin.truncations(positions)

    def beginning_offsets(self, partitions):
        return self.admin.beginning_offsets(partitions)

    start_offsets = beginning_offsets

    def compacted(self, topics):
        return set()

    def new_reader(self, topic, partition):
        return PartitionReader({"bootstrap.servers": self.admin.bootstrap_servers}, topic, partition)

    def reader(self, topic, partition):
        if (topic, partition) not in self.readers:
            self.readers[topic, partition] = self.new_reader(topic, partition)
        return self.readers[topic, partition]
