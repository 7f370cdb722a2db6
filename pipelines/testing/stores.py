"""Read-only views of the stores under the topology test driver, with finished values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl

from pipelines.operators.functions import Windowed
from pipelines.topology.nodes import RecordType

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
        return list(zip(self._record.key_type.to_objects(rows), _values(self._record, rows), strict=True))

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


def _values(record: RecordType, rows: pl.DataFrame) -> list[Any]:
    if record.value.is_scalar:
        return record.value.to_objects(rows)
    return rows.select(record.value.columns.names()).to_dicts()
