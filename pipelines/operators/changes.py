"""Tables grouped by another key: each update removes the old row from its group and adds the new row to its own.

Both travel to the groups' tasks as separate rows, distinguished by ``_change``. Where both belong to one group, the
addition directly follows the removal and the group changes once, as in Kafka Streams.
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
"""An added row; a removed row; a removed row that the next row replaces."""
SIGN = "_sign"
"""1 for an added row, -1 for a removed one."""


@dataclass(frozen=True, kw_only=True)
class SelectChanges:
    """The rows that a table's updates remove and add, under their new keys, with the updates' times.

    A row whose new key is null is dropped. The others keep this order on their way to the groups, so that no row is
    removed before it was added, even if the removing update has an older timestamp.
    """

    table: TableView
    table_key: tuple[str, ...]
    selector: SelectKey
    newest: NewestRows | None
    """For a versioned table: drops out-of-order updates, which change no group."""

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        if self.newest is not None:
            rows = self.newest.process(rows, epoch)
        before = previous(rows, self.table_key, self.table, epoch)
        old = pl.DataFrame(
            [
                *rows.select_seq(self.table_key).get_columns(),
                *(column for column in before.get_columns() if not column.name.startswith("_")),
                *reserved(rows, before.get_column("_deleted")),
            ]
        )
        removed, added = (
            self._selected(part.with_row_index("_update"), epoch) for part in (old, rows.select_seq(old.columns))
        )
        key = list(self.selector.result.columns)
        same = removed.join(added, on=["_update", *key], how="semi", nulls_equal=True).get_column("_update")
        change = pl.when(pl.col("_update").is_in(same.implode())).then(REPLACED).otherwise(REMOVED)
        parts = [
            removed.with_columns_seq(change.cast(pl.Int8).alias(CHANGE)),
            added.with_columns_seq(pl.lit(ADDED, pl.Int8).alias(CHANGE)),
        ]
        return pl.concat(parts).sort("_update", maintain_order=True).drop("_update")

    def _selected(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        rows = self.selector.process(rows.filter(~pl.col("_deleted")), epoch)
        return rows.filter(pl.any_horizontal(pl.col(*self.selector.result.columns).is_not_null()))


@dataclass(frozen=True, kw_only=True)
class ChangeAggregation:
    """One state per group, with updates as in ``Aggregation``. Removals from a group without a state are ignored."""

    store: StoreSpec
    fold: Fold
    every_update: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        store = TypedStore(self.store, epoch.session)
        rows = rows.with_columns_seq(
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
        groups = rows.select_seq(by).unique(maintain_order=True)
        known = groups.with_columns_seq(_known=store.fetch(store.encode(groups)).get_column("_found"))
        rows = rows.join(known, on=by, how="left", nulls_equal=True, maintain_order="left")
        is_there = pl.col("_known") | (pl.col(SIGN) > 0).cum_max().over(by)
        return rows.filter(is_there).drop("_known")


def bind_signed(aggregate: Aggregate | Count, name: str, schema: pl.Schema) -> Accumulator:
    """The accumulator to which rows are added and from which they are removed, by the column ``_sign``.

    Raises:
        TopologyError: The aggregate cannot undo a row from what it keeps.
    """
    if not isinstance(aggregate, (Count, Sum, Mean)):
        raise TopologyError(
            f"{name}={type(aggregate).__name__}(...) cannot subtract a row that changes in the table; "
            "use Count(), Sum(...), Mean(...), or aggregate(...) with a subtractor"
        )
    plain = aggregate.bind(name, schema)
    signed = {
        column: (single * pl.col(SIGN)).alias(column) for column, single in zip(plain.state, plain.lift, strict=True)
    }
    return replace(plain, lift=list(signed.values()), partial=[single.sum() for single in signed.values()])


class ChangedRows(RowType):
    """Values as adders and subtractors get them: whether the row is removed, and its value."""

    def to_objects(self, frame: pl.DataFrame, absent: pl.Series | None = None) -> list[Any]:
        goes = (frame.get_column(SIGN) < 0).to_list()
        return list(zip(goes, super().to_objects(frame, absent), strict=True))


def adding_and_subtracting(
    add: Callable[[Any, Any, Any], Any], subtract: Callable[[Any, Any, Any], Any]
) -> Callable[[Any, Any, Any], Any]:
    """A fold's step from functions of ``(key, value, state)``; ``subtract`` is called only if there is a state."""

    def step(key: Any, change: Any, state: Any) -> Any:
        goes, value = change
        if not goes:
            return add(key, value, state)
        return None if state is None else subtract(key, value, state)

    return step
