"""The committed positions as a consumer group's offsets, for lag tools that only know consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from weir.infra.kafka.admin import KafkaAdminError
from weir.pipelines.spark.afterwards import Afterwards
from weir.state.types import TopicPartition


class OffsetTarget(Protocol):
    """Where a group's offsets are set; implemented by ``weir.infra.kafka.admin.KafkaAdmin``."""

    def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


def offset_mirror(cluster: OffsetTarget, group: str) -> Afterwards[Mapping[TopicPartition, int]]:
    """Sends the positions that it is called with to ``group``."""
    return Afterwards(
        "offset mirror",
        partial(cluster.set_group_offsets, group),
        KafkaAdminError,
        f"the positions did not reach consumer group {group!r}",
    )
