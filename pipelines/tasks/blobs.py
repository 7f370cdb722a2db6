"""Rows on their way from one sub-topology to the next: one Arrow file per source epoch, edge and target task.

Which blobs are pending belongs to the driver (PROTOCOL 23), how rows choose a target to the edge.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import polars as pl

from weir.pipelines.tasks.order import MERGE, OFFSETS, ORIGIN, Key
from weir.pipelines.topology import Topology
from weir.state.commit.columns import differences
from weir.state.frames import without
from weir.state.stopwatch import Activity, during
from weir.state.storage.contract import Target
from weir.state.storage.places import Place, folder_at, storage_options
from weir.state.types import BlobRef, StateId

BLOBS = "_blobs"
"""The folder, below an application's, that holds them."""


def write_blob(folder: Place, frame: pl.DataFrame, *, source: str, target: str, edge: str, state: StateId) -> BlobRef:
    """Write rows with the columns of their keys under a unique name; origins that their places imply are left out. They
    are synced only if a commit has to list them as pending.

    ``source`` and ``target`` are stored task names (``Topology.task_name``).
    """
    name = f"{source}-{target}-{state}-{uuid.uuid4().hex}.arrow"
    first, last = key_at(frame, 0), key_at(frame, -1)
    is_plain = frame.get_column(ORIGIN).equals(origins_of_offsets(frame, first[1]))
    rows = without(frame, ORIGIN) if is_plain else frame

    def encode(written: Target) -> None:
        with during(Activity.ENCODE):
            rows.write_ipc(written, compression="uncompressed")

    with during(Activity.FILES):
        size_bytes = folder_at(folder).add(
            name,
            encode,
            what=f"rows from {source} to {target}",
            needed=int(frame.estimated_size()),
            is_durable=False,
        )
    return BlobRef(
        source=source,
        target=target,
        edge=edge,
        state=state,
        path=name,
        rows=frame.height,
        size_bytes=size_bytes,
        first=first,
        last=last,
    )


def origins_of_offsets(rows: pl.DataFrame, one: int) -> pl.Series:
    """The origins of rows whose places are the offsets of records of one topic partition, given the origin of one."""
    return (rows.get_column("_offset") | (one & ~OFFSETS)).alias(ORIGIN)


def key_at(frame: pl.DataFrame, row: int) -> Key:
    """The key of a row."""
    return int(frame.get_column(MERGE)[row]), int(frame.get_column(ORIGIN)[row])


def is_readable(app_folder: Place, blob: BlobRef, topology: Topology) -> bool:
    """Whether a program can take the rows of a blob that another may have written: whether each column of its edge has
    the type that the rows have, or a wider one; value columns, and the fields of structs in them, may come and go."""
    edge = next(edge for edge in topology.edges if edge.name == blob.edge)
    folder = folder_at(app_folder) / BLOBS
    found = pl.scan_ipc(f"{folder.uri}/{blob.path}", storage_options=storage_options(folder)).collect_schema()
    required = {*edge.node.record.key_columns, "_ts", "_partition", "_offset", "_deleted"}
    return required & edge.schema.keys() <= found.keys() and all(
        each.is_wider or not each.is_other_type for each in differences(found, edge.schema)
    )


def read_blob(folder: Place, blob: BlobRef, schema: pl.Schema) -> pl.DataFrame:
    """The rows that its target has not taken, with the columns of ``schema`` and of their keys; columns that the rows
    lack are null."""
    rows = pl.read_ipc(f"{folder_at(folder).uri}/{blob.path}", storage_options=storage_options(folder))
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


def sync_blobs(folder: Place, blobs: Sequence[BlobRef]) -> None:
    """Sync blobs that a commit is about to list to disk."""
    if blobs:
        folder_at(folder).sync(blob.path for blob in blobs)


def remove_blobs(folder: Place, blobs: Iterable[BlobRef]) -> None:
    """Delete blobs that a commit has passed; it is fine if one is already gone."""
    folder_at(folder).delete(blob.path for blob in blobs)


def blob_files(folder: Place) -> list[str]:
    """The paths of the blobs that are there."""
    return [file.name for file in folder_at(folder).list() if file.name.endswith(".arrow")]


def remove_orphans(folder: Place, found: Iterable[str], pending: Iterable[BlobRef]) -> int:
    """Delete blobs of rolled-back epochs, which no commit lists as pending; returns how many.

    ``found`` are the files of before the driver's claim: those of a newer driver are not among them.
    """
    orphans = {*found} - {blob.path for blob in pending}
    folder_at(folder).delete(orphans)
    return len(orphans)
