"""Windows aligned to the clock: their definition, which ones a record falls into, and which are closed to it.

Windows that the records define (sessions and sliding windows) are in ``data_windows``; keeping a window's
state belongs to ``aggregation`` and ``final_results``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from weir.pipelines.arguments import duration_text, not_negative_ms, positive_ms, to_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.shapes import LAST_TIME_MS, TIME
from weir.state.frames import copies, parted, with_series

WINDOW_COLUMNS = {"window_start": TIME, "window_end": TIME}
NO_END_MS = LAST_TIME_MS
"""The end of a window that never ends."""


def window_ms(duration: timedelta, name: str) -> int:
    """As ``positive_ms``; raises ``TopologyError`` if every window of that length would end after the year 9999."""
    if (found := positive_ms(duration, name)) > LAST_TIME_MS:
        raise TopologyError(
            f"{name} is {duration_text(duration)}, so every window would end after the year 9999; "
            "make it shorter, or use UnlimitedWindows"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class TimeWindows:
    """Windows ``[start, start + size)`` at multiples of ``advance`` since 1970 (UTC); none starts before that.

    A window admits records until stream time reaches its end plus ``grace`` (KIP-328). If advance equals size, windows
    are tumbling; if it is smaller, they are hopping. There is no default grace.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> hours = TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=10))
    >>> clicks.group_by_key().windowed_by(hours).count("hourly").to_delta("hourly_clicks")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     clicks = driver.create_input_topic("clicks")
    ...     clicks.pipe_input("ann", "home", timestamp=datetime(2024, 5, 1, 9, 30, tzinfo=UTC))
    ...     row = driver.create_output_table("hourly_clicks").read_row()
    >>> f"{row['window_start']:%H:%M} to {row['window_end']:%H:%M}: {row['count']}"
    '09:00 to 10:00: 1'
    """

    size_ms: int
    grace_ms: int
    advance_ms: int

    @classmethod
    def of_size_with_no_grace(cls, size: timedelta) -> TimeWindows:
        """Tumbling windows that close at their end: out-of-order records may be late immediately.

        >>> TimeWindows.of_size_with_no_grace(timedelta(hours=1))
        TimeWindows(size_ms=3600000, grace_ms=0, advance_ms=3600000)
        """
        return cls.of_size_and_grace(size, timedelta(0))

    @classmethod
    def of_size_and_grace(cls, size: timedelta, grace: timedelta) -> TimeWindows:
        """Tumbling windows that admit out-of-order records until ``grace`` after their end.

        >>> TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=10))
        TimeWindows(size_ms=3600000, grace_ms=600000, advance_ms=3600000)
        """
        size_ms = window_ms(size, "window size")
        return cls(size_ms=size_ms, grace_ms=not_negative_ms(grace, "grace"), advance_ms=size_ms)

    def advance_by(self, advance: timedelta) -> TimeWindows:
        """Hopping windows: a new window begins every ``advance``, which is at most the size.

        >>> TimeWindows.of_size_with_no_grace(timedelta(hours=1)).advance_by(timedelta(minutes=15))
        TimeWindows(size_ms=3600000, grace_ms=0, advance_ms=900000)
        """
        advance_ms = to_ms(advance, "advance")
        if not 0 < advance_ms <= self.size_ms:
            raise TopologyError(
                f"windows advance by {duration_text(advance)}; the advance must be above zero and at most the "
                f"window size, {timedelta(milliseconds=self.size_ms)}"
            )
        return TimeWindows(size_ms=self.size_ms, grace_ms=self.grace_ms, advance_ms=advance_ms)

    @property
    def closes_after_ms(self) -> int:
        """A window is closed once stream time reaches its end plus this."""
        return self.grace_ms

    @property
    def kept_ms(self) -> int:
        """How long a window's state is needed after its start."""
        return self.size_ms + self.grace_ms

    @property
    def least_retention_ms(self) -> int:
        """The shortest retention that a program may set, as in Kafka Streams."""
        return self.kept_ms

    def closed_before(self, stream_time_ms: int) -> int:
        """Windows that start below this are closed: ``start + size + grace <= stream time``."""
        return stream_time_ms - self.size_ms - self.grace_ms + 1

    def assign(self, rows: pl.DataFrame, stream_time: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        """One row per record and window that is open to it, by record, then window start; and likewise the late rows.

        Both have ``window_start`` and ``window_end``. A row is late if its window is closed at the record's own turn.
        """
        times = rows.get_column("_ts").to_numpy()
        starts = times - times % self.advance_ms
        oldest_open = stream_time.to_numpy() + self.closed_before(0)
        if self.advance_ms != self.size_ms:
            first = np.maximum((times - self.size_ms) // self.advance_ms * self.advance_ms + self.advance_ms, 0)
            counts = (starts - first) // self.advance_ms + 1
            repeats, places = copies(counts)
            rows, oldest_open, starts = rows[repeats], oldest_open[repeats], first[repeats] + places * self.advance_ms
        bounds = {"window_start": starts, "window_end": starts + self.size_ms}
        rows = with_series(rows, *(pl.Series(name, times).cast(TIME) for name, times in bounds.items()))
        return parted(rows, pl.Series(starts >= oldest_open))


@dataclass(frozen=True, kw_only=True)
class UnlimitedWindows:
    """One window that begins at ``start_on`` and never ends or closes; records before its start are in no window.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> since_2024 = UnlimitedWindows.start_on(datetime(2024, 1, 1, tzinfo=UTC))
    >>> clicks.group_by_key().windowed_by(since_2024).count("clicks").to_delta("clicks_since_2024")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     clicks = driver.create_input_topic("clicks")
    ...     clicks.pipe_input("ann", "home", timestamp=datetime(2023, 12, 31, tzinfo=UTC))
    ...     clicks.pipe_input("ann", "home", timestamp=datetime(2024, 5, 1, tzinfo=UTC))
    ...     driver.create_output_table("clicks_since_2024").read_row()["count"]
    1
    """

    start_ms: int

    @classmethod
    def of(cls) -> UnlimitedWindows:
        """The window that begins in 1970 (UTC).

        >>> UnlimitedWindows.of()
        UnlimitedWindows(start_ms=0)
        """
        return cls(start_ms=0)

    @classmethod
    def start_on(cls, start: datetime) -> UnlimitedWindows:
        """The window that begins at ``start``, which needs a time zone and must not be before 1970.

        >>> UnlimitedWindows.start_on(datetime(1970, 1, 2, tzinfo=UTC))
        UnlimitedWindows(start_ms=86400000)
        """
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
        """None: it does not close."""

    @property
    def kept_ms(self) -> None:
        """None: its state is needed forever."""

    @property
    def least_retention_ms(self) -> None:
        """None: no retention is long enough."""

    def closed_before(self, stream_time_ms: int) -> int:
        """No window is closed."""
        return 0

    def assign(self, rows: pl.DataFrame, stream_time: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        """As for ``TimeWindows``; nothing is late."""
        inside = rows.filter(pl.col("_ts") >= self.start_ms)
        inside = inside.with_columns_seq(
            pl.lit(self.start_ms).cast(TIME).alias("window_start"), pl.lit(NO_END_MS).cast(TIME).alias("window_end")
        )
        return inside, inside.clear()
