"""Windows on the clock's grid: their definition, which a record falls into, and which of those are closed to it.

Windows that the records make, sessions and sliding ones, are in ``data_windows`` beside this; keeping a window's state
belongs to ``aggregation`` and ``final_results``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl

from weir.pipelines.arguments import duration_text, not_negative_ms, positive_ms, to_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.row_type import LAST_TIME_MS, TIME

WINDOW_COLUMNS = {"window_start": TIME, "window_end": TIME}
NO_END_MS = LAST_TIME_MS
"""The end of a window that never ends."""


def window_ms(duration: timedelta, name: str) -> int:
    """As ``positive_ms``; raises ``TopologyError`` when no window of that length ends within the year 9999."""
    if (found := positive_ms(duration, name)) > LAST_TIME_MS:
        raise TopologyError(
            f"{name} is {duration_text(duration)}; each such window would end behind the year 9999; "
            "make it shorter, or take UnlimitedWindows"
        )
    return found


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
        size_ms = window_ms(size, "window size")
        return cls(size_ms=size_ms, grace_ms=not_negative_ms(grace, "grace"), advance_ms=size_ms)

    def advance_by(self, advance: timedelta) -> TimeWindows:
        """Hopping windows: a new window begins every ``advance``, at most one size apart."""
        advance_ms = to_ms(advance, "advance")
        if not 0 < advance_ms <= self.size_ms:
            raise TopologyError(
                f"windows advance by {duration_text(advance)}; it must be above zero and at most the "
                f"window size, {timedelta(milliseconds=self.size_ms)}"
            )
        return TimeWindows(size_ms=self.size_ms, grace_ms=self.grace_ms, advance_ms=advance_ms)

    @property
    def closes_after_ms(self) -> int:
        """A window is closed once stream time reaches its end plus this."""
        return self.grace_ms

    @property
    def kept_ms(self) -> int:
        """How long a window's state is needed, from its start."""
        return self.size_ms + self.grace_ms

    @property
    def least_retention_ms(self) -> int:
        """The shortest retention that a program may ask for, as in Kafka Streams."""
        return self.kept_ms

    def closed_before(self, stream_time_ms: int) -> int:
        """Windows that start below this are closed: ``start + size + grace <= stream time``."""
        return stream_time_ms - self.size_ms - self.grace_ms + 1

    def assign(self, rows: pl.DataFrame, stream_time: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        """One row per record and window that is open to it, by record, then window start; then those that are late.

        Both with ``window_start`` and ``window_end``. Late is a row whose window is closed at the record's own turn.
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
        rows = rows.with_columns(
            starts.cast(TIME).alias("window_start"), (starts + self.size_ms).cast(TIME).alias("window_end")
        )
        return (rows, rows.clear()) if is_open.all() else (rows.filter(is_open), rows.filter(~is_open))


@dataclass(frozen=True, kw_only=True)
class UnlimitedWindows:
    """One window that begins at ``start_on`` and never ends or closes; records from before it are in no window."""

    start_ms: int

    @classmethod
    def of(cls) -> UnlimitedWindows:
        """The window since 1970 (UTC)."""
        return cls(start_ms=0)

    @classmethod
    def start_on(cls, start: datetime) -> UnlimitedWindows:
        """The window from ``start`` on, which has a time zone and is not before 1970."""
        if not isinstance(start, datetime):
            raise TopologyError(f"the window starts at {start!r}; pass a datetime with tzinfo=UTC")
        if start.tzinfo is None:
            raise TopologyError(
                f"the window starts at {start!r}, which has no time zone; pass a datetime with tzinfo=UTC"
            )
        start_ms = to_ms(start - datetime(1970, 1, 1, tzinfo=UTC), "window start")
        if start_ms < 0:
            raise TopologyError(f"the window starts at {start}; it must not start before 1970")
        return cls(start_ms=start_ms)

    @property
    def closes_after_ms(self) -> None:
        """It does not close."""

    @property
    def kept_ms(self) -> None:
        """Its state is needed for ever."""

    @property
    def least_retention_ms(self) -> None:
        """No retention is long enough."""

    def closed_before(self, stream_time_ms: int) -> int:
        """No window is closed."""
        return 0

    def assign(self, rows: pl.DataFrame, stream_time: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        """As for ``TimeWindows``; nothing is late."""
        inside = rows.filter(pl.col("_ts") >= self.start_ms)
        inside = inside.with_columns(
            pl.lit(self.start_ms).cast(TIME).alias("window_start"), pl.lit(NO_END_MS).cast(TIME).alias("window_end")
        )
        return inside, inside.clear()
