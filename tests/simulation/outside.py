"""The systems that the sinks of a world lead to: Kafka's transactions, a database of SQLite, and a sink of one's own.

Their calls fail, time out with or without effect, and refuse rows, and for a time they are away, until they are
``heal``ed. Of two publishers of a sink, each keeps the one that has connected last, as the real ones do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from zlib import crc32

import polars as pl

from tests.simulation.ledger import Deliveries, Row, rows_of
from tests.simulation.scheduler import Scheduler
from weir.infra.kafka.transactions import Note, RecordRefusedError, TransactionError, WriterFencedError
from weir.pipelines.publishing.batches import BatchConnection
from weir.pipelines.publishing.connection import Published, RefusedRowsError, SinkError
from weir.pipelines.publishing.sql import SqlConnection
from weir.pipelines.sinks.batched import BatchedSink
from weir.pipelines.sinks.own import Batch, RefusedError
from weir.pipelines.sinks.own import Sink as OwnSink
from weir.pipelines.sinks.sql import SqlTable
from weir.state.commit.outbox import Mark, Outbox

REFUSED = ".refused"
"""What the name of a sink ends with while refused rows are sent again."""


class Outside:
    """How the outside does, and what it has got."""

    def __init__(self, scheduler: Scheduler) -> None:
        rng = scheduler.rng
        self._scheduler, self._rng = scheduler, rng
        self._failures, self._absences = rng.choice([0.0, 0.05, 0.2]), rng.choice([0.0, 0.0, 0.02])
        self._refuses = rng.choice([0, 0, 0, 2, 5])
        """Of how many rows one is refused; none if that is 0."""
        self._away_until_s = 0.0
        self._is_well = False
        self.deliveries: dict[str, Deliveries] = {}
        """By sink."""
        self.writers: dict[str, int] = {}
        """How many have connected, by the name of the sink as it publishes."""
        self.notes: dict[str, Note] = {}
        """By transactional id."""

    def __str__(self) -> str:
        return f"failures {self._failures}, absences {self._absences}, one of {self._refuses} rows is refused"

    def heal(self) -> None:
        """From now on it answers, and takes all rows."""
        self._is_well = True

    @contextmanager
    def call(self, what: str, error: Callable[[str], Exception]) -> Iterator[None]:
        """Around a call: it may fail before it has an effect, or after."""
        self._scheduler.point(what)
        if not self._is_well and self._rng.random() < self._absences:
            self._away_until_s = self._scheduler.now_s + self._rng.choice([0.5, 5.0, 60.0, math.inf])
            self._scheduler.note("the outside is away")
        if self._fails() or (not self._is_well and self._scheduler.now_s < self._away_until_s):
            raise error("it does not answer")
        yield
        self._scheduler.point(f"{what}: done")
        if self._fails():
            self._scheduler.note("the answer is lost")
            raise error("its answer is lost")

    def refuses(self, rows: Sequence[Row]) -> bool:
        """Whether a row is one that it does not take."""
        if self._is_well or not self._refuses:
            return False
        return any(crc32(repr(row).encode()) % self._refuses == 0 for row in rows)

    def connected(self, name: str) -> int:
        """The number of a publisher that has just connected."""
        self.writers[name] = self.writers.get(name, 0) + 1
        return self.writers[name]

    def refuses_rows(self, name: str, rows: Sequence[Row], through: Mark) -> bool:
        """Whether it does not take rows of which each is one message."""
        is_refused = self.refuses(rows)
        if is_refused and len(rows) == 1 and not name.endswith(REFUSED):
            deliveries = self.deliveries[name]
            deliveries.refused.update(deliveries.numbers(rows, through))
        return is_refused

    def take(self, name: str, rows: Sequence[Row], through: Mark) -> None:
        """It has got rows and their mark, each once."""
        deliveries = self.deliveries[name.removesuffix(REFUSED)]
        if name.endswith(REFUSED):
            deliveries.take_refused(rows)
        else:
            deliveries.take(deliveries.numbers(rows, through))
        self._scheduler.note(f"{name} has {len(rows)} rows more, up to {tuple(through)}")

    def _fails(self) -> bool:
        return not self._is_well and self._rng.random() < self._failures


class Writer:
    """``TransactionalWriter``: records and note at once, for the writer of an id that began last."""

    def __init__(self, outside: Outside, _: Mapping[str, str], *, id: str, noted_at: tuple[str, int]) -> None:
        self._outside, self._id = outside, id
        self._name = id.partition(".")[2]
        with outside.call(f"a writer of {self._name} begins", TransactionError):
            self._number = outside.connected(self._name)

    def note(self) -> Note | None:
        with self._outside.call(f"the note of {self._name}", TransactionError):
            return self._outside.notes.get(self._id)

    def write(self, rows: pl.DataFrame, note: Note) -> None:
        with self._outside.call(f"{self._name} writes {rows.height} records", TransactionError):
            if self._number != self._outside.writers[self._name]:
                raise WriterFencedError("another writer has begun")
            sent, through = rows_of(rows), Mark(note.number, int(note.text.partition(" ")[0]))
            if self._outside.refuses_rows(self._name, sent, through):
                raise RecordRefusedError("a record is refused")
            self._outside.take(self._name, sent, through)
            self._outside.notes[self._id] = note

    def close(self) -> None:
        pass


class Admin:
    """``KafkaAdmin`` of brokers that have every topic."""

    def __init__(self, *_: object) -> None:
        pass

    def require_topic(self, topic: str) -> None:
        pass


class Database(SqlConnection):
    """A connection to a SQLite file. Others run before and after its transactions, since one that waited for a lock
    would keep the whole world waiting."""

    def __init__(self, outside: Outside, application: str, sink: SqlTable, default_url: str) -> None:
        self._outside, self._name = outside, sink.name
        with outside.call(f"{self._name} connects", SinkError):
            super().__init__(application, sink, default_url)

    def publish(self, rows: pl.DataFrame, published: Published) -> None:
        with self._outside.call(f"{self._name} writes {rows.height} rows", SinkError):
            if self._outside.refuses_rows(self._name, rows_of(rows), published.mark):
                raise RefusedRowsError("a row is refused")
            super().publish(rows, published)
            self._outside.take(self._name, rows_of(rows), published.mark)


class Endpoint(OwnSink):
    """A sink that keeps no mark: batches come at least once, also late, while a newer publisher sends others."""

    def __init__(self, outside: Outside, name: str) -> None:
        self._outside, self._name = outside, name

    def open(self) -> None:
        self._number = self._outside.connected(self._name)
        with self._outside.call(f"{self._name} is opened", OSError):
            pass

    def send(self, batch: Batch) -> None:
        outside, deliveries = self._outside, self._outside.deliveries[self._name.removesuffix(REFUSED)]
        is_newest = self._number == outside.writers[self._name]
        deliveries.require(is_newest, "is sent a batch by a publisher that another one has followed")
        _, _, epoch, place, *_ = batch.idempotency_key.split("/")
        first, _, count = place.partition("+")
        deliveries.require(int(first) >= 0, f"is sent {place} rows of epoch {epoch}, and some of the one before")
        rows = rows_of(batch.rows)
        numbers = deliveries.numbers(rows, Mark(int(epoch), int(first) + int(count)))
        with outside.call(f"{self._name} is sent {epoch}/{place}", OSError):
            if self._name.endswith(REFUSED):
                deliveries.take_refused_batch(numbers)
            elif outside.refuses(rows):
                deliveries.refuse_batch(numbers)
                raise RefusedError("it does not take this batch")
            else:
                deliveries.take_batch(numbers)


def batches(outside: Outside, application: str, sink: BatchedSink, outbox: Outbox, _: OwnSink) -> BatchConnection:
    """A connection for an endpoint, by the name that its publisher has."""
    return BatchConnection(application, sink, outbox, Endpoint(outside, sink.name))
