"""Many files' rows in fewer files: the newest row per key, or the same facts in larger files, in bounded memory.

Choosing the files, and replacing them by the result, belongs to ``weir.state.changelog.compaction``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from weir.state.commit.files import read_files
from weir.state.commit.tables import newest_of_each_key

HELD_ROWS = 2_000_000
"""Rows in memory at a time, and in a file of merged updates."""
PACKED_BYTES = 32 << 20
"""The target size of a file of packed facts; files of at least half that size are left alone."""


def merged_updates(
    folder: Path,
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
        for paths in batches(folder, files, held_rows):
            rows = read_files(paths, columns)
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


def batches(folder: Path, files: pl.DataFrame, rows: int) -> Iterator[list[Path]]:
    """The paths of ``files``, at least one, in groups of about ``rows`` rows at most."""
    batch: list[Path] = []
    batch_rows = 0
    for path, of_file in files.select("path", "num_records").iter_rows():
        if batch and batch_rows + of_file > rows:
            yield batch
            batch, batch_rows = [], 0
        batch.append(folder / path)
        batch_rows += of_file
    yield batch
