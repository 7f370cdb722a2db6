"""Sinks of one's own: what a program writes to bring batches of rows wherever it likes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import polars as pl


class RefusedError(Exception):
    """Raised by ``Sink.send`` for a batch that will never be taken: it is put aside, and the next one follows.

    Examples:
        >>> raise RefusedError("the account is closed")
        Traceback (most recent call last):
        ...
        weir.RefusedError: the account is closed
    """


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Committed rows of one sink and one epoch, in order. Sent again, it has the same rows and the same key."""

    rows: pl.DataFrame
    """The columns of key and value, then ``_ts``, the record's time (a datetime, UTC), and ``_deleted``, whether it is
    a tombstone, whose value columns are null. Columns have the polars types of docs/types.md;
    ``rows.to_dicts()`` gives dictionaries."""
    idempotency_key: str
    """``APP/SINK/EPOCH/FIRST_ROW+ROWS/OUTBOX``: the place of the rows. ``FIRST_ROW`` counts from 0 in the epoch;
    ``OUTBOX`` is another one after a reset of the application. What ``weir sink retry`` sends again has the key of its
    first delivery with ``/retry-1`` at the end, and ``/retry-2`` if that was refused, too."""
    sink: str
    epoch: int
    """The one that the rows were committed in."""


class Sink(ABC):
    """Base of sinks of one's own; pass one to ``stream.to_sink(...)``.

    Each connection is a shallow copy of the object that was passed, used by one thread. So ``__init__`` keeps settings,
    and ``open`` makes what cannot be shared.

    Examples:
        >>> class Print(Sink):
        ...     def send(self, batch: Batch) -> None:
        ...         for row in batch.rows.to_dicts():
        ...             print(batch.sink, row["user"], row["page"])
        >>> builder = StreamsBuilder()
        >>> builder.stream("clicks", key=String("user"), value=String("page")).to_sink(Print(), name="printed")
    """

    def open(self) -> None:  # noqa: B027 - there may be nothing to do
        """Connect; called before the first batch, and again after each failure. An exception is a failure of the sink,
        which is tried again later."""

    @abstractmethod
    def send(self, batch: Batch) -> None:
        """Bring a batch there; at least once, so a batch may come again after a crash or a failure.

        Raises:
            RefusedError: The batch will never be taken; it is put aside.
            Exception: Any other one means that the batch is to be sent again later.
        """

    def close(self) -> None:  # noqa: B027 - there may be nothing to do
        """Let go; called once for each ``open``, also for one that failed. Exceptions are logged and ignored."""
