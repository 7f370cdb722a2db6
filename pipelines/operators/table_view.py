"""Tables as other operators see them: the rows before a batch, and at each record's own turn.

A table is looked up in the store that keeps it, through the filters and mappings after it; these keep no rows of their
own, as in Kafka Streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

from weir.pipelines.operators.closing import at_turns
from weir.pipelines.operators.epoch import Epoch, Operator
from weir.pipelines.operators.numbering import numbered, numbers_of
from weir.state.frames import picked, repeated, where, with_series, without
from weir.state.stores.specs import BOOKKEEPING, SHOWN
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec

BEFORE_ALL_TURNS = -2
"""Also before rows that idle input caused, whose offset is that of ``idle.NOWHERE``."""


class TableView(Protocol):
    """A table that can be looked up by key."""

    def before(self, keys: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """The rows as they were when the batch began, aligned with ``keys`` (the table's key columns, none null).

        Key columns, value columns, ``_ts _partition _offset _deleted``; ``_deleted`` is true where there is no row.
        """
        ...

    def live(self, asked: pl.DataFrame, epoch: Epoch, *, is_written_first: bool) -> pl.Series | None:
        """Which of the rows that ``look_up`` is ``asked`` for have not expired at their turns; None for all."""
        ...


@dataclass(frozen=True)
class StoredTable:
    """A table in a store."""

    store: StoreSpec
    finish: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    """Makes the table's columns from the stored ones, where they differ."""

    def before(self, keys: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        store = TypedStore(self.store, epoch.before)
        _, _, found = store.fetch_sorted(keys)
        rows = keys.hstack(without(found, "_found")).hstack(
            [
                repeated("_partition", 0, keys.height, np.int32),
                repeated("_offset", BEFORE_ALL_TURNS, keys.height, np.int64),
                (~found.get_column("_found")).alias("_deleted"),
            ]
        )
        return self.finish(rows) if self.finish else rows

    def live(self, asked: pl.DataFrame, epoch: Epoch, *, is_written_first: bool) -> pl.Series | None:
        return None


@dataclass(frozen=True, kw_only=True)
class WindowedTable(StoredTable):
    """A table by key and window in a store that drops windows: by stream time at each turn, whenever it is tidied."""

    counts_from: str
    """The bound of a window from which its time to live counts."""
    kept_ms: int
    closes_after_ms: int

    def live(self, asked: pl.DataFrame, epoch: Epoch, *, is_written_first: bool) -> pl.Series | None:
        offsets, bounds = asked.get_column("_offset"), asked.get_column(self.counts_from)
        reached = at_turns(self.store.name, self.closes_after_ms, offsets, epoch, includes_own=is_written_first)
        return bounds.dt.timestamp("ms") + self.kept_ms > reached


@dataclass(frozen=True, kw_only=True)
class SuppressedTable:
    """A table whose updates are held back for a time: the rows that it has forwarded (KIP-328)."""

    store: StoreSpec
    """The buffer, with what was last forwarded of the keys in it."""
    table: TableView
    """The table before; of a key that is not in the buffer, everything has been forwarded."""

    def before(self, keys: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        store, rows = TypedStore(self.store, epoch.before), self.table.before(keys, epoch)
        held = store.fetch(store.encode(keys))
        is_held, shown = held.get_column("_found"), held.get_column(SHOWN).struct
        if not is_held.any():
            return rows
        names = [*(name for name in self.store.value if name not in BOOKKEEPING), "_ts"]
        then = [pl.when(is_held).then(shown.field(name)).otherwise(pl.col(name)).alias(name) for name in names]
        gone = pl.when(is_held).then(shown.field("_ts").is_null()).otherwise("_deleted")
        return rows.with_columns_seq(*then, gone.alias("_deleted"))

    def live(self, asked: pl.DataFrame, epoch: Epoch, *, is_written_first: bool) -> pl.Series | None:
        return self.table.live(asked, epoch, is_written_first=is_written_first)


@dataclass(frozen=True)
class DerivedTable:
    """A table that a filter or mapping derives from another."""

    table: TableView
    operator: Operator

    def before(self, keys: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        return self.operator.process(self.table.before(keys, epoch), epoch)

    def live(self, asked: pl.DataFrame, epoch: Epoch, *, is_written_first: bool) -> pl.Series | None:
        return self.table.live(asked, epoch, is_written_first=is_written_first)


def look_up(
    asked: pl.DataFrame, table: TableView, updates: pl.DataFrame, epoch: Epoch, *, is_written_first: bool
) -> pl.DataFrame:
    """The table's row for each row of ``asked`` at its own turn: value columns, ``_ts``, ``_deleted``.

    ``asked`` has the table's key columns, under its names, and ``_offset``, by which it is ordered; ``updates`` are
    the table's rows of this batch. ``is_written_first`` says whether an update by the asking record itself is
    visible. A null key finds nothing.
    """
    keys = [name for name in asked.columns if name != "_offset"]
    distinct, ids = numbered(picked(asked, keys))
    rows = table.before(distinct, epoch)
    found = rows.columns[len(keys) :]
    live = table.live(asked, epoch, is_written_first=is_written_first)
    if updates.is_empty() or asked.is_empty():
        met = picked(rows, found)
        return _without_expired(met if distinct.height == asked.height else met.select_seq(pl.all().gather(ids)), live)
    names = [*keys, *found]
    history = pl.concat([picked(rows, names), picked(updates, names)])
    history_ids = numbers_of(picked(history, keys), distinct.with_row_index("_id"))
    history = with_series(history, history_ids).filter(history_ids.is_not_null())
    turns = pl.DataFrame([asked.get_column("_offset"), ids])
    met = turns.join_asof(
        without(history, *keys).sort("_offset", maintain_order=True),
        on="_offset",
        by="_id",
        strategy="backward",
        allow_exact_matches=is_written_first,
        check_sortedness=False,
    )
    return _without_expired(without(met, "_id"), live)


def look_up_newest(keys: pl.DataFrame, table: TableView, updates: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
    """The table's row for each of ``keys`` after all ``updates`` of this batch: value columns, ``_ts``, ``_deleted``.

    For tables whose rows stay until they are deleted. ``keys`` are under the names of the table's key columns; a null
    key finds nothing.
    """
    distinct, ids = numbered(keys)
    if updates.is_empty():
        rows = table.before(distinct, epoch)
    else:
        newest = updates.unique(keys.columns, keep="last", maintain_order=True)
        places = numbers_of(distinct, picked(newest, keys.columns).with_row_index("_id"))
        is_old = places.is_null()
        rows = table.before(where(distinct, is_old), epoch)
        if not is_old.all():
            at = np.cumsum(is_old.to_numpy()) - 1
            at[~is_old] = rows.height + places.drop_nulls().to_numpy()
            rows = pl.concat([rows, picked(newest, rows.columns)])[at]
    met = without(rows, *keys.columns)
    if distinct.height == keys.height:
        return met
    met = met.select_seq(pl.all().gather(ids))
    return with_series(met, met.get_column("_deleted").fill_null(True))


def _without_expired(met: pl.DataFrame, live: pl.Series | None) -> pl.DataFrame:
    """``met`` with ``_deleted`` true, and nulls, where nothing was found or it is not ``live``."""
    gone = met.get_column("_deleted")
    if gone.null_count():
        gone = gone.fill_null(True)
    if live is None or live.all():
        return with_series(met, gone)
    values = [
        pl.when(live).then(pl.col(name)).alias(name) for name in met.columns if name not in ("_offset", "_deleted")
    ]
    return met.with_columns_seq(*values, gone | ~live)


def previous(rows: pl.DataFrame, key: Sequence[str], table: TableView, epoch: Epoch) -> pl.DataFrame:
    """The row that each of a table's ``rows`` of this batch replaced: value columns, ``_ts``, ``_deleted``."""
    before = table.before(rows.select_seq(key).unique(maintain_order=True), epoch)
    values = [name for name in before.columns if name not in key]
    stacked = pl.concat([before, rows.select_seq(before.columns)])
    return stacked.select_seq(pl.col(values).shift(1).over(key))[before.height :]
