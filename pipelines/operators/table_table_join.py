"""Table-table joins: an update of either table is joined with the other table's row of its key at its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.joiner import Joiner, renamed
from weir.pipelines.operators.merge import in_turn
from weir.pipelines.operators.table_view import TableView, look_up, previous
from weir.pipelines.operators.versioned import NewestRows

JoinKind = Literal["inner", "left", "outer"]


@dataclass(frozen=True, kw_only=True)
class JoinedSide:
    """One of the two tables."""

    table: TableView
    key: tuple[str, ...]
    is_written_first: bool
    """Whether a record that updates both tables is written to this one before it arrives as an update of the other."""
    drops_no_ops: bool
    """Whether updates from no row to no row are dropped: a filter that knows the old row does not forward them."""
    newest: NewestRows | None
    """For a versioned table: drops out-of-order updates, which are counted."""

    def in_order(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """The updates that the join sees."""
        if self.newest is None:
            return rows
        seen = self.newest.process(rows, epoch)
        epoch.counts["out_of_order_records"] += rows.height - seen.height
        return seen


@dataclass(frozen=True, kw_only=True)
class TableTableJoin:
    """Updates of the joined table, with the greater timestamp of the two rows.

    A tombstone is forwarded whenever the other side has a row, even twice; nothing if neither side has or had a row.
    """

    left: JoinedSide
    right: JoinedSide
    joiner: Joiner
    kind: JoinKind
    is_right_first: bool
    """Whether an update of both tables arrives from the right one first."""

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        left, right = (side.in_order(rows, epoch) for side, rows in zip((self.left, self.right), inputs, strict=True))
        parts = [self._of_left(left, right, epoch), self._of_right(right, left, epoch)]
        return in_turn(parts[::-1] if self.is_right_first else parts)

    def _of_left(self, rows: pl.DataFrame, others: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        keys = _keys(rows, self.left.key, self.right.key)
        met = look_up(keys, self.right.table, others, epoch, is_written_first=self.right.is_written_first)
        is_sent = _is_sent(self.left, rows, met, epoch, needs_partner=self.kind == "inner")
        pairs = rows.hstack(
            [
                rows.get_column("_deleted").alias("_left_gone"),
                met.get_column("_deleted").alias("_right_gone"),
                *renamed(met, keys, self.joiner.right_names),
            ]
        )
        return self._results(pairs.with_columns_seq(_later(rows, met)).filter(is_sent))

    def _of_right(self, rows: pl.DataFrame, others: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        keys = _keys(rows, self.right.key, self.left.key)
        met = look_up(keys, self.left.table, others, epoch, is_written_first=self.left.is_written_first)
        is_sent = _is_sent(self.right, rows, met, epoch, needs_partner=self.kind != "outer")
        right = rows.select_seq(self.right.key)
        own = [column for column in met.get_columns() if not column.name.startswith("_")]
        pairs = rows.select_seq(pl.col("^_.*$")).hstack(
            [
                *(
                    right.get_column(name).alias(known)
                    for name, known in zip(self.right.key, self.left.key, strict=True)
                ),
                *own,
                *renamed(rows, right, self.joiner.right_names),
                met.get_column("_deleted").alias("_left_gone"),
                rows.get_column("_deleted").alias("_right_gone"),
            ]
        )
        return self._results(pairs.with_columns_seq(_later(rows, met)).filter(is_sent))

    def _results(self, pairs: pl.DataFrame) -> pl.DataFrame:
        return self.joiner.join(with_tombstones_of(self.kind, pairs))


@dataclass(frozen=True, kw_only=True)
class JoinedTable:
    """The joined table as a join or grouping downstream looks it up: in the tables that it joins."""

    left: JoinedSide
    right: JoinedSide
    joiner: Joiner
    kind: JoinKind

    def before(self, keys: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        left = self.left.table.before(keys, epoch)
        theirs = keys.rename(dict(zip(self.left.key, self.right.key, strict=True)))
        right = self.right.table.before(theirs, epoch)
        pairs = left.hstack(
            [
                left.get_column("_deleted").alias("_left_gone"),
                right.get_column("_deleted").alias("_right_gone"),
                *renamed(right, theirs, self.joiner.right_names),
            ]
        )
        return self.joiner.join(with_tombstones_of(self.kind, pairs.with_columns_seq(_later(left, right))))

    def live(self, asked: pl.DataFrame, epoch: Epoch, *, is_written_first: bool) -> pl.Series | None:
        """None: tables whose rows expire are not looked up through a join."""
        return None


def with_tombstones_of(kind: JoinKind, pairs: pl.DataFrame) -> pl.DataFrame:
    """``pairs`` with both sides marked as gone where the join has no row."""
    if kind == "outer":
        return pairs
    gone = pl.col("_left_gone") if kind == "left" else pl.col("_left_gone") | pl.col("_right_gone")
    return pairs.with_columns_seq(gone.alias("_left_gone"), (gone | pl.col("_right_gone")).alias("_right_gone"))


def _is_sent(
    side: JoinedSide, rows: pl.DataFrame, met: pl.DataFrame, epoch: Epoch, *, needs_partner: bool
) -> pl.Series:
    """Which updates are forwarded: those with a partner and, unless one is needed, those that add or remove a row."""
    has_partner = ~met.get_column("_deleted")
    if needs_partner or (has_partner.all() and not side.drops_no_ops):
        return has_partner
    is_new = ~rows.get_column("_deleted")
    if (is_new if side.drops_no_ops else has_partner | is_new).all():
        return is_new | has_partner
    had_row = ~previous(rows, side.key, side.table, epoch).get_column("_deleted")
    return is_new | had_row if side.drops_no_ops else has_partner | is_new | had_row


def _keys(rows: pl.DataFrame, names: Sequence[str], others: Sequence[str]) -> pl.DataFrame:
    return rows.select_seq(*(pl.col(name).alias(other) for name, other in zip(names, others, strict=True)), "_offset")


def _later(rows: pl.DataFrame, met: pl.DataFrame) -> pl.Series:
    """The greater timestamp of two joined rows; ``met`` counts only where it has a row."""
    other = met.get_column("_ts").set(met.get_column("_deleted"), None).alias("_other")
    times = pl.DataFrame([rows.get_column("_ts"), other])
    return times.select_seq(pl.max_horizontal("_ts", "_other").alias("_ts")).to_series()
