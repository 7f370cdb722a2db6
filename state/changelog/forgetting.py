"""Changelog rows that delete the state of tasks that no longer exist.

Without them, the rows of such tasks would stay forever in a changelog read as a table, and return with a later task of
the same name.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from weir.state.changelog.rows import SEGMENT_EPOCHS
from weir.state.commit.files import write_file
from weir.state.commit.tables import key_columns, newest_of_each_key
from weir.state.types import CHANGELOG_FOLDER, FileEntry, TableSpec


def forget_tasks(app_folder: Path, tasks: Collection[str], epoch: int) -> list[FileEntry]:
    """Write, for a commit of ``epoch``, the deletion of every current row of ``tasks`` in any changelog.

    The changelogs must already have all of the newest commit, which they do once a driver has claimed the application.
    """
    entries = []
    for log in sorted(app_folder.glob(f"{CHANGELOG_FOLDER}/*/_delta_log")):
        table = DeltaTable(log.parent)
        keys = key_columns(table)
        rows = pl.scan_delta(table)
        spec = TableSpec(
            name=f"{CHANGELOG_FOLDER}/{log.parent.name}",
            schema=rows.collect_schema(),
            partition_by=("task", "segment"),
            keys=tuple(keys),
        )
        values = [name for name in spec.schema if name not in (*keys, "_epoch", "_deleted", "task", "segment")]
        for task in sorted(tasks):
            standing = newest_of_each_key(
                rows.filter(pl.col("task") == task).select(*keys, *values, "_epoch", "_deleted").collect(), keys
            ).filter(~pl.col("_deleted"))
            if standing.height:
                gone = standing.with_columns(
                    *(pl.lit(None, spec.schema[name]).alias(name) for name in values),
                    _epoch=pl.lit(epoch, pl.Int64()),
                    _deleted=pl.lit(True),
                )
                entries.append(
                    write_file(app_folder, spec, gone, {"task": task, "segment": str(epoch // SEGMENT_EPOCHS)})
                )
    return entries
