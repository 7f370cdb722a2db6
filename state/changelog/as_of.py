"""A store's state as of any commit, read from its changelog: all tasks together, as one frame.

What a running task holds now is read from its local store (``weir.pipelines.state_reader``); restoring a task
belongs to ``weir.state.changelog.restore``.
"""

from __future__ import annotations

import polars as pl

from weir.state.changelog.rows import changelog_spec
from weir.state.commit.files import read_files, stored_schema, with_epochs
from weir.state.commit.tables import file_actions
from weir.state.errors import HistoryGoneError
from weir.state.storage.places import Place, table_at
from weir.state.types import StoreSpec


def state_as_of(app_folder: Place, store: StoreSpec, epoch: int) -> pl.DataFrame:
    """The rows that the store held at the commit of ``epoch``: ``task``, key and value columns, ``_ts``, ``_epoch``.

    ``_epoch`` is the epoch that wrote the row; rows are sorted by task and key columns. An epoch between two commits
    gives the state of that epoch.

    Raises:
        HistoryGoneError: Compaction has merged this epoch with newer ones and kept only the newest rows.
    """
    spec = changelog_spec(store)
    folder = app_folder / spec.name
    files = with_epochs(folder, file_actions(table_at(folder), ranges=["_epoch"]))
    columns = pl.Schema({name: dtype for name, dtype in stored_schema(spec).items() if name not in spec.partition_by})
    schema = pl.Schema({name: spec.schema[name] for name in ("task", *columns)})
    parts = [pl.DataFrame(schema=schema)]
    if not files.is_empty():
        merged = files.filter(pl.col("min._epoch") <= epoch, pl.col("max._epoch") > epoch)
        if merged.height:
            raise HistoryGoneError(spec.name, epoch, int(merged["max._epoch"].max()))  # type: ignore[arg-type]
        for path, task in files.filter(pl.col("max._epoch") <= epoch).select("path", "partition.task").iter_rows():
            rows = read_files(folder, [path], columns)
            parts.append(rows.select(pl.lit(task).alias("task"), *columns).cast(schema))
    partition = pl.col("task").str.split("_").list.last()
    return (
        pl.concat(parts)
        .with_columns(partition.alias("_partition"))
        .sort("_epoch", maintain_order=True)
        .unique(["_partition", *store.key], keep="last", maintain_order=True)
        .filter(~pl.col("_deleted"))
        .drop("_deleted", "_partition")
        .sort("task", *store.key)
    )
