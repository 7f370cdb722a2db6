"""Keys with their window, as Kafka Streams' windowed serdes write them after a windowed aggregation.

A time-windowed key is the key's bytes and the window's start, a session-windowed one the key's bytes, the session's end
and its start: milliseconds since 1970 in eight big-endian bytes each.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import DecodedColumns, Serde, fields_of
from weir.pipelines.serdes.shapes import FIRST_TIME_MS, LAST_TIME_MS, TIME

TIME_BYTES = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class WindowedSerde:
    """Base of the two. Columns are those of the key, ``window_start`` and ``window_end``; objects are ``Windowed``."""

    times = 1
    """How many times follow the key."""

    def __init__(self, key: Serde) -> None:
        self.key = key

    def row_type(self, default_name: str) -> RowType:
        """The key's own columns; the window's bounds follow them."""
        return self.key.row_type(default_name)

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        width = self.times * TIME_BYTES
        short = (items.bin.size() < width).fill_null(False)
        bad = {
            index: f"expected a key and {width} bytes of its window, found {len(items[index])} bytes"
            for index in short.arg_true().to_list()
        }
        whole = items.set(short, None) if bad else items
        times = [
            whole.bin.tail((self.times - index) * TIME_BYTES)
            .bin.head(TIME_BYTES)
            .bin.reinterpret(dtype=pl.Int64(), endianness="big")
            for index in range(self.times)
        ]
        start, end = self._bounds(times)
        for time in times:
            for row in (~time.is_between(FIRST_TIME_MS, LAST_TIME_MS)).arg_true().to_list():
                bad[row] = f"the window has the time {time[row]}, which is not in the years 1 to 9999"
        for row in (end < start).arg_true().to_list():
            bad.setdefault(row, f"the window ends at {end[row]}, before it starts at {start[row]}")
        if bad:
            whole, start, end = (each.scatter(list(bad), None) for each in (whole, start, end))
        frame = pl.DataFrame([whole.alias("key")])
        inner = self.key.decode(
            frame.select_seq(pl.col("key").bin.head(pl.col("key").bin.size() - width)).to_series(), row_type
        )
        bounds = [start.cast(TIME).alias("window_start"), end.cast(TIME).alias("window_end")]
        return DecodedColumns(
            [*inner.columns, *bounds], [index for index in inner.absent if index not in bad], {**inner.bad, **bad}
        )

    def encode(self, item: Any) -> bytes | None:
        """The bytes of a ``Windowed``; raises ``ValueError`` for a window that they cannot express."""
        if item is None:
            return None
        parts = fields_of(self, item, {"key": None, "window_start": datetime, "window_end": datetime})
        key = self.key.encode(parts["key"])
        if key is None:
            raise ValueError("a windowed key needs a key beside its window")
        return key + b"".join(
            time.to_bytes(TIME_BYTES, "big", signed=True)
            for time in self._times(_ms(parts["window_start"]), _ms(parts["window_end"]))
        )

    def _bounds(self, times: list[pl.Series]) -> tuple[pl.Series, pl.Series]:
        raise NotImplementedError

    def _times(self, start_ms: int, end_ms: int) -> tuple[int, ...]:
        raise NotImplementedError


class TimeWindowed(WindowedSerde):
    """``TimeWindowed(String("user"), size=timedelta(hours=1))``: the bytes hold only the start, ``size`` gives the end.

    Examples:
        >>> nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
        >>> serde = TimeWindowed(String("user"), size=timedelta(hours=1))
        >>> serde.encode(Windowed("ann", nine, nine + timedelta(hours=1))).hex()
        '616e6e0000019b78c90a80'
    """

    def __init__(self, key: Serde, *, size: timedelta) -> None:
        super().__init__(key)
        self.size_ms = positive_ms(size, "the size of TimeWindowed")

    def __repr__(self) -> str:
        return f"TimeWindowed({self.key!r}, size_ms={self.size_ms})"

    def _bounds(self, times: list[pl.Series]) -> tuple[pl.Series, pl.Series]:
        return times[0], times[0] + self.size_ms

    def _times(self, start_ms: int, end_ms: int) -> tuple[int, ...]:
        if end_ms - start_ms != self.size_ms:
            raise ValueError(f"the window is {end_ms - start_ms} ms long, but those of {self!r} are {self.size_ms} ms")
        return (start_ms,)


class SessionWindowed(WindowedSerde):
    """``SessionWindowed(String("user"))``: the bytes hold the session's end, then its start."""

    times = 2

    def __repr__(self) -> str:
        return f"SessionWindowed({self.key!r})"

    def _bounds(self, times: list[pl.Series]) -> tuple[pl.Series, pl.Series]:
        return times[1], times[0]

    def _times(self, start_ms: int, end_ms: int) -> tuple[int, ...]:
        return end_ms, start_ms


def _ms(time: datetime) -> int:
    return (time - _EPOCH) // _MILLISECOND
