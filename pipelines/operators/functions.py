"""Calls the program's plain functions on typed objects, one per record, and types what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl

from weir.pipelines.errors import RecordPlace, UserFunctionError
from weir.pipelines.operators import calls, time_limit
from weir.pipelines.operators.time_limit import OutOfTimeError
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.values import as_datetimes
from weir.state.own_code import failures

Places = Sequence[int] | np.ndarray
"""The numbers of rows."""


@dataclass(frozen=True, order=True)
class Windowed:
    """The key of a windowed table: the key and its window ``[window_start, window_end)``, UTC.

    The end of a window that reaches beyond the year 9999 is ``datetime.max`` here; columns have the true end.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> hours = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
    >>> hourly = clicks.group_by_key().windowed_by(hours).count("hourly")
    >>> hourly.filter(lambda key, count: key.window_start.hour >= 9).to_delta("by_day")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     clicks = driver.create_input_topic("clicks")
    ...     clicks.pipe_input("ann", "home", timestamp=datetime(2024, 5, 1, 9, 30, tzinfo=UTC))
    ...     driver.create_output_table("by_day").read_row()["count"]
    1
    """

    key: Any
    window_start: datetime
    window_end: datetime


@dataclass(frozen=True)
class KeyType:
    """How a key's columns become the object that is passed to functions."""

    row_type: RowType
    is_windowed: bool

    @property
    def names(self) -> list[str]:
        """The key columns, including the bounds of a window."""
        return [*self.row_type.columns, *(("window_start", "window_end") if self.is_windowed else ())]

    def to_objects(self, rows: pl.DataFrame) -> list[Any]:
        """One key per row; None where all key columns are null."""
        names = list(self.row_type.columns)
        absent = None
        if all(rows.get_column(name).null_count() for name in names):
            absent = rows.select_seq(pl.all_horizontal(pl.col(names).is_null())).to_series()
        keys = self.row_type.to_objects(rows, absent)
        if not self.is_windowed:
            return keys
        starts, ends = (as_datetimes(rows.get_column(name)).to_list() for name in ("window_start", "window_end"))
        return [None if parts[1] is None else Windowed(*parts) for parts in zip(keys, starts, ends, strict=True)]


@dataclass(frozen=True)
class Records:
    """The rows that a function is called for, so that an error can name the one on which it failed."""

    rows: pl.DataFrame
    key: Iterable[str]
    """The key columns."""
    order: Places | None = None
    """The row of each call, if calls are not in the order of the rows."""

    def at(self, index: int) -> RecordPlace:
        rows = self.rows.slice(index if self.order is None else int(self.order[index]), 1)
        return RecordPlace(
            partition=rows["_partition"].item(),
            offset=rows["_offset"].item(),
            time_ms=rows["_ts"].item(),
            key={name: as_datetimes(rows[name]).item() for name in self.key if name in rows.columns},
        )


@dataclass(frozen=True)
class UserFunction:
    """A plain function and the name of the node it serves, for errors."""

    call: Callable[..., Any]
    node: str
    known_as: str | None = None
    """Replaces the function's own name in errors."""

    @property
    def name(self) -> str:
        return self.known_as or str(getattr(self.call, "__qualname__", type(self.call).__qualname__))

    def over(self, arguments: Iterable[tuple[Any, ...]], records: Records) -> list[Any]:
        """The result of each call, one per record, in order; raises ``UserFunctionError`` if one raises."""
        call, results, (now_s, until_s) = self.call, list[Any](), time_limit.clock()
        calls.running = self._called, records, results
        try:
            with calls.timed():
                for each in arguments:
                    results.append(call(*each))
                    if now_s() > until_s:
                        raise OutOfTimeError
        except failures() as error:
            raise self.failed(f"{type(error).__name__}: {error}", records, len(results)) from error
        return results

    def _called(self, records: Records, results: Sequence[Any]) -> calls.Call | None:
        return calls.of_record(self.failed("", records, len(results)))

    def over_each(self, arguments: Iterable[tuple[Any, ...]], records: Records) -> list[list[Any]]:
        """All results of each call, for a function that gives any number of them, or None for none; errors as for
        ``over``."""

        def results(*each: Any) -> list[Any]:
            found = self.call(*each)
            return [] if found is None else list(found)

        return replace(self, call=results, known_as=self.name).over(arguments, records)

    def failed(self, reason: str, records: Records, index: int | None) -> UserFunctionError:
        """The error of the call for the record at ``index``, or for an unknown record."""
        return UserFunctionError(self.name, self.node, reason, None if index is None else records.at(index))

    def columns(self, result: RowType, objects: Sequence[Any], records: Records) -> list[pl.Series]:
        """The results as columns; raises ``UserFunctionError`` if one does not fit the annotation."""
        try:
            return result.to_columns(objects)
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            index, reason = result.misfit(objects) or (None, str(error).partition("\n")[0])
            raise self.failed(f"its result does not fit the annotation: {reason}", records, index) from error
