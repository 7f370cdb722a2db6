"""What backfills and migrations ask the brokers; all implemented by ``weir.infra.kafka.admin.KafkaAdmin``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from weir.state.types import TopicPartition


class Cluster(Protocol):
    """The topics of a cluster."""

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        """The number of partitions of each topic that exists."""
        ...

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The id that each topic got when it was created; brokers may have none."""
        ...

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def end_offsets(
        self, partitions: Sequence[TopicPartition], *, is_committed: bool = True
    ) -> Mapping[TopicPartition, int]: ...


class History(Cluster, Protocol):
    """A cluster whose topics can be searched by time."""

    def offsets_at(self, partitions: Sequence[TopicPartition], time_ms: int) -> Mapping[TopicPartition, int | None]:
        """The first offset of each whose record's time is ``time_ms`` or later; None where there is none."""
        ...


class Groups(Cluster, Protocol):
    """A cluster with its consumer groups."""

    def group_offsets(self, group: str) -> Mapping[TopicPartition, int]: ...

    def group_members(self, group: str) -> int: ...
