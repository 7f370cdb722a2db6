"""The topics of a world: records come in the order of their merge times, between offsets that hold none.

Markers of transactions and records of aborted ones take offsets, and a reader passes over them; what comes after the
first record of an open transaction is not there yet. New leaders may lack the newest records, of which none is
committed: others are there for good. A topic may also become another one, lose what is committed, or lose records that
nobody has read: then no driver may go on until it is ``healed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.pipelines.order.building import topics
from tests.pipelines.order.description import Data, Program, Value
from tests.pipelines.order.model import Machine
from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.log_consumer import Row, log_reader
from weir.infra.kafka.reader import PartitionReader
from weir.pipelines.spark.errors import Loss, LostPosition
from weir.state.types import TopicPartition

FOREIGN: Row = (b"nobody", b'{"num": 1, "word": "foreign"}', 1_500)
"""A record that no program may take."""


@dataclass
class Brokers(Topics):
    """Topics to which records are added over time."""

    data: Data = field(default_factory=dict, kw_only=True)
    """The records that the partitions hold in the end."""
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
        self._came: list[TopicPartition] = []
        """Whose offsets were added one after another, since a transaction ended last."""
        self._kept: dict[TopicPartition, int] = {}

    @classmethod
    def of(cls, program: Program, data: Data, rng: Random) -> Brokers:
        """Empty topics, and all records of ``data`` on their way; global topics have theirs."""
        rows = topics(data, program.topics_with_headers).rows
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
            with_headers=program.topics_with_headers,
            data=data,
            waiting=waiting,
        )

    def add(self, count: int) -> None:
        """The next records come."""
        come, self.waiting = self.waiting[:count], self.waiting[count:]
        for at, row in come:
            self._logs[at].append(row)
        self._came += [at for at, _ in come]

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
        self._came.clear()

    def count(self, at: TopicPartition) -> int:
        """How many offsets have been written to a partition."""
        return len(self._logs[at])

    def forget(self, positions: dict[TopicPartition, int]) -> None:
        """Retention drops what is before ``positions``."""
        if not self.wrong:
            self.oldest |= positions

    def lose_newest(self, confirmed: Mapping[TopicPartition, int], rng: Random) -> bool:
        """Leaders are elected that lack the newest records, of which none is below the ``confirmed`` positions: others
        with their keys and times will come, or are there already. Whether there are such records.

        All records up to some moment stay, so that those of all partitions go on coming in their order.
        """
        least = {at: max(confirmed.get(at, 0), self.oldest.get(at, 0)) for at in self._logs}
        left, most = {at: len(log) for at, log in self._logs.items()}, 0
        for at in reversed(self._came):
            left[at] -= 1
            if left[at] < least[at]:
                break
            most += 1
        if self.wrong or self.open or not most:
            return False
        count = rng.randint(1, most)
        lost, self._came = self._came[-count:], self._came[:-count]
        self.waiting[:0] = [(at, self._another(at, rng)) for at in reversed(lost)][::-1]
        for at in set(lost):
            self.leaders[at].append(len(self._logs[at]))
        self.add(rng.choice([0, count // 2, count, count + 3]))
        return True

    def _another(self, at: TopicPartition, rng: Random) -> Row | None:
        """What will be there in place of the last offset of a partition, which is lost."""
        log, records = self._logs[at], self.data[at]
        if log.pop() is None:
            return None
        number = sum(row is not None for row in log)
        if records[number].value is not None:
            records[number] = records[number]._replace(value=Value(rng.randrange(9), rng.choice("abcd")))
        return topics({at: [records[number]]}, self.with_headers).rows[at][0]

    def lacks(self, lost: Sequence[LostPosition], confirmed: Mapping[TopicPartition, int]) -> bool:
        """Whether all of these positions are above the end of what a new leader had, and none is ``confirmed``."""
        begun = {at: min(began[1:]) for at, began in self.leaders.items() if began[1:]}

        def is_so(each: LostPosition) -> bool:
            at = each.topic, each.partition
            is_cut = each.loss in (Loss.TRUNCATED, Loss.SHORT) and at in begun
            return is_cut and each.position > max(begun[at], confirmed.get(at, 0))

        return all(map(is_so, lost))

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable ones."""
        return {at: len(self._stable(at)) for at in super().end_offsets(partitions)}

    def reader(self, topic: str, partition: int) -> PartitionReader:
        at = topic, partition
        return log_reader(
            topic,
            partition,
            lambda: self._stable(at),
            lambda: self.oldest.get(at, 0),
            with_headers=topic in self.with_headers,
        )

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
