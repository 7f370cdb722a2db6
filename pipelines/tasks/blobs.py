"""Rows on their way from one sub-topology to the next: one Arrow file a source epoch, edge and target task.

Which blobs are pending is the driver's to know (PROTOCOL 23); how rows choose a target is the edge's.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import polars as pl

from weir.state.types import BlobRef, StateId

ORDER = ("_ts", "_partition", "_offset")
"""Rows of several sources are merged in this order within an epoch."""


def write_blob(folder: Path, frame: pl.DataFrame, *, source: str, target: str, edge: str, state: StateId) -> BlobRef:
    """Write ``frame`` under a name of its own. It is synced only if a commit has to name it as pending.

    ``source`` and ``target`` are stored task names (``Topology.task_name``).
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source}-{target}-{state}-{uuid.uuid4().hex}.arrow"
    frame.write_ipc(path, compression="lz4")
    return BlobRef(
        source=source,
        target=target,
        edge=edge,
        state=state,
        path=path.name,
        rows=frame.height,
        size_bytes=path.stat().st_size,
    )


def read_blobs(folder: Path, blobs: Sequence[BlobRef], in_order: Collection[str] = ()) -> dict[str, pl.DataFrame]:
    """By edge, the rows of all blobs merged by timestamp, source partition and offset.

    Those of the edges ``in_order`` keep the order in which each task sent them.
    """
    by_edge: dict[str, list[pl.DataFrame]] = {}
    for blob in blobs:
        by_edge.setdefault(blob.edge, []).append(pl.read_ipc(folder / blob.path))
    merged = {edge: pl.concat(frames) for edge, frames in by_edge.items()}
    return {
        edge: in_sending_order(rows) if edge in in_order else rows.sort(ORDER, maintain_order=True)
        for edge, rows in merged.items()
    }


def in_sending_order(rows: pl.DataFrame) -> pl.DataFrame:
    """By timestamp, but none before one that the same task, ``_partition``, sent earlier, by ``_offset``."""
    turn = pl.col("_ts").cum_max().over("_partition", order_by="_offset")
    return rows.sort(turn, "_partition", "_offset")


def sync_blobs(folder: Path, blobs: Sequence[BlobRef]) -> None:
    """Bring blobs that a commit is about to name to disk."""
    for path in [*(folder / blob.path for blob in blobs), *([folder] if blobs else [])]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_blobs(folder: Path, blobs: Iterable[BlobRef]) -> None:
    """Delete blobs that a commit has passed; one that is gone already is fine."""
    for blob in blobs:
        (folder / blob.path).unlink(missing_ok=True)


def remove_orphans(folder: Path, pending: Iterable[BlobRef]) -> int:
    """Delete what no commit lists as pending, left by epochs that were rolled back; gives how many."""
    keep = {blob.path for blob in pending}
    orphans = [path for path in folder.glob("*.arrow") if path.name not in keep]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)
