"""Joins with global tables: each record is joined with the row of any key that it names, from whichever partition.

The two are not aligned in time; a table's rows are as new as the epoch. Keeping the rows belongs to
``weir.pipelines.tasks.global_table``.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.epoch import Epoch, has_key, has_value, without_null_keys
from weir.pipelines.operators.joiner import Joiner, renamed
from weir.pipelines.operators.mapping import SelectKey
from weir.state.engine.contract import StateView
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class GlobalTableJoin:
    """Results have the record's key, time and place. Null values are dropped and counted.

    An inner join also drops and counts records whose selected key is null; the record's own key may be null.
    """

    store: StoreSpec
    rows: StateView
    selector: SelectKey
    joiner: Joiner
    is_left: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        rows = has_value(rows, epoch)
        names = list(self.selector.result.columns)
        keys = self.selector.process(rows, epoch).select_seq(
            pl.col(name).alias(known) for name, known in zip(names, self.store.key, strict=True)
        )
        if not self.is_left:
            found = has_key(keys.with_row_index("_row"), list(self.store.key), epoch)
            rows, keys = rows[found.get_column("_row")], found.drop("_row")
        met = self._met(keys)
        gone = met.get_column("_deleted")
        pairs = rows.hstack([*renamed(met, keys, self.joiner.right_names), gone.alias("_right_gone")])
        pairs = pairs.with_columns_seq(_left_gone=pl.lit(False))
        return self.joiner.join(pairs if self.is_left else pairs.filter(~gone))

    def _met(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The table's row for each key: value columns, ``_deleted``."""
        store, names = TypedStore(self.store, self.rows), list(self.store.key)
        distinct = without_null_keys(keys.unique(maintain_order=True), names)
        found = distinct.hstack(store.fetch(store.encode(distinct)).drop("_ts"))
        met = keys.join(found, on=names, how="left", nulls_equal=True, maintain_order="left").drop(names)
        return met.with_columns_seq(_deleted=~pl.col("_found").fill_null(False)).drop("_found")
