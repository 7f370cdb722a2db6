"""Input topics and output tables of the topology test driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_to_ms(time: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime; raises ``ValueError`` for a naive one."""
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone; pass a datetime with tzinfo=UTC")
    return (time - _EPOCH) // timedelta(milliseconds=1)


class TestInputTopic:
    """Where a test puts records in. Typed objects go through the topic's serdes; bytes are taken as they are."""

    __test__ = False

    def __init__(self, pipe: Callable[[Any, Any, int | None], None]) -> None:
        self._pipe = pipe

    def pipe_input(self, key: Any, value: Any = None, *, timestamp: datetime | None = None,
                   timestamp_ms: int | None = None) -> None:
        """Process one record to the end, and commit. Without a time it has the driver's wall clock.

        Raises:
            BadInputError: The record cannot be read, and the application stops at such.
        """
        if timestamp is not None and timestamp_ms is not None:
            raise ValueError("pass timestamp or timestamp_ms, not both")
        self._pipe(key, value, time_to_ms(timestamp) if timestamp is not None else timestamp_ms)

    def pipe_records(self, records: Iterable[tuple[Any, Any, datetime | int]]) -> None:
        """Process ``(key, value, time)`` one after another; the time is a datetime or milliseconds."""
        for key, value, time in records:
            self._pipe(key, value, time_to_ms(time) if isinstance(time, datetime) else time)


@dataclass(frozen=True)
class OutputRecord:
    """One row of an output table, with what Weir keeps beside it."""

    row: dict[str, Any]
    timestamp: datetime
    is_deleted: bool


class TestOutputTable:
    """What a topology wrote to a Delta table, oldest first; reading takes a row out."""

    __test__ = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._records: deque[OutputRecord] = deque()

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Called by the driver with rows as dictionaries of all the table's columns."""
        for row in rows:
            visible = {name: value for name, value in row.items() if not name.startswith("_")}
            self._records.append(OutputRecord(visible, row["_ts"], row["_deleted"]))

    def is_empty(self) -> bool:
        return not self._records

    def read_record(self) -> OutputRecord:
        """The oldest unread row with its time; raises ``LookupError`` when there is none."""
        if not self._records:
            raise LookupError(f"the table {self.name!r} has no unread row")
        return self._records.popleft()

    def read_row(self) -> dict[str, Any]:
        """The oldest unread row: key columns, window bounds, value columns; ``LookupError`` when there is none.

        A tombstone has null value columns.
        """
        return self.read_record().row

    def read_rows(self) -> list[dict[str, Any]]:
        """All unread rows, oldest first."""
        return [self.read_record().row for _ in range(len(self._records))]

    def read_records(self) -> list[OutputRecord]:
        """All unread rows with their times, oldest first."""
        return [self.read_record() for _ in range(len(self._records))]
