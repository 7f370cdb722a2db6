"""Read-only views of the stores under the topology test driver, with finished values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl

from pipelines.operators.functions import Windowed
from pipelines.serdes.row_type import TIME
from pipelines.topology.nodes import RecordType
from state.stores.specs import GONE

Read = Callable[[], pl.DataFrame]


class ReadOnlyKeyValueStore:
    """Key to value. A scalar value is itself, others are a dictionary of the value columns."""

    def __init__(self, read: Read, record: RecordType) -> None:
        self._read, self._record = read, record

    def get(self, key: Any) -> Any:
        """The value of ``key`` (of the key's type); None where there is none."""
        return dict(self.all()).get(key)

    def all(self) -> list[tuple[Any, Any]]:
        """Keys and values in key order."""
        rows = self._read()
        return list(zip(self._record.key_type.to_objects(rows), values_of(self._record, rows), strict=True))

    def get_with_timestamp(self, key: Any) -> tuple[Any, datetime] | None:
        """The value of ``key`` and the event time of what it was made of; None where there is none."""
        rows = self._read()
        times = rows.get_column("_ts").cast(TIME).to_list() if rows.height else []
        entries = zip(values_of(self._record, rows), times, strict=True)
        return dict(zip(self._record.key_type.to_objects(rows), entries, strict=True)).get(key)

    def approximate_num_entries(self) -> int:
        return self._read().height


class ReadOnlyWindowStore(ReadOnlyKeyValueStore):
    """Key and window to value; a window's state goes when the window closes."""

    def fetch(self, key: Any, window_start: datetime) -> Any:
        """The value of the window of ``key`` that starts then; None where there is none."""
        return next((value for windowed, value in self.all()
                     if windowed.key == key and windowed.window_start == window_start), None)

    def fetch_all(self, key: Any) -> list[tuple[Windowed, Any]]:
        """The open windows of ``key``, by start."""
        return [(windowed, value) for windowed, value in self.all() if windowed.key == key]


class ReadOnlySessionStore(ReadOnlyKeyValueStore):
    """Key and session to value, by key, then end; a session's state goes when it is closed."""

    def fetch(self, key: Any) -> list[tuple[Windowed, Any]]:
        """The open sessions of ``key``."""
        return [(windowed, value) for windowed, value in self.all() if windowed.key == key]

    def fetch_session(self, key: Any, start: datetime, end: datetime) -> Any:
        """The value of the session of ``key`` with these bounds; None where there is none."""
        return dict(self.all()).get(Windowed(key, start, end))


class ReadOnlyVersionedStore:
    """Key and time to the value that held then."""

    def __init__(self, read: Read, record: RecordType) -> None:
        self._read, self._record = read, record

    def get(self, key: Any, as_of: datetime | None = None) -> Any:
        """The newest value of ``key``, or the one that held at ``as_of``; None where there was none or it was deleted.
        """
        held = [(value, is_gone) for found, value, since, is_gone in self._versions()
                if found == key and (as_of is None or since <= as_of)]
        return None if not held or held[-1][1] else held[-1][0]

    def versions(self, key: Any) -> list[tuple[datetime, Any]]:
        """From when each value of ``key`` holds, oldest first; None where it was deleted."""
        return [(since, None if is_gone else value) for found, value, since, is_gone in self._versions()
                if found == key]

    def _versions(self) -> list[tuple[Any, Any, datetime, bool]]:
        rows = self._read()
        return list(zip(self._record.key_type.to_objects(rows), values_of(self._record, rows),
                        rows.get_column("valid_from").to_list(), rows.get_column(GONE).to_list(), strict=True))


def values_of(record: RecordType, rows: pl.DataFrame) -> list[Any]:
    """One value a row: a scalar itself, others as a dictionary of the value columns."""
    if record.value.is_scalar:
        return record.value.to_objects(rows)
    return rows.select(record.value.columns.names()).to_dicts()
