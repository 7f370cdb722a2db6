"""Many files' rows in fewer files: the newest row per key, or the same facts in larger files, in bounded memory.

Choosing the files, and replacing them by the result, belongs to ``weir.state.changelog.compaction``; merging more keys
than one process should, to ``weir.pipelines.spark.merging``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from weir.state.commit.files import file_columns, read_files, scan_files, write_file, write_files
from weir.state.commit.tables import newest_of_each_key
from weir.state.storage.places import Place
from weir.state.types import FileEntry, TableSpec

HELD_ROWS = 2_000_000
"""Rows in memory at a time, and in a file of merged updates."""
PACKED_BYTES = 32 << 20
"""The target size of a file of packed facts; files of at least half that size are left alone."""

_LEAST_HASHES = 4096
"""How many of the least hashes of keys are kept to tell how many keys there are: the error is about 1.6 per cent."""


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Files of a table that are to be replaced by fewer or smaller ones."""

    app_folder: Place
    spec: TableSpec
    """The table as it is."""
    version: int
    """A Delta version of the table that has the files."""
    files: pl.DataFrame
    """Rows of ``file_actions``, at least one; of a table of updates all those of the partitions that they belong to."""
    partition: Mapping[str, str | None]
    """Where all rows go; empty if their own columns say so."""
    deletions_through: int
    """Deletions of this and older epochs are dropped."""

    @property
    def rows(self) -> int:
        """How many rows the files have."""
        return int(self.files["num_records"].sum())


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The new files; no table knows them yet."""

    files: list[FileEntry]
    forgotten: int = 0
    """The newest epoch of which a deletion was dropped; 0 if none was."""


def merged(merge: Merge) -> Merged:
    """Merge in this process.

    Facts stay as they are. Of updates the newest row of each key stays, unless it is a deletion old enough.
    """
    folder, columns = merge.app_folder / merge.spec.name, pl.Schema(file_columns(merge.spec))
    if not merge.spec.keys:
        rows = read_files(folder, merge.files["path"], columns)
        return Merged(files=_written(merge, rows))
    parts = [merged_rows(merge, rows) for rows in merged_updates(folder, merge.files, columns, merge.spec.keys)]
    return Merged(
        files=[entry for part in parts for entry in part.files], forgotten=max(part.forgotten for part in parts)
    )


def merged_rows(merge: Merge, rows: pl.DataFrame) -> Merged:
    """Write the newest rows of some keys into files, without old deletions."""
    is_old = pl.col("_deleted") & (pl.col("_epoch") <= merge.deletions_through)
    kept = rows.filter(~is_old)
    return Merged(
        files=_written(merge, kept) if kept.height else [], forgotten=max([0, *rows.filter(is_old)["_epoch"]])
    )


def _written(merge: Merge, rows: pl.DataFrame) -> list[FileEntry]:
    if merge.partition:
        return [write_file(merge.app_folder, merge.spec, rows, merge.partition, is_merged=True)]
    return write_files(merge.app_folder, merge.spec, rows, is_merged=True)


def key_count(merge: Merge) -> int:
    """About how many keys the files have, by reading their key columns once.

    Hashes of keys are spread evenly, so the greatest of the least ones tells how many there are (k minimum values).
    """
    folder, columns = merge.app_folder / merge.spec.name, pl.Schema(file_columns(merge.spec))
    least = pl.Series(dtype=pl.UInt64)
    for names in batches(merge.files, HELD_ROWS):
        hashes = scan_files(folder, names, columns).select(merge.spec.keys).collect().hash_rows()
        if least.len() == _LEAST_HASHES:
            hashes = hashes.filter(hashes < least.max())
        least = pl.concat([least, hashes]).unique().bottom_k(_LEAST_HASHES)
    if least.len() < _LEAST_HASHES:
        return least.len()
    return round((_LEAST_HASHES - 1) / (int(least.max()) / 2**64))  # type: ignore[arg-type]


def merged_updates(
    folder: Place,
    files: pl.DataFrame,
    columns: pl.Schema,
    keys: Sequence[str],
    held_rows: int = HELD_ROWS,
    where: pl.Expr | None = None,
) -> Iterator[pl.DataFrame]:
    """The newest row of each key over all ``files``, in frames that share no key, each of about ``held_rows`` at most.

    ``files`` has rows of ``file_actions``, at least one; ``where`` selects keys. Whenever there are too many keys, half
    of them, by hash, are left to a later pass over the files.
    """
    passes = [(0, 1)]
    while passes:
        residue, modulus = passes.pop()
        held: list[pl.DataFrame] = []
        for names in batches(files, held_rows):
            rows = read_files(folder, names, columns)
            rows = _of_residue(rows if where is None else rows.filter(where), keys, residue, modulus)
            merged = newest_of_each_key(pl.concat([*held, rows]), keys)
            while merged.height > held_rows:
                passes.append((residue + modulus, 2 * modulus))
                modulus *= 2
                merged = _of_residue(merged, keys, residue, modulus)
            held = [merged]
        yield held[0]


def packs(files: pl.DataFrame, packed_bytes: int = PACKED_BYTES) -> list[pl.DataFrame]:
    """Groups of at least two small files of facts that together make a file of the target size, oldest first."""
    found: list[pl.DataFrame] = []
    small = files.filter(pl.col("size_bytes") < packed_bytes // 2)
    small = small.sort("min._epoch", "path") if "min._epoch" in small.columns else small.sort("path")
    start = size = 0
    for number, size_bytes in enumerate(small["size_bytes"]):
        if size and size + size_bytes > packed_bytes:
            found.append(small.slice(start, number - start))
            start, size = number, 0
        size += size_bytes
    found.append(small.slice(start))
    return [pack for pack in found if pack.height > 1]


def _of_residue(rows: pl.DataFrame, keys: Sequence[str], residue: int, modulus: int) -> pl.DataFrame:
    return rows if modulus == 1 else rows.filter(rows.select(keys).hash_rows() % modulus == residue)


def batches(files: pl.DataFrame, rows: int) -> Iterator[list[str]]:
    """The paths of ``files``, at least one, in groups of about ``rows`` rows at most."""
    batch: list[str] = []
    batch_rows = 0
    for path, of_file in files.select("path", "num_records").iter_rows():
        if batch and batch_rows + of_file > rows:
            yield batch
            batch, batch_rows = [], 0
        batch.append(path)
        batch_rows += of_file
    yield batch
