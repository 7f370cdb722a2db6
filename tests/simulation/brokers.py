"""The topics of a world: records come in the order of their merge times, between offsets that hold none.

Markers of transactions and records of aborted ones take offsets, and a reader passes over them; what comes after the
first record of an open transaction is not there yet. A topic may also become another one, lose its tail, or lose
records that nobody has read: then no driver may go on until it is ``healed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.pipelines.order.building import topics
from tests.pipelines.order.description import Data, Program
from tests.pipelines.order.model import Machine
from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.log_consumer import Row, log_reader
from weir.infra.kafka.reader import PartitionReader
from weir.state.types import TopicPartition

FOREIGN: Row = (b"nobody", b'{"num": 1, "word": "foreign"}', 1_500)
"""A record that no program may take."""


@dataclass
class Brokers(Topics):
    """Topics to which records are added over time."""

    waiting: list[tuple[TopicPartition, Row | None]] = field(default_factory=list, kw_only=True)
    """What is still to come, in its order; None stands for an offset without a record."""
    open: dict[TopicPartition, int] = field(default_factory=dict, kw_only=True)
    """Where the open transaction began, by partition; empty if none is open."""
    wrong: str = ""
    """What has happened to a topic; empty if all are well."""
    is_another: bool = False
    """Whether it shows other records in place of those that are committed, so that every start has to be refused."""

    def __post_init__(self) -> None:
        self._logs = dict(self.rows)
        """Those that hold what was added, whatever the brokers show."""
        self._kept: dict[TopicPartition, int] = {}

    @classmethod
    def of(cls, program: Program, data: Data, rng: Random) -> Brokers:
        """Empty topics, and all records of ``data`` on their way; global topics have theirs."""
        rows = topics(data).rows
        left = {at: iter(each) for at, each in rows.items()}
        gap = rng.choice([0.0, 0.0, 0.1, 0.4])
        waiting: list[tuple[TopicPartition, Row | None]] = []
        for topic, partition, _ in Machine(program).order(data):
            waiting.append(((topic, partition), next(left[topic, partition])))
            while rng.random() < gap:
                waiting.append((rng.choice(sorted(rows)), None))
        return cls(
            {at: list(each) if at[0] in program.global_topics else [] for at, each in rows.items()},
            ids={topic: f"first {topic}" for topic, _ in rows},
            leaders={at: [0] for at in rows},
            waiting=waiting,
        )

    def add(self, count: int) -> None:
        """The next records come."""
        come, self.waiting = self.waiting[:count], self.waiting[count:]
        for at, row in come:
            self._logs[at].append(row)

    def begin(self) -> None:
        """What comes from now on belongs to an open transaction, or waits behind it. It is one of all partitions, since
        records come in the order of their merge times, also as readers see them."""
        self.open = {at: len(log) for at, log in self._logs.items()}

    def end(self, *, is_aborted: bool) -> None:
        """The transaction ends; the records of one that is aborted are sent again."""
        for at, begin in self.open.items():
            log = self._logs[at]
            if is_aborted:
                sent = log[begin:]
                log[begin:] = [None] * len(sent)
                log += sent
            log.append(None)  # its marker
        self.open = {}

    def count(self, at: TopicPartition) -> int:
        """How many offsets have been written to a partition."""
        return len(self._logs[at])

    def forget(self, positions: dict[TopicPartition, int]) -> None:
        """Retention drops what is before ``positions``."""
        if not self.wrong:
            self.oldest |= positions

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable ones."""
        return {at: len(self._stable(at)) for at in super().end_offsets(partitions)}

    def reader(self, topic: str, partition: int) -> PartitionReader:
        at = topic, partition
        return log_reader(topic, partition, lambda: self._stable(at), lambda: self.oldest.get(at, 0))

    def _stable(self, at: TopicPartition) -> Sequence[Row | None]:
        rows = self.rows[at]
        return rows[: self.open[at]] if at in self.open and rows is self._logs[at] else rows

    # What goes wrong

    def make_anew(self, topic: str, rng: Random) -> None:
        """The topic is deleted and created again, and has other records."""
        self.wrong, self.is_another, self.ids[topic] = f"{topic} is made anew", True, f"second {topic}"
        self._kept = dict(self.oldest)
        for at in self._partitions(topic):
            self.rows[at] = [FOREIGN] * rng.choice([0, 3, 30, 100])
            self.oldest.pop(at, None)

    def cut(self, at: TopicPartition, offset: int, rng: Random, *, grows: bool) -> None:
        """A leader is elected that has the partition up to ``offset``; other records have come since if it ``grows``.
        ``offset`` is below the committed position."""
        self.is_another = True
        self.wrong, self._kept = f"{at} has lost its tail from {offset} on", dict(self.oldest)
        self.rows[at] = [*self._logs[at][:offset], *([FOREIGN] * rng.choice([3, 100]) if grows else ())]
        self.leaders[at].append(offset)
        if offset < self.oldest.get(at, 0):
            self.oldest[at] = offset

    def expire(self, at: TopicPartition, offset: int) -> None:
        """Retention drops records that nobody has read."""
        self.wrong, self._kept = f"{at} has lost what is before {offset}", dict(self.oldest)
        self.oldest[at] = offset

    def heal(self) -> None:
        """The topics are what they were."""
        self.wrong, self.is_another, self.oldest = "", False, self._kept
        self.rows = dict(self._logs)
        self.ids = {topic: f"first {topic}" for topic in self.ids}
        for at, began in self.leaders.items():
            self.leaders[at] = [0, *[len(self._logs[at])] * (len(began) - 1)]

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return sorted(at for at in self.rows if at[0] == topic)
