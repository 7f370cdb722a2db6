"""What a swap removes from a table: files whose rows are all replaced, and files rewritten without the replaced rows.

Both are found in the table as it is when the swap is carried out, since compaction may have replaced the files that
were there at the pivot (docs/backfill.md, 7). The steps are those of "A swap" in docs/protocol.md. Preparing a swap
belongs to ``weir.pipelines.backfill``, its place in a commit to ``weir.state.commit.protocol``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce
from operator import or_

import polars as pl
from deltalake import DeltaTable

from weir.state.commit.files import read_files, write_files
from weir.state.commit.record import CommitRecord, SwapNote, TableSwap
from weir.state.errors import SwapRefusedError
from weir.state.storage.contract import Folder
from weir.state.types import FileEntry, TableSpec

NOTES_KEPT = 50
"""How many swaps a commit row remembers."""
PREPARED_LIFE_S = 12 * 3600.0
"""How old the prepared files may be at the pivot: vacuum spares a file that no table knows for 24 hours."""
_HELD_ROWS = 1_000_000


def taken_out(
    folder: Folder, name: str, table: DeltaTable, files: pl.DataFrame, swaps: Sequence[TableSwap]
) -> tuple[pl.DataFrame, list[FileEntry]]:
    """The files of ``table`` with rows that the swaps replace, and new files with the other rows of those files.

    ``files`` are the rows of ``file_actions``. The new files are on disk and in no table yet.
    """
    # 5. Rows that stay rewritten
    if files.is_empty():
        return files, []
    may_touch = reduce(or_, (_may_be_old(files, swap) & may_be_of_days(files, swap) for swap in swaps))
    goes_whole = reduce(or_, (_lies_within(files, swap) for swap in swaps))
    removed = [files.filter(goes_whole)]
    spec = output_spec(name, table)
    app_folder = folder
    for _ in name.split("/"):
        app_folder = app_folder.parent
    are_replaced = reduce(or_, map(replaced, swaps))
    kept: list[FileEntry] = []
    held: list[pl.DataFrame] = []
    for file in files.filter(may_touch & ~goes_whole).iter_slices(1):
        rows = read_files(folder, [file["path"].item()], spec.schema)
        stay = rows.filter(~are_replaced)
        if stay.height == rows.height:
            continue
        removed.append(file)
        held.append(stay)
        if sum(part.height for part in held) >= _HELD_ROWS:
            kept += write_files(app_folder, spec, pl.concat(held))
            held = []
    if any(part.height for part in held):
        kept += write_files(app_folder, spec, pl.concat(held))
    return pl.concat(removed), kept


def output_spec(name: str, table: DeltaTable) -> TableSpec:
    """What new files of an output need to know of the table that is there."""
    return TableSpec(
        name=name,
        schema=pl.scan_delta(table).collect_schema(),
        partition_by=tuple(table.metadata().partition_columns),
        has_partition_columns=True,
    )


def notes_of(record: CommitRecord) -> tuple[SwapNote, ...]:
    """The note of the backfill that a commit swaps in or publishes; empty for other commits."""
    return record.swapped or ((note_of_swaps(record.swaps, record.epoch),) if record.swaps else ())


def note_of_swaps(swaps: Sequence[TableSwap], epoch: int) -> SwapNote:
    """The note of a commit that swaps tables, at least one."""
    first = swaps[0]
    return SwapNote(
        backfill=first.backfill,
        start_ms=first.start_ms,
        end_ms=first.end_ms,
        cut_epoch=first.cut_epoch,
        tables=tuple(swap.table for swap in swaps),
        epoch=epoch,
        is_whole=first.column is None,
    )


def check_swaps(
    application: str, mine: SwapNote, known: Sequence[SwapNote], prepared_at_s: float, *, only_publishes: bool
) -> None:
    """Raise ``SwapRefusedError`` for a swap that another one has overtaken, or that was prepared too long ago.

    One of everything overtakes whatever ``only_publishes``, since that has no tables to compare.
    """
    tables = set(mine.tables)

    def refused(reason: str) -> SwapRefusedError:
        return SwapRefusedError(application, mine.backfill, reason)

    for other in known:
        if (
            other.epoch > mine.cut_epoch
            and other.start_ms < mine.end_ms
            and mine.start_ms < other.end_ms
            and (tables & set(other.tables) or (only_publishes and other.is_whole))
        ):
            raise refused(f"backfill {other.backfill} has replaced some of its days since it began; run it again")
    if len(known) == NOTES_KEPT and known[0].epoch > mine.cut_epoch:
        raise refused(f"{NOTES_KEPT} other backfills have been swapped in since it began; run it again")
    if time.time() - prepared_at_s > PREPARED_LIFE_S:
        raise refused(f"its files were prepared more than {PREPARED_LIFE_S / 3600:.0f} hours ago; swap it again")


def replaced(swap: TableSwap) -> pl.Expr:
    """Whether a row of the live table is to be replaced: it is of the days and not later than the cut."""
    return (pl.col("_epoch") <= swap.cut_epoch).fill_null(False) & of_days(swap)


def of_days(swap: TableSwap) -> pl.Expr:
    """Whether a row belongs to the swap's days, whatever its epoch."""
    if swap.column is None:
        return pl.lit(True)
    return _ms(pl.col(swap.column)).is_between(swap.start_ms, swap.end_ms, closed="left").fill_null(False)


def may_be_of_days(files: pl.DataFrame, swap: TableSwap) -> pl.Expr:
    """Whether a file may hold rows of the swap's days; a file without statistics may."""
    if swap.column is None:
        return pl.lit(True)
    low, high = _bound(files, "min", swap.column), _bound(files, "max", swap.column)
    return (_ms(low) < swap.end_ms).fill_null(True) & (_ms(high) >= swap.start_ms).fill_null(True)


def _may_be_old(files: pl.DataFrame, swap: TableSwap) -> pl.Expr:
    """Whether a file may hold rows up to the cut; a file without statistics may."""
    return (_bound(files, "min", "_epoch") <= swap.cut_epoch).fill_null(True)


def _lies_within(files: pl.DataFrame, swap: TableSwap) -> pl.Expr:
    """Whether all rows of a file are to be replaced, according to its statistics."""
    is_old = (_bound(files, "max", "_epoch") <= swap.cut_epoch).fill_null(False)
    if swap.column is None:
        return is_old
    low, high = _bound(files, "min", swap.column), _bound(files, "max", swap.column)
    return is_old & (
        (_ms(low) >= swap.start_ms) & (_ms(high) < swap.end_ms) & (_bound(files, "null_count", swap.column) == 0)
    ).fill_null(False)


def _bound(files: pl.DataFrame, which: str, column: str) -> pl.Expr:
    """A statistic of a column; null if no file has it."""
    name = f"{which}.{column}"
    return (
        pl.col(name)
        if name in files.columns
        else pl.lit(None, pl.Int64() if column == "_epoch" or which == "null_count" else pl.Datetime("us", "UTC"))
    )


def _ms(time: pl.Expr) -> pl.Expr:
    return time.dt.timestamp("ms")
