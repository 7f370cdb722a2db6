"""Changelog rows that give a task the state that another application folder's changelog has.

Nothing is removed from the changelog: earlier epochs stay as history, and whoever follows it sees the deletions.
Deleting all rows of tasks that no longer exist belongs to ``weir.state.changelog.forgetting``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from weir.state.changelog.reading import TaskChangelog
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec, has_rows
from weir.state.commit.evolution import evolution
from weir.state.commit.files import stored_schema, write_file
from weir.state.storage.places import Place
from weir.state.types import FileEntry, StoreSpec


def replaced_rows(
    app_folder: Place,
    source_folder: Place,
    spec: StoreSpec,
    task: str,
    *,
    through: int,
    source_through: int,
    epoch: int,
) -> Iterator[FileEntry]:
    """Write, for a commit of ``epoch``, the current rows of ``task`` in the changelog at ``source_folder``, and, with
    the epoch before it, deletions of keys that only the changelog at ``app_folder`` has. The deletions are
    the older rows because a key may have moved to another task, whose row must be the newer one.

    Where the application's own changelog has other keys, there is nothing to delete: its rows go with them.

    The source is read through ``source_through``, the application's own changelog through ``through``, which is older
    than both epochs; the tables must have everything up to there. Memory is bounded by one store of one task.
    """
    made = standing_rows(source_folder, spec, task, source_through)
    before = evolution(app_folder, changelog_spec(spec))
    gone = made.clear()
    if before is not None and before.keys is None:
        keys = standing_rows(app_folder, replace(spec, value=pl.Schema()), task, through)
        gone = keys.join(made, on=list(spec.key), how="anti", nulls_equal=True)
    nothing = [
        pl.lit(None, dtype).alias(name)
        for name, dtype in made.schema.items()
        if name not in (*spec.key, "_epoch", "_deleted")
    ]
    for rows, of_epoch in ((gone.with_columns(*nothing, _deleted=pl.lit(True)), epoch - 1), (made, epoch)):
        if rows.height:
            yield write_file(
                app_folder,
                changelog_spec(spec),
                rows.with_columns(_epoch=pl.lit(of_epoch, pl.Int64())),
                {"task": task, "segment": str(of_epoch // SEGMENT_EPOCHS)},
            )


def standing_rows(app_folder: Place, spec: StoreSpec, task: str, through: int) -> pl.DataFrame:
    """The columns of ``TaskChangelog.newest_rows``, but ``_ts`` as the table has it; no rows if there is no table."""
    if has_rows(app_folder, spec.name):
        rows = TaskChangelog.of(app_folder, spec, task, through=through).newest_rows()
    else:
        rows = pl.DataFrame(schema=stored_schema(changelog_spec(spec))).drop("task", "segment")
    return rows.filter(~pl.col("_deleted")).with_columns(pl.col("_ts").cast(pl.Datetime("ms", "UTC")))
