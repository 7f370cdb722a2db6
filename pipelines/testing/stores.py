"""Read-only views of the stores under the topology test driver, with finished values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl

from weir.pipelines.operators.functions import Windowed
from weir.pipelines.serdes.row_type import TIME, as_datetimes, key_frame
from weir.pipelines.topology.nodes import RecordType
from weir.state.stores.specs import GONE

Read = Callable[[], pl.DataFrame]


class ReadOnlyKeyValueStore:
    """Key to value. A scalar value is itself, others are a dictionary of the value columns.

    A key is its column's value, of several columns the object that functions get, a tuple in their order, or a
    dictionary; a ``TypeError`` names the columns where it is none of these. Times as in ``read_key_value``.
    """

    def __init__(self, read: Read, record: RecordType) -> None:
        self._read, self._record = read, record

    def get(self, key: Any) -> Any:
        """The value of ``key``, behind a window a ``Windowed``; None where there is none."""
        return next(iter(values_of(self._record, self._of(key))), None)

    def all(self) -> list[tuple[Any, Any]]:
        """Keys and values in key order."""
        return self._entries(self._read())

    def get_with_timestamp(self, key: Any) -> tuple[Any, datetime] | None:
        """The value of ``key`` and the event time of what it was made of; None where there is none."""
        rows = self._of(key)
        return next(zip(values_of(self._record, rows), rows.get_column("_ts").cast(TIME).to_list(), strict=True), None)

    def approximate_num_entries(self) -> int:
        return self._read().height

    def _of(self, key: Any) -> pl.DataFrame:
        """The row of a key, if there is one."""
        if not self._record.is_windowed:
            return of_key(self._read(), self._record, key)
        if not isinstance(key, Windowed):
            raise TypeError(f"{key!r} is not a Windowed(key, window_start, window_end), which the keys here are")
        rows = of_key(self._read(), self._record, key.key)
        is_meant = [
            (found.window_start, found.window_end) == (key.window_start, key.window_end)
            for found in self._record.key_type.to_objects(rows)
        ]
        return rows.filter(pl.Series(is_meant, dtype=pl.Boolean()))

    def _entries(self, rows: pl.DataFrame) -> list[tuple[Any, Any]]:
        return list(zip(self._record.key_type.to_objects(rows), values_of(self._record, rows), strict=True))


class ReadOnlyWindowStore(ReadOnlyKeyValueStore):
    """Key and window to value; a window's state goes when the window closes."""

    def fetch(self, key: Any, window_start: datetime) -> Any:
        """The value of the window of ``key`` that starts then; None where there is none."""
        return next((value for windowed, value in self.fetch_all(key) if windowed.window_start == window_start), None)

    def fetch_all(self, key: Any) -> list[tuple[Windowed, Any]]:
        """The open windows of ``key``, by start."""
        return self._entries(of_key(self._read(), self._record, key))


class ReadOnlySessionStore(ReadOnlyKeyValueStore):
    """Key and session to value, by key, then end; a session's state goes when it is closed."""

    def fetch(self, key: Any) -> list[tuple[Windowed, Any]]:
        """The open sessions of ``key``."""
        return self._entries(of_key(self._read(), self._record, key))

    def fetch_session(self, key: Any, start: datetime, end: datetime) -> Any:
        """The value of the session of ``key`` with these bounds; None where there is none."""
        return self.get(Windowed(key, start, end))


class ReadOnlyVersionedStore:
    """Key and time to the value that held then; keys as of a ``ReadOnlyKeyValueStore``."""

    def __init__(self, read: Read, record: RecordType) -> None:
        self._read, self._record = read, record

    def get(self, key: Any, as_of: datetime | None = None) -> Any:
        """The newest value of ``key``, or the one that held at ``as_of``; None where there was none or it was
        deleted."""
        held = [(value, is_gone) for value, since, is_gone in self._versions(key) if as_of is None or since <= as_of]
        return None if not held or held[-1][1] else held[-1][0]

    def versions(self, key: Any) -> list[tuple[datetime, Any]]:
        """From when each value of ``key`` holds, oldest first; None where it was deleted."""
        return [(since, None if is_gone else value) for value, since, is_gone in self._versions(key)]

    def _versions(self, key: Any) -> list[tuple[Any, datetime, bool]]:
        rows = of_key(self._read(), self._record, key)
        return list(
            zip(
                values_of(self._record, rows),
                rows.get_column("valid_from").to_list(),
                rows.get_column(GONE).to_list(),
                strict=True,
            )
        )


def of_key(rows: pl.DataFrame, record: RecordType, key: Any) -> pl.DataFrame:
    """The rows of a key, in their order; raises ``TypeError`` when it does not fit the key's columns."""
    wanted = key_frame(record.key.columns, key)
    return rows.join(wanted, on=wanted.columns, how="semi", nulls_equal=True, maintain_order="left")


def values_of(record: RecordType, rows: pl.DataFrame) -> list[Any]:
    """One value a row: a scalar itself, others as a dictionary of the value columns."""
    if record.value.is_scalar:
        return record.value.to_objects(rows)
    return dictionaries(rows.select(record.value.columns.names()))


def dictionaries(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """One a row; times behind the year 9999, as ends of windows may be, are ``datetime.max`` in UTC."""
    return rows.with_columns(map(as_datetimes, rows.get_columns())).to_dicts()
