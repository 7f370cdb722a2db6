"""Timestamp extractors: which time a record gets, and what happens to a record without a valid time.

A valid time is not null, not negative and before the year 10000; microseconds taken for milliseconds would be far
beyond that and make every later record late. An extractor takes the record's own timestamp, or with ``of`` a column or
an expression over the record's columns: a datetime, a date, or an integer in milliseconds since 1970.
The names are Kafka Streams'; the default is ``FailOnInvalidTimestamp()``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import polars as pl

from weir.pipelines.serdes.shapes import LAST_TIME_MS, TIME

UNKNOWN_MS = -1
"""The partition time before any record, as in Kafka Streams."""


def is_time(dtype: pl.DataType) -> bool:
    """Whether values of this type say a time: datetimes, dates, and integers in milliseconds since 1970."""
    return dtype.is_integer() or isinstance(dtype, (pl.Datetime, pl.Date))


def as_ms(times: pl.Series) -> pl.Series:
    """``times``, of such a type, in milliseconds since 1970 as Int64, named ``_ts``."""
    if not times.dtype.is_integer():
        times = times.cast(TIME).to_physical()
    return times.cast(pl.Int64).alias("_ts")


def invalid_times(times_ms: pl.Series) -> pl.Series:
    """Which of ``times_ms`` are null, negative or after the year 9999."""
    return ~times_ms.is_between(0, LAST_TIME_MS).fill_null(False)


def are_valid(times_ms: pl.Series) -> bool:
    """Whether none of ``times_ms`` is invalid."""
    if times_ms.null_count():
        return False
    times = times_ms.to_numpy()
    return not len(times) or bool(times.min() >= 0 and times.max() <= LAST_TIME_MS)


def why_invalid(time_ms: int | None, where: str = "") -> str:
    """What is wrong with an invalid time that was found ``where``."""
    if time_ms is None:
        return f"no timestamp{where}"
    if time_ms < 0:
        return f"negative timestamp {time_ms}{where}"
    return f"timestamp {time_ms}{where} is after the year 9999; it must be in milliseconds since 1970"


@dataclass(frozen=True)
class EventTimes:
    """The times of a frame's rows, and the rows that have none."""

    times_ms: pl.Series
    """Int64; valid except in rows that are unreadable, bad or skipped."""
    bad: dict[int, str] = field(default_factory=dict)
    """Row to the reason that it has no time."""
    skipped: list[int] = field(default_factory=list)
    """Rows to drop and count."""


@dataclass(frozen=True, eq=False)
class TimestampExtractor:
    """Base of the extractors; its subclasses decide what happens to invalid times."""

    of: str | pl.Expr | None = None

    @property
    def is_records_own(self) -> bool:
        """Whether records keep the timestamp that they have at the broker."""
        return self.of is None

    def extract(
        self, frame: pl.DataFrame, unreadable: Collection[int], partition_time_ms: int, now_ms: int
    ) -> EventTimes:
        """The times of ``frame``, decoded records of one partition in offset order with ``_ts`` as the broker has it.

        ``partition_time_ms`` is the greatest time of earlier records of the partition, ``UNKNOWN_MS`` before any;
        ``now_ms`` is the epoch's wall clock. Rows that are ``unreadable`` have no time and are not judged.
        """
        times = self._times(frame)
        if are_valid(times):
            return EventTimes(times)
        invalid = invalid_times(times)
        if unreadable:
            invalid = invalid.scatter(sorted(unreadable), False)
            times = times.scatter(sorted(unreadable), None)
        return self._judge(times, invalid, partition_time_ms) if invalid.any() else EventTimes(times)

    def _times(self, frame: pl.DataFrame) -> pl.Series:
        if self.of is None:
            return frame.get_column("_ts")
        expression = pl.col(self.of) if isinstance(self.of, str) else self.of
        return as_ms(frame.select_seq(expression.alias("_time")).to_series())

    def _judge(self, times: pl.Series, invalid: pl.Series, partition_time_ms: int) -> EventTimes:
        raise NotImplementedError

    def _reason(self, time_ms: int | None) -> str:
        return why_invalid(time_ms, "" if self.of is None else f" in {self.of!s}")


class FailOnInvalidTimestamp(TimestampExtractor):
    """A record without a valid time is bad input: it stops the run, or goes to the dead letters.

    Examples:
        >>> builder = StreamsBuilder()
        >>> by_second = FailOnInvalidTimestamp(col("second") * 1000)
        >>> orders = builder.stream("orders", key=String("customer"), value=Int64("second"), timestamp=by_second)
        >>> orders.to_delta("all_orders")
        >>> with TopologyTestDriver(Application("shop", builder)) as driver:
        ...     driver.create_input_topic("orders").pipe_input("ann", 3600)
        ...     driver.create_output_table("all_orders").read_record().timestamp.hour
        1
    """

    def _judge(self, times: pl.Series, invalid: pl.Series, partition_time_ms: int) -> EventTimes:
        return EventTimes(times, bad={row: self._reason(times[row]) for row in invalid.arg_true().to_list()})


class LogAndSkipOnInvalidTimestamp(TimestampExtractor):
    """A record without a valid time is dropped, and counted as ``invalid_timestamps``."""

    def _judge(self, times: pl.Series, invalid: pl.Series, partition_time_ms: int) -> EventTimes:
        return EventTimes(times, skipped=invalid.arg_true().to_list())


class UsePartitionTimeOnInvalidTimestamp(TimestampExtractor):
    """A record without a valid time gets the greatest earlier time of its partition; if there is none, it is bad
    input."""

    def _judge(self, times: pl.Series, invalid: pl.Series, partition_time_ms: int) -> EventTimes:
        newest = times.set(invalid, None).cum_max().forward_fill().fill_null(UNKNOWN_MS)
        filled = times.zip_with(~invalid, newest.clip(lower_bound=partition_time_ms))
        unknown = (invalid & (filled < 0).fill_null(False)).arg_true().to_list()
        return EventTimes(
            filled,
            bad={
                row: f"{self._reason(times[row])}, and no record before it in its partition has one" for row in unknown
            },
        )


class WallclockTimestampExtractor(TimestampExtractor):
    """Every record gets the time at which its epoch ran: processing time instead of event time."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def is_records_own(self) -> bool:
        return False

    def extract(
        self, frame: pl.DataFrame, unreadable: Collection[int], partition_time_ms: int, now_ms: int
    ) -> EventTimes:
        return EventTimes(pl.repeat(now_ms, frame.height, dtype=pl.Int64(), eager=True).alias("_ts"))
