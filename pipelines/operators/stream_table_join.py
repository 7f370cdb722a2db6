"""Stream-table joins: each record of the stream is joined with the table's row of its key at the record's turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from weir.pipelines.operators.epoch import Epoch, has_key, has_value
from weir.pipelines.operators.joiner import Joiner, renamed
from weir.pipelines.operators.table_view import TableView, look_up
from weir.pipelines.operators.versioned import look_up_as_of
from weir.state.frames import framed, picked, repeated, where, without
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class StreamTableJoin:
    """Results have the stream record's key, time and place; updates of the table produce none.

    Null values are dropped and counted. A null key is dropped and counted by an inner join, and matches nothing in a
    left join. The table's key columns are matched with the stream's by position.
    """

    table: TableView
    table_key: tuple[str, ...]
    joiner: Joiner
    is_left: bool
    is_written_first: bool
    """Whether a record that changes the table too is joined with its own row."""
    versions: StoreSpec | None
    """The store of a versioned table: records are then joined with the row of their own time (KIP-914)."""

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        rows, updates = inputs
        rows = has_value(rows, epoch)
        if not self.is_left:
            rows = has_key(rows, list(self.joiner.key_columns), epoch)
        names = zip(self.joiner.key_columns, self.table_key, strict=True)
        asked = picked(rows, ("_ts", "_offset"))
        asked = framed([*(rows.get_column(name).alias(known) for name, known in names), *asked.get_columns()])
        if self.versions is None:
            found = look_up(without(asked, "_ts"), self.table, updates, epoch, is_written_first=self.is_written_first)
        else:
            found = look_up_as_of(
                asked, self.table, self.versions, updates, epoch, is_written_first=self.is_written_first
            )
        gone = found.get_column("_deleted")
        present = repeated("_left_gone", False, rows.height, np.bool_)
        pairs = rows.hstack([*renamed(found, asked, self.joiner.right_names), gone.alias("_right_gone"), present])
        return self.joiner.join(pairs if self.is_left else where(pairs, ~gone))
