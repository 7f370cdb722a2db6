"""Publishing what a backfill computed: its outboxes' rows go into the live ones with the commit that swaps it in.

They get epochs after all that was committed, so sinks have them after what they got before, in the order of the
backfill's own run. Which sinks can have them is decided in ``weir.pipelines.backfill.outputs``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import polars as pl

from weir.pipelines.backfill.shadow import BACKFILLS, EVERYTHING, Backfill
from weir.state.commit.columns import differences
from weir.state.commit.files import write_files
from weir.state.commit.outbox import AT, Mark, Outbox, outbox_name
from weir.state.commit.swap import output_spec
from weir.state.errors import SwapRefusedError
from weir.state.storage.places import Place, is_table, table_at
from weir.state.types import FileEntry

HELD_ROWS, HELD_BYTES = 1_000_000, 256 << 20


@dataclass(frozen=True, kw_only=True)
class Republished:
    """Files for live outboxes, which no table knows yet."""

    files: tuple[FileEntry, ...]
    epoch: int
    """The newest epoch of their rows, which is that of the commit that names them."""


def require_outboxes(app_folder: Place, backfill: Backfill, sinks: Iterable[str]) -> None:
    """Raise ``SwapRefusedError`` when the outbox of one of ``sinks`` has other columns in the live application, or is
    missing there; a backfill of everything brings it."""
    for sink in sinks:
        live, made = (folder / outbox_name(sink) for folder in (app_folder, _folder(app_folder, backfill)))
        if not is_table(live):
            if backfill.days == EVERYTHING:
                continue
            reason = f"the live application has no sink {sink!r}; run this program first"
        elif differences(*map(_columns, (live, made))):
            reason = f"the live rows of sink {sink!r} have other columns; run this program first"
        else:
            continue
        raise SwapRefusedError(backfill.application, backfill.id, reason)


def republished(app_folder: Place, backfill: Backfill, sinks: Iterable[str], *, after_epoch: int) -> Republished:
    """Write the rows of the backfill's days for ``sinks`` into new files in the folders of the live outboxes."""
    files: list[FileEntry] = []
    last, days, folder = after_epoch, backfill.days, _folder(app_folder, backfill)
    for sink in sinks:
        spec = output_spec(outbox_name(sink), table_at(folder / outbox_name(sink)))
        spec = replace(spec, schema=_columns(folder / outbox_name(sink)))
        epoch, made = after_epoch, Outbox(folder, sink, backfill.id)
        for rows, _ in made.rows(Mark(), at_most=HELD_ROWS, size_bytes=HELD_BYTES):
            if days != EVERYTHING:
                rows = rows.filter(pl.col(AT).is_between(days.start_ms, days.end_ms, closed="left"))
            if rows.height:
                epoch += 1
                files += write_files(app_folder, spec, rows.with_columns(pl.lit(epoch, pl.Int64()).alias("_epoch")))
        last = max(last, epoch)
    return Republished(files=tuple(files), epoch=last)


def _folder(app_folder: Place, backfill: Backfill) -> Place:
    return app_folder / BACKFILLS / backfill.id


def _columns(outbox: Place) -> pl.Schema:
    return pl.Schema(
        {name: dtype for name, dtype in pl.scan_delta(table_at(outbox)).collect_schema().items() if name != AT}
    )
