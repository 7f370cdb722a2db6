"""What each kind of store should answer, computed from plain dictionaries by looking at every row."""

from __future__ import annotations

from typing import Any

from weir.state.stores.access import ValueAndTimestamp
from weir.state.stores.versioned import NOT_PUT, VALID_TO_UNDEFINED, VersionedRow
from weir.state.stores.window import WindowKey


class Model:
    """Rows, and the greatest time of any put; ``retention_ms`` is None if nothing expires."""

    def __init__(self, retention_ms: int | None) -> None:
        self.retention_ms = retention_ms
        self.rows: dict[Any, Any] = {}
        self.clock_ms: int | None = None
        self.now_ms = 0
        self.expired_puts = 0

    def advance(self, time_ms: int) -> None:
        self.clock_ms = time_ms if self.clock_ms is None else max(self.clock_ms, time_ms)

    def is_live(self, time_ms: int) -> bool:
        return self.retention_ms is None or self.clock_ms is None or time_ms > self.clock_ms - self.retention_ms


class KeyValueModel(Model):
    """Key to row and timestamp."""

    def put(self, key: str, row: int, timestamp_ms: int) -> None:
        self.advance(timestamp_ms)
        if self.is_live(timestamp_ms):
            self.rows[key] = ValueAndTimestamp(row, timestamp_ms)
        else:
            self.expired_puts += 1

    def delete(self, key: str) -> ValueAndTimestamp | None:
        found = self.get(key)
        self.rows.pop(key, None)
        return found

    def get(self, key: str) -> ValueAndTimestamp | None:
        return dict(self.range(None, None)).get(key)

    def range(self, lower: str | None, upper: str | None) -> list[tuple[str, ValueAndTimestamp]]:
        return [
            (key, found)
            for key, found in sorted(self.rows.items(), key=lambda item: item[0].encode())
            if self.is_live(found.timestamp_ms)
            and (lower is None or key.encode() >= lower.encode())
            and (upper is None or key.encode() <= upper.encode())
        ]

    def expire(self) -> None:
        self.rows = dict(self.range(None, None))


class WindowModel(Model):
    """Start and key to row."""

    def __init__(self, retention_ms: int, size_ms: int) -> None:
        super().__init__(retention_ms)
        self.size_ms = size_ms

    def put(self, key: str, row: int | None, start_ms: int) -> None:
        self.advance(start_ms)
        if not self.is_live(start_ms):
            self.expired_puts += 1
        elif row is None:
            self.rows.pop((start_ms, key), None)
        else:
            self.rows[start_ms, key] = row

    def fetch(
        self, lower: str | None, upper: str | None, from_ms: int | None, to_ms: int | None
    ) -> list[tuple[WindowKey, int]]:
        return [
            (WindowKey(key, start_ms, start_ms + self.size_ms), row)
            for (start_ms, key), row in sorted(self.rows.items(), key=lambda item: (item[0][0], item[0][1].encode()))
            if self.is_live(start_ms)
            and _within(key, lower, upper)
            and (from_ms is None or start_ms >= from_ms)
            and (to_ms is None or start_ms <= to_ms)
        ]

    def expire(self) -> None:
        self.rows = {place: row for place, row in self.rows.items() if self.is_live(place[0])}


class ListModel(Model):
    """Key to rows."""

    def all(self) -> list[tuple[str, list[int]]]:
        return sorted(((key, rows) for key, rows in self.rows.items() if rows), key=lambda item: item[0].encode())


class TimerModel(Model):
    """Key to time."""

    def take(self, through_ms: int) -> list[tuple[str, int]]:
        due = sorted(
            ((key, at_ms) for key, at_ms in self.rows.items() if at_ms <= through_ms),
            key=lambda item: (item[1], item[0].encode()),
        )
        for key, _ in due:
            del self.rows[key]
        return due


class SessionModel(Model):
    """Key, end and start to row."""

    def put(self, key: str, row: int | None, start_ms: int, end_ms: int) -> None:
        self.advance(end_ms)
        if not self.is_live(end_ms):
            self.expired_puts += 1
        elif row is None:
            self.rows.pop((key, end_ms, start_ms), None)
        else:
            self.rows[key, end_ms, start_ms] = row

    def remove(self, key: str, start_ms: int, end_ms: int) -> None:
        self.rows.pop((key, end_ms, start_ms), None)

    def find(
        self, lower: str | None, upper: str | None, earliest_end_ms: int | None, latest_start_ms: int | None
    ) -> list[tuple[WindowKey, int]]:
        return [
            (WindowKey(key, start_ms, end_ms), row)
            for (key, end_ms, start_ms), row in sorted(
                self.rows.items(), key=lambda item: (item[0][0].encode(), *item[0][1:])
            )
            if self.is_live(end_ms)
            and _within(key, lower, upper)
            and (earliest_end_ms is None or end_ms >= earliest_end_ms)
            and (latest_start_ms is None or start_ms <= latest_start_ms)
        ]

    def expire(self) -> None:
        self.rows = {place: row for place, row in self.rows.items() if self.is_live(place[1])}


class VersionedModel(Model):
    """Key to versions: each a row or None, by the time from which it is valid. Nothing is ever forgotten here."""

    def put(self, key: str, row: int | None, timestamp_ms: int) -> int:
        if self.clock_ms is not None and timestamp_ms < self.clock_ms - self.retention_ms:
            self.expired_puts += 1
            return NOT_PUT
        self.advance(timestamp_ms)
        self.rows.setdefault(key, {})[timestamp_ms] = row
        return min((other for other in self.rows[key] if other > timestamp_ms), default=VALID_TO_UNDEFINED)

    def get(self, key: str, as_of_ms: int | None) -> VersionedRow | None:
        versions = self.rows.get(key, {})
        began = max((time for time in versions if as_of_ms is None or time <= as_of_ms), default=None)
        if began is None or versions[began] is None:
            return None
        ended = min((time for time in versions if time > began), default=None)
        is_before_history = as_of_ms is not None and as_of_ms < self.clock_ms - self.retention_ms
        return None if is_before_history and ended is not None else VersionedRow(versions[began], began, ended)

    def versions(self, key: str, from_ms: int, to_ms: int) -> list[VersionedRow]:
        """Within the history only: older versions are dropped sooner or later."""
        versions = self.rows.get(key, {})
        times = sorted(versions)
        ends = [*times[1:], None] if times else []
        found = [
            VersionedRow(versions[began], began, ended)
            for began, ended in zip(times, ends, strict=True)
            if versions[began] is not None
        ]
        return [
            row
            for row in reversed(found)
            if row.valid_from_ms <= to_ms
            and (row.valid_to_ms is None or row.valid_to_ms > max(from_ms, self.clock_ms - self.retention_ms))
        ]

    def expire(self) -> None:
        """Changes no answer."""


def _within(key: str, lower: str | None, upper: str | None) -> bool:
    return (lower is None or key.encode() >= lower.encode()) and (upper is None or key.encode() <= upper.encode())
