"""Calling the program's plain functions on typed objects, a record at a time, and typing what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from pipelines.errors import UserFunctionError
from pipelines.serdes.row_type import RowType, as_datetimes


@dataclass(frozen=True, order=True)
class Windowed:
    """The key of a windowed table: the key and its window ``[window_start, window_end)``, UTC.

    The end of a window that reaches behind the year 9999 is ``datetime.max`` here; columns have the true one.
    """

    key: Any
    window_start: datetime
    window_end: datetime


@dataclass(frozen=True)
class KeyType:
    """How a key's columns become the object that functions get."""

    row_type: RowType
    is_windowed: bool

    def to_objects(self, rows: pl.DataFrame) -> list[Any]:
        """One key a row; None where all key columns are null."""
        names = list(self.row_type.columns)
        absent = rows.select(pl.all_horizontal(pl.col(names).is_null())).to_series()
        keys = self.row_type.to_objects(rows, absent if absent.any() else None)
        if not self.is_windowed:
            return keys
        starts, ends = (as_datetimes(rows.get_column(name)).to_list() for name in ("window_start", "window_end"))
        return [None if parts[1] is None else Windowed(*parts) for parts in zip(keys, starts, ends, strict=True)]


@dataclass(frozen=True)
class UserFunction:
    """A plain function and the name of the node it serves, for errors."""

    call: Callable[..., Any]
    node: str

    @property
    def name(self) -> str:
        return getattr(self.call, "__qualname__", repr(self.call))

    def over(self, arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        """The result of each call, in order; raises ``UserFunctionError`` when one raises."""
        call = self.call
        try:
            return [call(*each) for each in arguments]
        except Exception as error:
            raise UserFunctionError(self.name, self.node, f"{type(error).__name__}: {error}") from error

    def over_each(self, arguments: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
        """All that each call gives, of a function that gives any number of results; errors as ``over``."""
        call = self.call
        try:
            return [list(call(*each)) for each in arguments]
        except Exception as error:
            raise UserFunctionError(self.name, self.node, f"{type(error).__name__}: {error}") from error

    def columns(self, result: RowType, objects: list[Any]) -> list[pl.Series]:
        """The results as columns; raises ``UserFunctionError`` when one does not fit the annotation."""
        try:
            return result.to_columns(objects)
        except (AttributeError, TypeError, OverflowError) as error:
            raise UserFunctionError(self.name, self.node, f"its result does not fit the annotation: {error}"
                                    ) from error
