"""Rows on their way from one sub-topology to the next: one Arrow file per source epoch, edge and target task.

Which blobs are pending belongs to the driver (PROTOCOL 23), how rows choose a target to the edge.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from weir.pipelines.tasks.order import MERGE, OFFSETS, ORIGIN, Key
from weir.pipelines.topology import Topology
from weir.state.commit.columns import differences
from weir.state.engine.environment import make_folders
from weir.state.full_disk import writing
from weir.state.types import BlobRef, StateId

BLOBS = "_blobs"
"""The folder, below an application's, that holds them."""


def write_blob(folder: Path, frame: pl.DataFrame, *, source: str, target: str, edge: str, state: StateId) -> BlobRef:
    """Write rows with the columns of their keys under a unique name; origins that their places imply are left out. They
    are synced only if a commit has to list them as pending.

    ``source`` and ``target`` are stored task names (``Topology.task_name``).
    """
    path = folder / f"{source}-{target}-{state}-{uuid.uuid4().hex}.arrow"
    first, last = key_at(frame, 0), key_at(frame, -1)
    is_plain = frame.get_column(ORIGIN).equals(origins_of_offsets(frame, first[1]))
    with writing(path, f"rows from {source} to {target}", int(frame.estimated_size())):
        make_folders(folder)
        (frame.drop(ORIGIN) if is_plain else frame).write_ipc(path, compression="uncompressed")
    return BlobRef(
        source=source,
        target=target,
        edge=edge,
        state=state,
        path=path.name,
        rows=frame.height,
        size_bytes=path.stat().st_size,
        first=first,
        last=last,
    )


def origins_of_offsets(rows: pl.DataFrame, one: int) -> pl.Series:
    """The origins of rows whose places are the offsets of records of one topic partition, given the origin of one."""
    return (rows.get_column("_offset") | (one & ~OFFSETS)).alias(ORIGIN)


def key_at(frame: pl.DataFrame, row: int) -> Key:
    """The key of a row."""
    return int(frame.get_column(MERGE)[row]), int(frame.get_column(ORIGIN)[row])


def is_readable(app_folder: Path, blob: BlobRef, topology: Topology) -> bool:
    """Whether a program can take the rows of a blob that another may have written: whether each column of its edge has
    the type that the rows have, or a wider one; value columns, and the fields of structs in them, may come and go."""
    edge = next(edge for edge in topology.edges if edge.name == blob.edge)
    found = pl.read_ipc_schema(app_folder / BLOBS / blob.path)
    required = {*edge.node.record.key_columns, "_ts", "_partition", "_offset", "_deleted"}
    return required & edge.schema.keys() <= found.keys() and all(
        each.is_wider or not each.is_other_type for each in differences(found, edge.schema)
    )


def read_blob(folder: Path, blob: BlobRef, schema: pl.Schema) -> pl.DataFrame:
    """The rows that its target has not taken, with the columns of ``schema`` and of their keys; columns that the rows
    lack are null."""
    rows = pl.read_ipc(folder / blob.path)
    if rows.select_seq(pl.exclude(MERGE, ORIGIN)).schema != schema:  # another program wrote them
        columns = [
            pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype).alias(name)
            for name, dtype in schema.items()
        ]
        rows = rows.select_seq(*columns, *(name for name in (MERGE, ORIGIN) if name in rows.columns))
    if MERGE not in rows.columns:  # written before rows had keys
        rows = rows.with_columns_seq(pl.col("_ts").cum_max().alias(MERGE), pl.lit(0, pl.Int64).alias(ORIGIN))
    rows = rows[blob.taken :]
    if ORIGIN not in rows.columns and blob.first is not None:
        rows = rows.with_columns_seq(origins_of_offsets(rows, blob.first[1]))
    return rows


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


def blob_files(folder: Path) -> list[Path]:
    """The blobs that are there."""
    return list(folder.glob("*.arrow"))


def remove_orphans(found: Iterable[Path], pending: Iterable[BlobRef]) -> int:
    """Delete blobs of rolled-back epochs, which no commit lists as pending; returns how many.

    ``found`` are the files of before the driver's claim: those of a newer driver are not among them.
    """
    keep = {blob.path for blob in pending}
    orphans = [path for path in found if path.name not in keep]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)
