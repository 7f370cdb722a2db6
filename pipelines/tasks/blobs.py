"""Rows on their way from one sub-topology to the next: one Arrow file per source epoch, edge and target task.

Which blobs are pending belongs to the driver (PROTOCOL 23), how rows choose a target to the edge.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import polars as pl

from weir.state.types import BlobRef, StateId

ORDER = ("_ts", "_partition", "_offset")
"""The order in which rows of several sources are merged within an epoch."""


def write_blob(folder: Path, frame: pl.DataFrame, *, source: str, target: str, edge: str, state: StateId) -> BlobRef:
    """Write ``frame`` under a unique name. It is synced only if a commit has to list it as pending.

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
    """The rows of all blobs by edge, merged by timestamp, source partition and offset.

    Rows of the edges ``in_order`` keep the order in which each task sent them.
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
    """Rows by timestamp, but none before a row that the same task (``_partition``) sent earlier (``_offset``)."""
    turn = pl.col("_ts").cum_max().over("_partition", order_by="_offset")
    return rows.sort(turn, "_partition", "_offset")


def sync_blobs(folder: Path, blobs: Sequence[BlobRef]) -> None:
    """Sync blobs that a commit is about to list to disk."""
    for path in [*(folder / blob.path for blob in blobs), *([folder] if blobs else [])]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_blobs(folder: Path, blobs: Iterable[BlobRef]) -> None:
    """Delete blobs that a commit has passed; it is fine if one is already gone."""
    for blob in blobs:
        (folder / blob.path).unlink(missing_ok=True)


def remove_orphans(folder: Path, pending: Iterable[BlobRef]) -> int:
    """Delete blobs of rolled-back epochs, which no commit lists as pending; returns how many."""
    keep = {blob.path for blob in pending}
    orphans = [path for path in folder.glob("*.arrow") if path.name not in keep]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)
