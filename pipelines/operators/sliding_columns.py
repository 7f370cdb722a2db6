"""All sliding windows of a batch at once, for keys whose records come in the order of their times, none of them late.

A window then holds exactly the records with times in it: those that the store has already, and consecutive ones of the
batch. Where records come out of order, ``sliding_windows`` takes them one by one.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from weir.pipelines.operators.fold import PLACE, ColumnFold
from weir.pipelines.serdes.shapes import TIME
from weir.state.frames import copies, picked, with_series, without

_START, _END = (pl.col(name).dt.timestamp("ms") for name in ("window_start", "window_end"))
_MOST_PAIRS = 1 << 22
"""How many records, counted once for each window that they are in, are folded at a time."""
_GREATEST = 1 << 62


def keys_to_walk(rows: pl.DataFrame, in_time: pl.Series, found: pl.DataFrame, difference_ms: int) -> pl.Series:
    """Each ``_key`` that has to be taken record by record: it has records that are late, out of order or in windows
    that would start before 1970, or stored windows that do not tell what a new window holds.

    ``rows`` and ``found`` are those of a ``data_windows.Batch``, and ``in_time`` says which rows are not late.
    """
    keys, times = rows.get_column("_key"), rows.get_column("_ts")
    spread_ms = int(times.max()) - int(times.min())  # type: ignore[arg-type]
    if (int(keys.max()) + 2) * (spread_ms + 6 * difference_ms + 8) > _GREATEST:  # type: ignore[arg-type]
        return keys.unique()  # more than can be numbered
    key, time = keys.cast(pl.Int64).to_numpy(), times.to_numpy()
    is_walked = np.zeros(int(key.max()) + 1, np.bool_)
    is_walked[key[~in_time.to_numpy() | (time < difference_ms)]] = True
    order = np.argsort(key, kind="stable")
    key, time = key[order], time[order]
    is_next = key[1:] == key[:-1]
    is_walked[key[1:][is_next & (time[1:] < time[:-1])]] = True
    first = np.full(len(is_walked), _GREATEST)  # the least time of each key that is not walked already
    first[key[::-1]] = time[::-1]
    held, newest = (found.get_column(name).cast(pl.Int64).to_numpy() for name in ("_key", "_ts"))
    starts, ends = (found.select_seq(each).to_series().to_numpy() for each in (_START, _END))
    is_walked[held[~found.get_column("_seen").to_numpy() | (ends - starts != difference_ms)]] = True
    latest = np.full(len(is_walked), -_GREATEST)
    np.maximum.at(latest, held, newest)
    has_own = np.zeros(len(is_walked), np.bool_)
    has_own[held[starts + difference_ms == latest[held]]] = True
    is_walked |= (latest > first) | ((latest >= first - difference_ms) & ~has_own)
    return pl.Series("_key", np.flatnonzero(is_walked)).cast(keys.dtype)


def windows_of_rows(rows: pl.DataFrame, found: pl.DataFrame, fold: ColumnFold, difference_ms: int) -> pl.DataFrame:
    """The windows that ``rows`` open or change, none of them of ``keys_to_walk``, by key and start.

    Columns: the store's key columns, state columns, ``_ts`` (the greatest timestamp folded in), the place of the
    window's last record, ``_deleted``.
    """
    key_columns = [name for name in found.columns if name not in (*fold.state, "_ts", "_key", "_seen")]
    rows, found = rows.sort("_key", maintain_order=True), found.sort("_key", "window_start")
    keys, times = (rows.get_column(name).cast(pl.Int64).to_numpy() for name in ("_key", "_ts"))
    held_keys = found.get_column("_key").cast(pl.Int64).to_numpy()
    held_starts, held_newest = (found.select_seq(each).to_series().to_numpy() for each in (_START, pl.col("_ts")))
    base_ms = int(min(times.min(), held_starts.min(initial=_GREATEST))) - difference_ms
    length = int(max(times.max(), held_starts.max(initial=0))) + 2 * difference_ms + 4 - base_ms
    codes, held = keys * length + times - base_ms, held_keys * length + held_starts - base_ms
    after_held = held_keys * length + held_newest + 1 - base_ms
    windows = np.unique(np.concatenate([codes - difference_ms, codes + 1, held, after_held]))
    firsts, ends = np.searchsorted(codes, windows), np.searchsorted(codes, windows + difference_ms, side="right")
    is_met = ends > firsts
    windows, firsts, counts = windows[is_met], firsts[is_met], (ends - firsts)[is_met]
    states = _folded(rows, firsts, counts, fold)
    merged = fold.merge(states, _stored(found, held, after_held, windows, length, fold), rows)
    starts = windows % length + base_ms
    bounds = [
        pl.Series(name, each).cast(TIME)
        for name, each in (("window_start", starts), ("window_end", starts + difference_ms))
    ]
    named = with_series(without(merged, "_window"), *picked(rows, key_columns[:-2])[firsts].get_columns(), *bounds)
    return picked(named, [*key_columns, *fold.state, "_ts", *PLACE, "_deleted"])


def _folded(rows: pl.DataFrame, firsts: np.ndarray, counts: np.ndarray, fold: ColumnFold) -> pl.DataFrame:
    """What each window folds: ``counts`` of the rows from ``firsts`` on."""
    rows = without(rows, "_key", "_deleted")
    turns = np.flatnonzero(np.diff((np.cumsum(counts) - 1) // _MOST_PAIRS)) + 1
    parts = []
    for low, high in zip([0, *turns], [*turns, len(counts)], strict=True):
        windows, places = copies(counts[low:high])
        members = with_series(rows[firsts[low:high][windows] + places], pl.Series("_window", windows + low))
        parts.append(fold.group(members, ["_window"]))
    return pl.concat(parts).sort("_window")


def _stored(
    found: pl.DataFrame, held: np.ndarray, after_held: np.ndarray, windows: np.ndarray, length: int, fold: ColumnFold
) -> pl.DataFrame:
    """The state that each window has from the store, in the form of a store's ``fetch``: its own, or that of the last
    stored window that starts before it, since each stored record is in both or in neither."""
    newest = np.full(int(max(windows[-1], held.max(initial=0)) // length) + 1, -1)
    np.maximum.at(newest, held // length, after_held - 1)
    places = np.searchsorted(held, windows, side="right") - 1
    has_any = (windows <= newest[windows // length]) & (places >= 0)
    columns = [*fold.state, "_ts"]
    padded = pl.concat([picked(found, columns), picked(found, columns).clear(1)])
    return padded[np.where(has_any, places, found.height)].hstack([pl.Series("_found", has_any)])
