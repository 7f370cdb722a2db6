"""Swapping in a backfill: its rows go into files in the live tables' folders, and a commit names them.

The live driver makes the commit if one runs; otherwise it is made here. What it does to the tables belongs to
``weir.state.commit.swap``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.backfill.differences import Review, accept, difference
from weir.pipelines.backfill.errors import UnknownBackfillError
from weir.pipelines.backfill.outputs import DayOutput
from weir.pipelines.backfill.republish import Republished, republished, require_outboxes
from weir.pipelines.backfill.shadow import BACKFILLS, Backfill, Shadow, remove_shadow, remove_swapped
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.merging import merged_updates
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.commit.columns import differences
from weir.state.commit.files import read_files, write_files
from weir.state.commit.log import COMMITS, newest_of
from weir.state.commit.outbox import outbox_name
from weir.state.commit.protocol import Committer, newest_commit, redo_appends
from weir.state.commit.record import SwapNote, TableSwap
from weir.state.commit.swap import note_of_swaps, of_days, output_spec
from weir.state.commit.tables import AppendTable, file_actions, key_columns
from weir.state.errors import SwapRefusedError
from weir.state.storage.places import Place, folder_at, is_table, table_at

HELD_ROWS = 1_000_000
_PREPARED = "swap.json"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """New files in the live tables' folders, which no table knows yet."""

    swaps: tuple[TableSwap, ...]
    at_s: float
    """When the first one was about to be written."""
    changes: str = ""
    """What they change, for people; empty in what an older version has prepared."""
    published: tuple[str, ...] = ()
    """The sinks that get the backfill's rows of the days with the swap."""
    backfill: Backfill | None = None
    """What was prepared; None in what an older version has prepared."""

    def __str__(self) -> str:
        sinks = f"its rows go to {', '.join(self.published)}" if self.published else ""
        return "; ".join(filter(None, (self.changes, sinks)))

    def for_outboxes(self, app_folder: Place, after_epoch: int) -> Republished:
        """Write what goes to sinks outside the warehouse, with epochs after ``after_epoch``.

        Raises:
            SwapRefusedError: The outbox of a sink is gone, or has other columns since it was prepared.
        """
        if self.backfill is None:
            return Republished(files=(), epoch=after_epoch)
        require_outboxes(app_folder, self.backfill, self.published)
        return republished(app_folder, self.backfill, self.published, after_epoch=after_epoch)

    def note(self, epoch: int) -> SwapNote:
        """The note of the commit with this epoch: of the tables that it swaps, and the outboxes that it fills."""
        if self.backfill is None:
            return note_of_swaps(self.swaps, epoch)
        days = self.backfill.days
        return SwapNote(
            backfill=self.backfill.id,
            start_ms=days.start_ms,
            end_ms=days.end_ms,
            tables=(*(swap.table for swap in self.swaps), *map(outbox_name, self.published)),
            cut_epoch=self.backfill.cut_epoch,
            epoch=epoch,
        )


_PREPARATIONS = msgspec.json.Decoder(Prepared)


def reason_of(backfill: str) -> str:
    """The reason of the commit that swaps in ``backfill``."""
    return f"swap of backfill {backfill}"


def prepare(
    shadow: Shadow,
    on_step: Callable[[str], None] = lambda step: None,
    *,
    review: Review = accept,
    publish: bool = False,
) -> Prepared:
    """Count what the swap would change; then write the days' rows of each output into new files in the live table's
    folder, and record their names. With ``publish`` the swap also gives them to sinks outside the warehouse.

    Raises:
        UnknownBackfillError: No backfill has that id, or it is not complete.
        SwapRefusedError: A live table is missing or has other columns, or there is nothing to swap.
        TableBehindError, TableLostError: A live table cannot be brought up to what the commit log promises.
        Exception: What ``review`` raises; nothing was written.
    """
    # 1. Rows prepared
    backfill, app_folder = shadow.backfill, shadow.warehouse.parent
    if shadow.completion is None:
        raise UnknownBackfillError(shadow.application, shadow.id, "it is not complete")
    if publish and not backfill.published:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in backfill.left_out.items()) or "it has none"
        raise SwapRefusedError(
            shadow.application,
            shadow.id,
            f"none of the program's sinks outside the warehouse can be given rows of days ({reasons}); leave --publish "
            "out",
        )
    if not publish and not backfill.outputs:
        raise SwapRefusedError(
            shadow.application,
            shadow.id,
            f"it has nothing to swap, only rows for sinks outside the warehouse; publish them with `weir backfill swap "
            f"MODULE:APP {shadow.id} --publish`, or discard it",
        )
    published = backfill.published if publish else ()
    require_outboxes(app_folder, backfill, published)
    planned = [_planned(backfill, output) for output in backfill.outputs]
    for swap in planned:
        _require_fit(shadow, swap.table)
    _redo_appends(app_folder, shadow.application, [swap.table for swap in planned])
    differences = tuple(difference(app_folder, shadow.folder, swap) for swap in planned)
    on_step("differences counted")
    review(differences)
    at_s, swaps = time.time(), []
    for swap in planned:
        swaps.append(with_files(shadow, swap))
        on_step("swap files written")
    prepared = Prepared(
        swaps=tuple(swaps),
        at_s=at_s,
        changes="; ".join(map(str, differences)),
        published=published,
        backfill=backfill,
    )
    shadow.folder.put(_PREPARED, msgspec.json.encode(prepared))
    on_step("swap prepared")
    return prepared


def with_files(shadow: Shadow, swap: TableSwap) -> TableSwap:
    """The same swap with the shadow's standing rows, of its days, in new files in the live table's folder."""
    app_folder = shadow.warehouse.parent
    spec = output_spec(swap.table, table_at(shadow.folder / swap.table))
    epoch = pl.lit(swap.cut_epoch, pl.Int64()).alias("_epoch")
    parts = standing_parts(shadow.folder / swap.table, of_days(swap))
    files = (file for rows in parts for file in write_files(app_folder, spec, rows.with_columns(epoch)))
    return replace(swap, files=tuple(files))


def read_prepared(app_folder: Place, application: str, backfill: str) -> Prepared:
    """What ``prepare`` has recorded.

    Raises:
        SwapRefusedError: Nothing is prepared.
    """
    try:
        return _PREPARATIONS.decode(folder_at(app_folder / BACKFILLS / backfill).get(_PREPARED))
    except FileNotFoundError:
        raise SwapRefusedError(
            application,
            backfill,
            f"nothing is prepared for it, or it has been discarded; `weir backfill list {application}` shows all",
        ) from None


def swap_at_rest(
    warehouse: Place, application: Application, backfill: str, on_step: Callable[[str], None] = lambda step: None
) -> int:
    """Swap in a prepared backfill in a separate commit while no driver runs; returns the commit's epoch.

    A backfill that is already swapped in is left as it is. A driver that runs all the same is fenced.

    Raises:
        SwapRefusedError: It must not be swapped in; nothing was changed.
        FencedError: A driver was started meanwhile; nothing was changed.
    """
    app_folder = warehouse / application.id
    application = application.over(newest_commit(warehouse, application.id))
    committer = Committer(
        warehouse,
        application.id,
        application_tables(application.topology),
        fingerprint=application.topology.fingerprint,
        on_step=on_step,
    )
    try:
        claim = committer.claim()
        remove_swapped(app_folder, claim.newest)
        if (note := committer.note_of(backfill)) is not None:
            return note.epoch
        prepared = read_prepared(app_folder, application.id, backfill)
        assert claim.newest is not None  # a backfill has a cut
        note = prepared.note(claim.newest.epoch)
        committer.check_swap(note, prepared.swaps, prepared.at_s, prepared.published)
        published = prepared.for_outboxes(app_folder, claim.newest.epoch)
        on_step("outboxes written")
        epoch = max(claim.newest.epoch + 1, published.epoch)
        record = replace(
            claim.newest,
            generation=claim.generation,
            epoch=epoch,
            files=published.files,
            swaps=prepared.swaps,
            swapped=(prepared.note(epoch),),
            at_ms=time.time_ns() // 1_000_000,
            reason=reason_of(backfill),
        )
        # 3. The pivot
        committer.commit(record)
        # 7. The shadow removed
        remove_shadow(app_folder, backfill)
    finally:
        committer.close()
    refresh_at_rest(app_folder, application_tables(application.topology), application.id)
    return record.epoch


def _planned(backfill: Backfill, output: DayOutput) -> TableSwap:
    """The swap of an output, without its files."""
    return TableSwap(
        backfill=backfill.id,
        table=output.table,
        column=output.column,
        start_ms=backfill.days.start_ms,
        end_ms=backfill.days.end_ms,
        cut_epoch=backfill.cut_epoch,
        files=(),
    )


def _require_fit(shadow: Shadow, table: str) -> None:
    app_folder = shadow.warehouse.parent
    if not is_table(app_folder / table):
        raise SwapRefusedError(
            shadow.application, shadow.id, f"the live application has no table {table!r}; run this program first"
        )
    live, made = table_at(app_folder / table), table_at(shadow.folder / table)
    columns, columns_made = (pl.scan_delta(table).collect_schema() for table in (live, made))
    if differences(columns, columns_made) or key_columns(live) != key_columns(made):
        raise SwapRefusedError(
            shadow.application,
            shadow.id,
            f"the live table {table!r} has other columns; run this program first, with another name for the output",
        )


def _redo_appends(app_folder: Place, application: str, tables: Sequence[str]) -> None:
    """Bring live tables up to the commit log, as the claim before a swap would: a dead driver may have left one
    behind."""
    log = app_folder / COMMITS.name
    log_files = file_actions(table_at(log))
    newest = newest_of(log, log_files)
    versions = newest.table_versions if newest else {}
    for name in tables:
        redo_appends(AppendTable(app_folder / name, name, application), versions.get(name, 0), log, log_files)


def standing_parts(folder: Place, condition: pl.Expr) -> Iterator[pl.DataFrame]:
    """The current rows of a table that meet ``condition``, which uses only key columns in a table of updates.

    They come in non-empty frames, small enough to bound the memory needed.
    """
    table = table_at(folder)
    keys, files, columns = key_columns(table), file_actions(table), pl.scan_delta(table).collect_schema()
    if files.is_empty():
        return
    parts = (
        _facts(folder, files, columns, condition)
        if not keys
        else (
            rows.filter(~pl.col("_deleted")) for rows in merged_updates(folder, files, columns, keys, where=condition)
        )
    )
    yield from (rows for rows in parts if rows.height)


def _facts(folder: Place, files: pl.DataFrame, columns: pl.Schema, condition: pl.Expr) -> Iterator[pl.DataFrame]:
    held = list[pl.DataFrame]()
    for path in files["path"]:
        held.append(read_files(folder, [path], columns).filter(condition))
        if sum(part.height for part in held) >= HELD_ROWS:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)
