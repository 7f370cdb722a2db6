"""Which windows of a store are closed, whatever the grace was when they closed.

A program with another grace may go on with a store. What was closed stays closed, and what was open has still to be
closed. So beside its stream time a store has a clock of what is closed, which never moves back; operators see a stream
time that is raised to it.
"""

from __future__ import annotations

import polars as pl

from weir.pipelines.operators.epoch import Epoch

CLOSED = "_closed:"
"""Prefix of a clock, before the name of a windowed store: windows that end by this are closed."""
BEFORE_ALL = -(1 << 62)


def advance(store: str, delay_ms: int, times_ms: pl.Series, epoch: Epoch) -> tuple[int | None, pl.Series]:
    """Stream time before the batch, None before the first, and at each record's own turn; both as far as windows close.

    A window is closed once that reaches its end plus ``delay_ms``. ``times_ms`` are those of ``Epoch.advance``, and the
    clock of that name keeps the real stream time.
    """
    before_ms = _reached(store, delay_ms, epoch.clocks.get(store), epoch)
    stream_time = epoch.advance(store, times_ms)
    if before_ms is not None and stream_time[0] < before_ms:
        stream_time = stream_time.clip(lower_bound=before_ms)
    epoch.clocks[f"{CLOSED}{store}"] = int(stream_time[-1]) - delay_ms
    return before_ms, stream_time


def note(store: str, rows: pl.DataFrame, stream_time: pl.Series, epoch: Epoch) -> None:
    """Keep the stream time at the turn of each of ``rows``, which ``advance`` gave, for those who look windows up."""
    epoch.moments[store] = pl.DataFrame([rows.get_column("_offset"), stream_time.alias("_reached")])


def at_turns(store: str, delay_ms: int, offsets: pl.Series, epoch: Epoch, *, includes_own: bool) -> pl.Series:
    """Stream time as far as windows close, at each of the turns ``offsets`` of this batch, in ms.

    With ``includes_own`` the record of the turn itself has moved it already. The least number if there was none yet.
    """
    before_ms = epoch.clocks_before.get(store)
    if (closed_ms := epoch.clocks_before.get(f"{CLOSED}{store}")) is not None:
        before_ms = closed_ms + delay_ms
    times = pl.Series([BEFORE_ALL if before_ms is None else before_ms], dtype=pl.Int64())
    if (noted := epoch.moments.get(store)) is None:
        return times.new_from_index(0, len(offsets))
    passed = noted.get_column("_offset").search_sorted(offsets, side="right" if includes_own else "left")
    return pl.concat([times, noted.get_column("_reached").cast(pl.Int64)])[passed]


def follow(store: str, delay_ms: int, before_ms: int | None, epoch: Epoch) -> tuple[int | None, int]:
    """As ``advance``, when stream time has moved on from ``before_ms`` without a record: stream time before and now."""
    before_ms = _reached(store, delay_ms, before_ms, epoch)
    now_ms = epoch.clocks[store] if before_ms is None else max(before_ms, epoch.clocks[store])
    epoch.clocks[f"{CLOSED}{store}"] = now_ms - delay_ms
    return before_ms, now_ms


def now(store: str, delay_ms: int, epoch: Epoch) -> int:
    """Stream time after the first record, as far as windows are closed."""
    closed_ms = epoch.clocks.get(f"{CLOSED}{store}")
    return epoch.clocks[store] if closed_ms is None else closed_ms + delay_ms


def _reached(store: str, delay_ms: int, before_ms: int | None, epoch: Epoch) -> int | None:
    closed_ms = epoch.clocks.get(f"{CLOSED}{store}")
    return before_ms if closed_ms is None else closed_ms + delay_ms
