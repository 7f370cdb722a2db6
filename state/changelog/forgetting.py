"""Changelog rows that delete what stores, or partitions of stores, hold that no longer exist.

Without them, such rows would stay forever in a changelog read as a table, and return with a later store or task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import polars as pl

from weir.state.changelog.rows import SEGMENT_EPOCHS, partition_of_rows
from weir.state.commit.files import write_file
from weir.state.commit.tables import file_actions, key_columns, newest_of_each_key, scan_table
from weir.state.storage.places import Place, is_table, table_at
from weir.state.types import CHANGELOG_FOLDER, FileEntry, TableSpec


def forget_stores(app_folder: Place, stores: Collection[str], epoch: int) -> list[FileEntry]:
    """Write, for a commit of ``epoch``, the deletion of every current row of ``stores``.

    The changelogs must already have all of the newest commit, which they do once a driver has claimed the application.
    """
    return forget_partitions(app_folder, dict.fromkeys(stores, 0), epoch)


def forget_partitions(app_folder: Place, kept: Mapping[str, int], epoch: int) -> list[FileEntry]:
    """The same for the rows outside the first partitions of stores, whatever task wrote them; ``kept`` is how many by
    store."""
    return [
        entry
        for store, partitions in sorted(kept.items())
        if is_table(folder := app_folder / CHANGELOG_FOLDER / store)
        for entry in _deletions(app_folder, folder, epoch, from_partition=partitions)
    ]


def _deletions(app_folder: Place, folder: Place, epoch: int, *, from_partition: int) -> Iterator[FileEntry]:
    table = table_at(folder)
    keys = key_columns(table)
    rows = scan_table(table)
    spec = TableSpec(
        name=f"{CHANGELOG_FOLDER}/{folder.name}",
        schema=rows.collect_schema(),
        partition_by=("task", "segment"),
        keys=tuple(keys),
    )
    values = [name for name in spec.schema if name not in (*keys, "_epoch", "_deleted", "task", "segment")]
    files = file_actions(table)
    gone_by = files.filter(partition_of_rows().cast(pl.Int64) >= from_partition) if files.height else files
    for task in sorted(set(gone_by["partition.task"])) if gone_by.height else ():
        standing = newest_of_each_key(
            rows.filter(pl.col("task") == task).select(*keys, *values, "_epoch", "_deleted").collect(), keys
        ).filter(~pl.col("_deleted"))
        if standing.height:
            gone = standing.with_columns(
                *(pl.lit(None, spec.schema[name]).alias(name) for name in values),
                _epoch=pl.lit(epoch, pl.Int64()),
                _deleted=pl.lit(True),
            )
            yield write_file(app_folder, spec, gone, {"task": task, "segment": str(epoch // SEGMENT_EPOCHS)})
