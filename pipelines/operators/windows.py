"""Time windows: their definition, which windows a record falls into, and which of those are closed to it.

Keeping a window's state belongs to ``aggregation`` and ``final_results`` beside this.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from pipelines.errors import TopologyError
from pipelines.operators.epoch import Epoch
from pipelines.serdes.row_type import TIME

WINDOW_COLUMNS = {"window_start": TIME, "window_end": TIME}


def to_ms(duration: timedelta, name: str) -> int:
    """Whole milliseconds of ``duration``; raises ``TopologyError`` when there are none or some are lost."""
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if rest:
        raise TopologyError(f"{name} is {duration}, which is not a whole number of milliseconds; round it")
    return whole


@dataclass(frozen=True, kw_only=True)
class TimeWindows:
    """Windows ``[start, start + size)`` at multiples of ``advance`` since 1970 (UTC); none starts before that.

    A window admits records until stream time reaches its end plus ``grace`` (KIP-328). Advance equal to the
    size makes them tumbling, a smaller one hopping. There is no default grace.
    """

    size_ms: int
    grace_ms: int
    advance_ms: int

    @classmethod
    def of_size_with_no_grace(cls, size: timedelta) -> TimeWindows:
        """Tumbling windows that close at their end: out-of-order records may be late at once."""
        return cls.of_size_and_grace(size, timedelta(0))

    @classmethod
    def of_size_and_grace(cls, size: timedelta, grace: timedelta) -> TimeWindows:
        """Tumbling windows that admit out-of-order records until ``grace`` after their end."""
        size_ms, grace_ms = to_ms(size, "window size"), to_ms(grace, "grace")
        if size_ms < 1:
            raise TopologyError(f"window size is {size}; it must be at least one millisecond")
        if grace_ms < 0:
            raise TopologyError(f"grace is {grace}; it must not be negative")
        return cls(size_ms=size_ms, grace_ms=grace_ms, advance_ms=size_ms)

    def advance_by(self, advance: timedelta) -> TimeWindows:
        """Hopping windows: a new window begins every ``advance``, at most one size apart."""
        advance_ms = to_ms(advance, "advance")
        if not 0 < advance_ms <= self.size_ms:
            raise TopologyError(f"windows advance by {advance}; it must be above zero and at most the window size, "
                                f"{timedelta(milliseconds=self.size_ms)}")
        return TimeWindows(size_ms=self.size_ms, grace_ms=self.grace_ms, advance_ms=advance_ms)

    def closed_before(self, stream_time_ms: int) -> int:
        """Windows that start below this are closed: ``start + size + grace <= stream time``."""
        return stream_time_ms - self.size_ms - self.grace_ms + 1

    def assign(self, rows: pl.DataFrame, stream_time: pl.Series, epoch: Epoch) -> pl.DataFrame:
        """One row per record and window that is open to it, by record, then window start.

        Adds ``window_start`` and ``window_end``. A window that is closed at the record's own turn is left out
        and counted in ``late_records``, once per window.
        """
        times = rows.get_column("_ts")
        newest = times - times % self.advance_ms
        oldest_open = self.closed_before(0) + stream_time
        if self.advance_ms == self.size_ms:
            starts = newest
        else:
            first = (times - self.size_ms) // self.advance_ms * self.advance_ms + self.advance_ms
            offsets = pl.int_ranges(first.clip(lower_bound=0), newest + 1, self.advance_ms, eager=True)
            repeats = pl.int_range(rows.height, eager=True).repeat_by(offsets.list.len()).explode()
            rows, oldest_open, starts = rows[repeats], oldest_open[repeats], offsets.explode()
        is_open = starts >= oldest_open
        late = rows.height - int(is_open.sum())
        rows = rows.with_columns(starts.cast(TIME).alias("window_start"),
                                 (starts + self.size_ms).cast(TIME).alias("window_end"))
        if late:
            epoch.counts["late_records"] += late
            rows = rows.filter(is_open)
        return rows
