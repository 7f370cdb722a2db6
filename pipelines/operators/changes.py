"""Tables grouped by another key: each update takes the old row out of its group and puts the new one into its own.

The two travel to the groups' tasks as rows of their own, told apart by ``_change``; where both belong to one group
they follow one another, and the group changes once, as in Kafka Streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import Accumulator, Aggregate, Count, Mean, Sum
from weir.pipelines.operators.aggregation import fold_into
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.fold import BEGINS, ColumnFold, Fold
from weir.pipelines.operators.mapping import SelectKey
from weir.pipelines.operators.stateless import reserved
from weir.pipelines.operators.table_view import TableView, previous
from weir.pipelines.operators.versioned import NewestRows
from weir.pipelines.serdes.row_type import RowType
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec

CHANGE = "_change"
ADDED, REMOVED, REPLACED = 0, 1, 2
"""A row that comes in; one that goes; one that goes, and the next row is what comes in its place."""
SIGN = "_sign"
"""1 for a row that comes in, -1 for one that goes."""


@dataclass(frozen=True, kw_only=True)
class SelectChanges:
    """The rows that a table's updates take out and put in, under their new keys, with the updates' time.

    A row whose new key is null is left out. The others stay in this order on their way to the groups (``Epoch.sent``):
    no row goes before it has come, though the update has an older time.
    """

    table: TableView
    table_key: tuple[str, ...]
    selector: SelectKey
    newest: NewestRows | None
    """Of a versioned table: what came out of order changes no group."""
    clock: str

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        if self.newest is not None:
            rows = self.newest.process(rows, epoch)
        before = previous(rows, self.table_key, self.table, epoch)
        old = pl.DataFrame(
            [
                *rows.select(self.table_key).get_columns(),
                *(column for column in before.get_columns() if not column.name.startswith("_")),
                *reserved(rows, before.get_column("_deleted")),
            ]
        )
        gone, come = (self._selected(part.with_row_index("_update"), epoch) for part in (old, rows.select(old.columns)))
        key = list(self.selector.result.columns)
        same = gone.join(come, on=["_update", *key], how="semi", nulls_equal=True).get_column("_update")
        change = pl.when(pl.col("_update").is_in(same.implode())).then(REPLACED).otherwise(REMOVED)
        parts = [
            gone.with_columns(change.cast(pl.Int8).alias(CHANGE)),
            come.with_columns(pl.lit(ADDED, pl.Int8).alias(CHANGE)),
        ]
        return epoch.sent(pl.concat(parts).sort("_update", maintain_order=True).drop("_update"), self.clock)

    def _selected(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        rows = self.selector.process(rows.filter(~pl.col("_deleted")), epoch)
        return rows.filter(pl.any_horizontal(pl.col(*self.selector.result.columns).is_not_null()))


@dataclass(frozen=True, kw_only=True)
class ChangeAggregation:
    """One state a group, with updates as in ``Aggregation``. What goes from a group without a state changes nothing."""

    store: StoreSpec
    fold: Fold
    every_update: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        store = TypedStore(self.store, epoch.session)
        rows = rows.with_columns(
            pl.when(pl.col(CHANGE) == ADDED).then(1).otherwise(-1).alias(SIGN),
            (pl.col(CHANGE) == REPLACED).alias(BEGINS),
        )
        if isinstance(self.fold, ColumnFold):
            rows = self._of_known_groups(rows, store)
            if rows.is_empty():
                return rows
        updates = fold_into(store, self.fold, rows, self.every_update)
        return updates.filter(rows.get_column(CHANGE) != REPLACED) if self.every_update else updates

    def _of_known_groups(self, rows: pl.DataFrame, store: TypedStore) -> pl.DataFrame:
        by = list(self.store.key)
        groups = rows.select(by).unique(maintain_order=True)
        known = groups.with_columns(_known=store.fetch(store.encode(groups)).get_column("_found"))
        rows = rows.join(known, on=by, how="left", nulls_equal=True, maintain_order="left")
        is_there = pl.col("_known") | (pl.col(SIGN) > 0).cum_max().over(by)
        return rows.filter(is_there).drop("_known")


def bind_signed(aggregate: Aggregate | Count, name: str, schema: pl.Schema) -> Accumulator:
    """The accumulator that rows with the column ``_sign`` go into and out of.

    Raises:
        TopologyError: What the aggregate keeps does not tell what it was before a row came.
    """
    if not isinstance(aggregate, (Count, Sum, Mean)):
        raise TopologyError(
            f"{name}={type(aggregate).__name__}(...) cannot take a row out again that has changed in "
            "the table; use Count(), Sum(...), Mean(...), or aggregate(...) with a subtractor"
        )
    plain = aggregate.bind(name, schema)
    signed = {
        column: (single * pl.col(SIGN)).alias(column) for column, single in zip(plain.state, plain.lift, strict=True)
    }
    return replace(plain, lift=list(signed.values()), partial=[single.sum() for single in signed.values()])


class ChangedRows(RowType):
    """Values as functions get them that add and subtract: whether the row goes, and its value."""

    def to_objects(self, frame: pl.DataFrame, absent: pl.Series | None = None) -> list[Any]:
        goes = (frame.get_column(SIGN) < 0).to_list()
        return list(zip(goes, super().to_objects(frame, absent), strict=True))


def adding_and_subtracting(
    add: Callable[[Any, Any, Any], Any], subtract: Callable[[Any, Any, Any], Any]
) -> Callable[[Any, Any, Any], Any]:
    """A fold's step of ``(key, value, state)`` functions; ``subtract`` is called only where there is a state."""

    def step(key: Any, change: Any, state: Any) -> Any:
        goes, value = change
        if not goes:
            return add(key, value, state)
        return None if state is None else subtract(key, value, state)

    return step
