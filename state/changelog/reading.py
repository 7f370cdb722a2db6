"""A store's changelog as a restore reads it: by column, the newest row of each key, in key order.

The rows are used by ``weir.state.changelog.restore`` and ``weir.state.changelog.verify``; writing them
belongs to ``weir.state.changelog.rows``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from weir.state.changelog.rows import changelog_spec, partition_of_rows
from weir.state.commit.damage import naming_damage
from weir.state.commit.evolution import TOMBSTONE_HORIZON
from weir.state.commit.files import read_files, stored_schema, with_epochs
from weir.state.commit.live_files import live_files
from weir.state.engine.task_store import MAX_KEY_BYTES
from weir.state.storage.places import Place
from weir.state.stores.codec import TIMES_AROUND, KeyCodec, RowCodec
from weir.state.stores.long_keys import shortened
from weir.state.types import StoreSpec

BATCH_ROWS = 100_000
"""How many rows at a time become Python objects."""


@dataclass(frozen=True, kw_only=True)
class TaskChangelog:
    """One task's part of a store's changelog, over a range of epochs."""

    spec: StoreSpec
    folder: Place
    """That of the table."""
    paths: tuple[str, ...]
    """The files that hold these epochs and perhaps others, named below the folder, oldest first."""
    size_bytes: int
    above: int
    """Rows of this and older epochs are left out."""
    through: int
    """The newest epoch included."""
    horizon: int
    """The newest epoch from which deletions may be missing; 0 if none are."""

    @classmethod
    def of(cls, app_folder: Place, spec: StoreSpec, task_id: str, *, through: int, above: int = -1) -> TaskChangelog:
        """Look the files up in the newest version of the Delta table."""
        folder = app_folder / changelog_spec(spec).name
        files, properties = live_files(folder, ranges=["_epoch"], partitions=["task"])
        if not files.is_empty():
            files = files.filter(partition_of_rows() == task_id.rpartition("_")[2])
            if files["max._epoch"].null_count():
                with naming_damage(folder, files["path"]):
                    files = with_epochs(folder, files)
            files = files.filter(pl.col("min._epoch") <= through, pl.col("max._epoch") > above)
            files = files.sort("min._epoch", "max._epoch")
        return cls(
            spec=spec,
            folder=folder,
            paths=tuple(files["path"]) if files.height else (),
            size_bytes=int(files["size_bytes"].sum()) if files.height else 0,
            above=above,
            through=through,
            horizon=int(properties.get(TOMBSTONE_HORIZON) or 0),
        )

    def has_deletions_since(self, epoch: int) -> bool:
        """Whether no deletion of a later epoch has been dropped."""
        return self.horizon <= epoch

    def newest_rows(self) -> pl.DataFrame:
        """The newest row of each key, in the order of key bytes, including deleted ones.

        Columns: key columns, value columns, ``_ts`` (Int64, ms), ``_epoch``, ``_deleted``.
        """
        schema = stored_schema(changelog_spec(self.spec))
        columns = pl.Schema({name: dtype for name, dtype in schema.items() if name not in ("task", "segment")})
        with naming_damage(self.folder, self.paths):
            rows = read_files(self.folder, self.paths, columns)
        rows = rows.filter(pl.col("_epoch") > self.above, pl.col("_epoch") <= self.through)
        order = key_order(self.spec)
        by = order if rows["_epoch"].is_sorted() else [*order, "_epoch"]
        rows = rows.sort(by, maintain_order=True)
        is_newest = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(-1)) for name in order)
        is_last = pl.int_range(pl.len()) == pl.len() - 1
        return rows.filter(is_newest | is_last).with_columns(pl.col("_ts").dt.timestamp("ms"))


@dataclass(frozen=True)
class EncodedRows:
    """Rows as a store holds them, in key order."""

    keys: list[bytes]
    values: list[bytes | None]
    """None for a deleted key."""
    long_keys: dict[bytes, bytes]
    """The whole key by hash, for keys that were too long."""
    rows: pl.DataFrame
    """The rows as given, aligned with ``keys``."""


def encoded(spec: StoreSpec, rows: pl.DataFrame) -> Iterator[EncodedRows]:
    """``newest_rows`` as the bytes that a store holds, batch by batch."""
    codec, values, may_be_long = KeyCodec(spec.key, spec.kind), RowCodec(spec.value), _may_be_long(spec, rows)
    for part in rows.iter_slices(rows.height if may_be_long else BATCH_ROWS):
        keys, long_keys = codec.encode(part), dict[bytes, bytes]()
        if may_be_long:
            keys, long_keys = shortened(spec.name, keys)
        if long_keys:  # a hash does not sort like the key it stands for
            order = sorted(range(len(keys)), key=keys.__getitem__)
            keys, part = [keys[index] for index in order], part[order]
        packed: list[bytes | None] = list(values.encode(part))
        if part["_deleted"].any():
            packed = [None if deleted else value for deleted, value in zip(part["_deleted"], packed, strict=True)]
        yield EncodedRows(keys, packed, long_keys, part)


def key_order(spec: StoreSpec) -> list[str]:
    """The key columns in the order of their bytes in a key."""
    before, after = TIMES_AROUND[spec.kind]
    return [*before, *(name for name in spec.key if name not in (*before, *after)), *after]


def _may_be_long(spec: StoreSpec, rows: pl.DataFrame) -> bool:
    """Whether a key could be longer than LMDB allows; each byte of text may need a second one."""
    texts = [name for name, dtype in spec.key.items() if dtype in (pl.String, pl.Binary)]
    sizes = rows.select((pl.col(name).cast(pl.Binary).bin.size().max()).fill_null(0) for name in texts)
    most = 2 * sum(sizes.row(0)) if texts and rows.height else 0
    return most + 18 * len(spec.key) >= MAX_KEY_BYTES
