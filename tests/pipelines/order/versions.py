"""Versioned tables of the plain model, and the records that wait for what they will be as of their time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.pipelines.order.description import Value


class Versions:
    """The rows of a task by key and time."""

    def __init__(self, history: int) -> None:
        self._history, self._time = history, -1
        self._rows: dict[str, dict[int, Value | None]] = {}

    def put(self, key: str, value: Value | None, ts: int) -> bool:
        """Whether the row is in time; None deletes the key from ``ts`` on."""
        self._time = max(self._time, ts)
        if ts < self._time - self._history:
            return False
        self._rows.setdefault(key, {})[ts] = value
        return True

    def as_of(self, key: str, time: int) -> tuple[Value, int] | None:
        """What is valid at ``time``; before the history, only what is still the newest of its key."""
        rows = self._rows.get(key, {})
        since = max((ts for ts in rows if ts <= time), default=None)
        if since is None or (time < self._time - self._history and since < max(rows)):
            return None
        value = rows[since]
        return None if value is None else (value, since)


class Waiting:
    """Records that wait until stream time is ``grace`` beyond theirs."""

    def __init__(self, grace: int) -> None:
        self._grace, self._time, self._count = grace, -1, 0
        self._held: list[tuple[int, bytes, int, Any]] = []

    def take(self, item: Any) -> Iterator[Any]:
        """The records that go on: this one if it is late, else those that have waited long enough."""
        self._time = max(self._time, item.ts)
        if item.ts < self._time - self._grace:
            yield item
            return
        self._count += 1
        self._held.append((item.ts, item.key.encode(), self._count, item))
        self._held.sort(key=lambda held: held[:3])
        while self._held and self._held[0][0] + self._grace <= self._time:
            yield self._held.pop(0)[3]
