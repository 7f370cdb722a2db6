"""The topics of a world: records come in the order of their merge times, between offsets that hold none.

Markers of transactions and records of aborted ones take offsets, and a reader passes over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.pipelines.order.building import topics
from tests.pipelines.order.description import Data, Program
from tests.pipelines.order.model import Machine
from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.log_consumer import Row
from weir.state.types import TopicPartition


@dataclass
class Brokers(Topics):
    """Topics to which records are added over time."""

    waiting: list[tuple[TopicPartition, Row | None]] = field(default_factory=list, kw_only=True)
    """What is still to come, in its order; None stands for an offset without a record."""

    @classmethod
    def of(cls, program: Program, data: Data, rng: Random) -> Brokers:
        """Empty topics, and all records of ``data`` on their way."""
        rows = topics(data).rows
        left = {at: iter(each) for at, each in rows.items()}
        gap = rng.choice([0.0, 0.0, 0.1, 0.4])
        waiting: list[tuple[TopicPartition, Row | None]] = []
        for topic, partition, _ in Machine(program).order(data):
            waiting.append(((topic, partition), next(left[topic, partition])))
            while rng.random() < gap:
                waiting.append((rng.choice(sorted(rows)), None))
        return cls({at: [] for at in rows}, waiting=waiting)

    def add(self, count: int) -> None:
        """The next records come."""
        come, self.waiting = self.waiting[:count], self.waiting[count:]
        for at, row in come:
            self.rows[at].append(row)

    def forget(self, positions: dict[TopicPartition, int]) -> None:
        """Retention drops what is before ``positions``."""
        self.oldest |= positions


def places(rows: Sequence[TopicPartition]) -> str:
    """Topic partitions as text."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in rows)
