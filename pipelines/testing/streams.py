"""Input topics and output tables of the topology test driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from weir.pipelines.arguments import not_negative_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.testing.stores import dictionaries, values_of
from weir.pipelines.topology.nodes import RecordType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_to_ms(time: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime.

    Raises:
        TopologyError: It is no datetime.
        ValueError: It has no time zone.
    """
    if not isinstance(time, datetime):
        raise TopologyError(f"the time is {time!r}; pass a datetime with tzinfo=UTC")
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone; pass a datetime with tzinfo=UTC")
    return (time - _EPOCH) // timedelta(milliseconds=1)


def encode_part(topic: str, part: str, serde: Serde, item: Any) -> bytes | None:
    """The bytes of a record's key or value (``part``); bytes are taken as they are.

    Raises:
        TypeError: The object does not fit the serde.
    """
    if isinstance(item, bytes):
        return item
    try:
        return serde.encode(item)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:  # of the libraries below serdes, too
        columns = ", ".join(serde.row_type(part).columns)
        raise TypeError(
            f"topic {topic!r}, {part} ({columns}): {item!r} does not fit: {error}; pass an object that "
            "does, or the bytes that the topic would hold"
        ) from error


class TestInputTopic:
    """Where a test puts records in. Typed objects go through the topic's serdes; bytes are taken as they are."""

    __test__ = False

    def __init__(
        self, pipe: Callable[[Any, Any, int | None], None], start_ms: int | None = None, auto_advance_ms: int = 0
    ) -> None:
        self._pipe = pipe
        self._time_ms, self._auto_advance_ms = start_ms, auto_advance_ms

    def pipe_input(
        self, key: Any, value: Any = None, *, timestamp: datetime | None = None, timestamp_ms: int | None = None
    ) -> None:
        """Process one record to the end, and commit.

        Without a time it has the topic's, which then moves on by ``auto_advance``; the driver's wall clock where the
        topic was made without ``start``.

        Raises:
            TypeError: The key or the value does not fit the topic's serde.
            BadInputError: The record cannot be read, and the application stops at such.
        """
        if timestamp is not None and timestamp_ms is not None:
            raise ValueError("pass timestamp or timestamp_ms, not both")
        if timestamp is not None:
            timestamp_ms = time_to_ms(timestamp)
        elif timestamp_ms is None and self._time_ms is not None:
            timestamp_ms = self._time_ms
            self._time_ms += self._auto_advance_ms
        self._pipe(key, value, timestamp_ms)

    def pipe_key_value_list(self, records: Iterable[tuple[Any, Any]]) -> None:
        """Process ``(key, value)`` one after another, at the topic's time."""
        for key, value in records:
            self.pipe_input(key, value)

    def pipe_value_list(self, values: Iterable[Any]) -> None:
        """Process values with null keys one after another, at the topic's time."""
        for value in values:
            self.pipe_input(None, value)

    def advance_time(self, duration: timedelta) -> None:
        """Move the topic's time forward; raises ``ValueError`` for one that was made without ``start``."""
        if self._time_ms is None:
            raise ValueError("the topic has no time of its own; make it with create_input_topic(..., start=...)")
        self._time_ms += not_negative_ms(duration, "duration")

    def pipe_records(self, records: Iterable[tuple[Any, Any, datetime | int]]) -> None:
        """Process ``(key, value, time)`` one after another; the time is a datetime or milliseconds."""
        for key, value, time in records:
            self._pipe(key, value, time if isinstance(time, int) else time_to_ms(time))


@dataclass(frozen=True)
class OutputRecord:
    """One row of an output table, with what Weir keeps beside it."""

    row: dict[str, Any]
    timestamp: datetime
    is_deleted: bool


class TestOutputTable:
    """What a topology wrote to a Delta table, oldest first; reading takes a row out.

    A time behind the year 9999, as the end of a window may be, is ``datetime.max`` in UTC.
    """

    __test__ = False

    def __init__(self, name: str, record: RecordType) -> None:
        self.name, self._record = name, record
        self._rows: deque[pl.DataFrame] = deque()

    def add(self, rows: pl.DataFrame) -> None:
        """Called by the driver with rows that have all the table's columns."""
        self._rows.extend(rows.iter_slices(1))

    def is_empty(self) -> bool:
        return not self._rows

    def get_queue_size(self) -> int:
        """How many rows are unread."""
        return len(self._rows)

    def read_key_value(self) -> tuple[Any, Any]:
        """Key and value of the oldest unread row; ``LookupError`` when there is none.

        The key is an object of the key's type, a ``Windowed`` behind a window. A scalar value is itself, others are a
        dictionary of the value columns, that of a tombstone is None.
        """
        row = self._next()
        (key,), (value,) = self._record.key_type.to_objects(row), values_of(self._record, row)
        return key, None if row.get_column("_deleted")[0] else value

    def read_value(self) -> Any:
        """The value of the oldest unread row, as ``read_key_value`` gives it."""
        return self.read_key_value()[1]

    def read_key_values_to_list(self) -> list[tuple[Any, Any]]:
        """Keys and values of all unread rows, oldest first."""
        return [self.read_key_value() for _ in range(len(self._rows))]

    def read_values_to_list(self) -> list[Any]:
        """Values of all unread rows, oldest first."""
        return [value for _, value in self.read_key_values_to_list()]

    def read_key_values_to_map(self) -> dict[Any, Any]:
        """The newest value of each key of the unread rows; raises ``ValueError`` for a null key."""
        found = dict(self.read_key_values_to_list())
        if None in found:
            raise ValueError(f"the table {self.name!r} has a row with a null key, which a map cannot hold; read a list")
        return found

    def read_record(self) -> OutputRecord:
        """The oldest unread row with its time; raises ``LookupError`` when there is none."""
        row = self._next()
        (visible,) = dictionaries(row.select(name for name in row.columns if not name.startswith("_")))
        return OutputRecord(visible, row.get_column("_ts")[0], row.get_column("_deleted")[0])

    def read_row(self) -> dict[str, Any]:
        """The oldest unread row: key columns, window bounds, value columns; ``LookupError`` when there is none.

        A tombstone has null value columns.
        """
        return self.read_record().row

    def read_rows(self) -> list[dict[str, Any]]:
        """All unread rows, oldest first."""
        return [self.read_record().row for _ in range(len(self._rows))]

    def read_records(self) -> list[OutputRecord]:
        """All unread rows with their times, oldest first."""
        return [self.read_record() for _ in range(len(self._rows))]

    def _next(self) -> pl.DataFrame:
        if not self._rows:
            raise LookupError(f"the table {self.name!r} has no unread row")
        return self._rows.popleft()
