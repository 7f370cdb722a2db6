"""What a swap would change in a table, counted before it is made (docs/backfill.md, 18).

The rows that it takes out are compared with those that it puts in, without what commits add to them, so epochs do not
matter. Making the swap belongs to ``swap`` and ``everything``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import polars.selectors as cs

from weir.pipelines.backfill.errors import LargeChangeError
from weir.pipelines.backfill.shadow import Shadow
from weir.state.commit.files import read_files
from weir.state.commit.record import TableSwap
from weir.state.commit.swap import may_be_of_days, of_days, replaced
from weir.state.commit.tables import file_actions, key_columns, newest_of_each_key, standing_rows
from weir.state.commit.upserts import shown_name
from weir.state.storage.places import Place, is_table, table_at

COMPARED_ROWS = 2_000_000
"""About how many rows are in memory at a time, of both sides together."""
FLOAT_DIGITS = 12
"""How many leading digits of floats are compared: the last ones of a sum depend on where epochs end."""
MAX_CHANGE = 0.01
"""The share of a table's rows that a swap may remove or change unasked."""

_OF_COMMITS = ("_epoch", "_seq")
_BEFORE, _AFTER = "__before", "__after"


@dataclass(frozen=True, kw_only=True)
class TableDifference:
    """The standing rows of one table that a swap concerns, before and after it."""

    table: str
    removed: int
    changed: int
    """Rows of a table of updates whose key stays and gets other values; a fact that changes is one removed, one
    added."""
    added: int
    unchanged: int
    sums: Mapping[str, tuple[float, float]]
    """The sums of numeric columns before and after, where they differ."""

    @property
    def rows_before(self) -> int:
        return self.removed + self.changed + self.unchanged

    @property
    def rows_after(self) -> int:
        return self.added + self.changed + self.unchanged

    @property
    def share(self) -> float:
        """The share of the rows before that are removed or changed; 0 if there were none."""
        return (self.removed + self.changed) / self.rows_before if self.rows_before else 0.0

    def __str__(self) -> str:
        sums = "".join(
            f"; sum of {name} {before:,.12g} -> {after:,.12g}" for name, (before, after) in self.sums.items()
        )
        return (
            f"{shown_name(self.table)} {self.rows_before:,} -> {self.rows_after:,} rows ({self.removed:,} removed, "
            f"{self.changed:,} changed, {self.added:,} added, {self.unchanged:,} unchanged){sums}"
        )


Review = Callable[[Sequence[TableDifference]], None]
"""Called with what a swap would change before anything is written; refuses the swap by raising an error."""


def accept(differences: Sequence[TableDifference]) -> None:
    """A ``Review`` that refuses nothing."""


def require_small(shadow: Shadow, differences: Sequence[TableDifference], max_change: float, program: str) -> None:
    """Raise ``LargeChangeError`` when the swap would remove or change more than ``max_change`` of a table's rows.

    ``program`` is what `weir backfill swap` takes to swap it in: an application's id or ``module:attribute``.
    """
    large = tuple(str(each) for each in differences if each.share > max_change)
    if large:
        raise LargeChangeError(shadow.application, shadow.id, program, max_change, large, str(shadow.folder))


def difference(app_folder: Place, shadow_folder: Place, swap: TableSwap) -> TableDifference:
    """Compare the rows that ``swap`` takes out of the live table with those of the shadow's table that it puts in.

    Both tables have all that their commit logs promise; the swap's files are not looked at. Columns that the live rows
    lack are null. A key of which the live table has a row later than the cut keeps that row, so it is on neither side.
    """
    made = table_at(shadow_folder / swap.table)
    keys, schema = key_columns(made), pl.scan_delta(made).collect_schema()
    is_new = not is_table(app_folder / swap.table)
    files_made = file_actions(made)
    files_before = files_made.clear() if is_new else file_actions(table_at(app_folder / swap.table))
    values = [name for name in schema if name not in _OF_COMMITS]
    numeric = [name for name in values if schema[name].is_numeric() and name not in keys]
    same = keys or [name for name in values if not (schema[name].is_nested() or schema[name].is_float())]
    """Columns in which rows that count as equal are equal to the last bit, so that they come into one part."""
    identity = pl.struct(same) if same else pl.lit(0)
    sides = tuple(
        (folder / swap.table, files.filter(may_be_of_days(files, swap)), where)
        for folder, files, where in (
            (app_folder, files_before, of_days(swap) if keys else replaced(swap)),
            (shadow_folder, files_made, of_days(swap)),
        )
    )
    stored = sum(int(files["num_records"].sum()) for _, files, _ in sides if files.height)
    parts = max(1, math.ceil(stored / COMPARED_ROWS))
    counts, sums = Counter[str](), Counter[tuple[str, int]]()
    for part in range(parts):
        before, after = (
            _read(folder, files, schema, where & (identity.hash() % parts == part)) for folder, files, where in sides
        )
        if keys:
            newest = newest_of_each_key(before, keys)
            is_later = pl.col("_epoch") > swap.cut_epoch
            before = newest.filter(~is_later & ~pl.col("_deleted"))
            after = standing_rows(after, keys).join(newest.filter(is_later), on=keys, how="anti", nulls_equal=True)
        counts.update(_compared(before.select(values), after.select(values), keys))
        for side, rows in enumerate((before, after)):
            sums.update({(name, side): float(rows[name].cast(pl.Float64).sum()) for name in numeric})
    return TableDifference(
        table=swap.table,
        removed=counts["removed"],
        changed=counts["changed"],
        added=counts["added"],
        unchanged=counts["unchanged"],
        sums={name: (sums[name, 0], sums[name, 1]) for name in numeric if _differ(sums[name, 0], sums[name, 1])},
    )


def _read(folder: Place, files: pl.DataFrame, schema: pl.Schema, where: pl.Expr) -> pl.DataFrame:
    held = pl.DataFrame(schema=schema)
    for path in files["path"] if files.height else ():
        held = held.vstack(read_files(folder, [path], schema).filter(where))
    return held


def _compared(before: pl.DataFrame, after: pl.DataFrame, keys: Sequence[str]) -> dict[str, int]:
    """Compare two multisets of rows, in each of which a key, if there are ``keys``, occurs once."""
    floats = cs.by_dtype(pl.Float64) - cs.by_name(keys)
    rows = pl.concat(
        side.with_columns(
            floats.round_sig_figs(FLOAT_DIGITS),
            pl.lit(is_before, pl.Int64).alias(_BEFORE),
            pl.lit(1 - is_before, pl.Int64).alias(_AFTER),
        )
        for side, is_before in ((before, 1), (after, 0))
    )
    number = (pl.col(_BEFORE).sum(), pl.col(_AFTER).sum())
    same = pl.min_horizontal(_BEFORE, _AFTER)
    rows = rows.group_by(before.columns).agg(number)
    unchanged = rows.select(same.sum()).item()
    rows = rows.select(*keys, pl.col(_BEFORE) - same, pl.col(_AFTER) - same)
    if keys:
        rows = rows.group_by(keys).agg(number)
    changed = rows.select(same.sum()).item()
    removed, added = rows.select(pl.col(_BEFORE).sum() - changed, pl.col(_AFTER).sum() - changed).row(0)
    return {"removed": removed, "changed": changed, "added": added, "unchanged": unchanged}


def _differ(before: float, after: float) -> bool:
    return math.isfinite(before) and math.isfinite(after) and not math.isclose(before, after, rel_tol=1e-9)
