"""Versioned tables as other operators see them: as of a time, and without out-of-order updates.

A table is versioned if a versioned store keeps it, and so are filters and mappings of it (KIP-914). A stream's record
is joined with the row of its own time; table-table joins and groupings see only the updates of a key's newest row.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

import numpy as np
import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.numbering import numbered, numbers_of
from weir.pipelines.operators.table_view import BEFORE_ALL_TURNS, TableView
from weir.state.frames import picked
from weir.state.stores.specs import GONE
from weir.state.stores.versioned import VersionedStore
from weir.state.types import StoreSpec

AS_OF = "_as_of"
BEFORE_ALL_TIMES = -(1 << 62)


@dataclass(frozen=True)
class VersionedTable:
    """A table in a versioned store. Keys with the column ``_as_of`` (ms) ask for the rows valid at that time, however
    long ago; others ask for the newest. A deletion has the time from which it is valid; ``_ts`` is null where there
    was nothing.
    """

    store: StoreSpec

    def before(self, keys: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        rows = VersionedStore(self.store, epoch.before).versions_at(keys)
        return (
            keys.select_seq(pl.exclude(AS_OF))
            .hstack(rows.drop(GONE))
            .with_columns_seq(
                _partition=pl.lit(0, pl.Int32),
                _offset=pl.lit(BEFORE_ALL_TURNS, pl.Int64),
                _deleted=rows.get_column(GONE).fill_null(True),
            )
        )

    def live(self, asked: pl.DataFrame, epoch: Epoch, *, is_written_first: bool) -> pl.Series | None:
        return None


@dataclass(frozen=True, kw_only=True)
class NewestRows:
    """Forwards the updates of a versioned table that are the newest row of their key; older ones do not change the
    current table."""

    table: TableView
    key: tuple[str, ...]

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        if rows.is_empty():
            return rows
        key = list(self.key)
        before = self.table.before(rows.select_seq(key).unique(maintain_order=True), epoch)
        times = pl.concat([each.select_seq(*key, "_ts") for each in (before, rows)])
        newest = times.select_seq(pl.col("_ts").cum_max().over(key)).to_series()[before.height :]
        return rows.filter(rows.get_column("_ts") >= newest)


def look_up_as_of(
    asked: pl.DataFrame,
    table: TableView,
    store: StoreSpec,
    updates: pl.DataFrame,
    epoch: Epoch,
    *,
    is_written_first: bool,
) -> pl.DataFrame:
    """The row of a versioned table for each row of ``asked``, as of its time and at its own turn: value columns,
    ``_ts``, ``_deleted``.

    ``asked`` has the table's key columns, ``_ts`` and ``_offset``, by which it is ordered; ``updates`` are the table's
    rows of this batch, and ``store`` keeps the table. ``is_written_first`` says whether an update by the asking record
    itself is visible. A time before the history finds a row only if that is the newest of its key (KIP-889); a null
    key finds nothing.
    """
    keys = [name for name in asked.columns if not name.startswith("_")]
    distinct, ids = numbered(picked(asked, keys))
    asks = asked.select_seq(pl.col("_ts").alias(AS_OF), "_offset").with_columns_seq(ids)
    newest = table.before(distinct, epoch)
    newest_ts = newest.get_column("_ts").fill_null(BEFORE_ALL_TIMES)
    asks = asks.with_columns_seq(newest_ts.gather(asks.get_column("_id")).fill_null(BEFORE_ALL_TIMES).alias("_newest"))
    older = asks.filter(pl.col(AS_OF) < pl.col("_newest")).select_seq("_id", AS_OF).unique(maintain_order=True)
    then = table.before(distinct[older.get_column("_id")].with_columns_seq(older.get_column(AS_OF)), epoch)
    older = older.with_columns_seq((newest.height + pl.int_range(pl.len())).alias("_place"))
    asks = asks.join(older, on=["_id", AS_OF], how="left", maintain_order="left")
    asks = asks.with_columns_seq(pl.coalesce("_place", "_id").cast(pl.Int64).alias("_place"))
    found = pl.concat([newest, then, updates.select_seq(newest.columns)])
    if updates.height:
        asks = _at_their_turns(
            asks,
            found.get_column("_ts"),
            newest.height + then.height,
            updates.get_column("_offset"),
            numbers_of(updates.select_seq(keys), distinct.with_row_index("_id")),
            is_written_first=is_written_first,
        )
    clock = _clock_at(
        asks.get_column("_offset"),
        updates,
        epoch.clocks_before.get(store.name, BEFORE_ALL_TIMES),
        is_written_first=is_written_first,
    )
    places = asks.get_column("_place")
    is_forgotten = (asks.get_column(AS_OF) < clock - store.retention_ms) & (
        found.get_column("_ts").gather(places) < asks.get_column("_newest")
    )
    met = found.drop(keys).select_seq(pl.all().gather(places.set(is_forgotten.fill_null(False), None)))
    return met.with_columns_seq(pl.col("_deleted").fill_null(True))


def _at_their_turns(
    asks: pl.DataFrame, times: pl.Series, first: int, turns: pl.Series, ids: pl.Series, *, is_written_first: bool
) -> pl.DataFrame:
    """``asks`` with ``_place`` and ``_newest`` moved to the updates that have arrived by their turns.

    ``times`` are those of the rows that places point to; updates are the rows from ``first`` on, with ``turns`` and the
    numbers of their keys, ``ids``.
    """
    count = len(turns)
    kinds = np.repeat([0, 1] if is_written_first else [1, 0], [count, asks.height])
    order = np.lexsort((kinds, np.concatenate([turns.to_numpy(), asks.get_column("_offset").to_numpy()])))
    at, keys = times.fill_null(BEFORE_ALL_TIMES).to_list(), [*ids.to_list(), *asks.get_column("_id").to_list()]
    as_of, places = asks.get_column(AS_OF).to_list(), asks.get_column("_place").to_list()
    newest = asks.get_column("_newest").to_list()
    versions: dict[int, list[tuple[int, int]]] = {}
    for event in order.tolist():
        key = keys[event]
        if key is None:
            continue
        if event < count:
            insort(versions.setdefault(key, []), (at[first + event], event))
        elif known := versions.get(key):
            ask = event - count
            newest[ask] = max(newest[ask], known[-1][0])
            place = bisect_right(known, (as_of[ask], count)) - 1
            if place >= 0 and known[place][0] >= at[places[ask]]:
                places[ask] = first + known[place][1]
    return asks.with_columns_seq(
        pl.Series("_place", places, dtype=pl.Int64), pl.Series("_newest", newest, dtype=pl.Int64)
    )


def _clock_at(turns: pl.Series, updates: pl.DataFrame, before_ms: int, *, is_written_first: bool) -> pl.Series:
    """The table's stream time at ``turns``, if it was ``before_ms`` when the batch began."""
    stream_time = np.maximum.accumulate(np.append(before_ms, updates.get_column("_ts").to_numpy()))
    done = np.searchsorted(
        updates.get_column("_offset").to_numpy(), turns.to_numpy(), side="right" if is_written_first else "left"
    )
    return pl.Series(stream_time[done])
