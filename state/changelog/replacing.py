"""What a task's changelog gains so that it says what that of another application folder does.

Nothing is taken out of it: earlier epochs stay as history, and whoever follows it hears of what is gone. Deleting all
that stands for tasks which nobody goes on with is ``weir.state.changelog.forgetting``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from weir.state.changelog.reading import TaskChangelog
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.files import write_file
from weir.state.types import FileEntry, StoreSpec


def replaced_rows(
    app_folder: Path, source_folder: Path, spec: StoreSpec, task: str, *, through: int, source_through: int, epoch: int
) -> Iterator[FileEntry]:
    """Write, for a commit of ``epoch``, the rows that stand for ``task`` in the changelog of the application at
    ``source_folder``, and of the epoch before it the deletion of those that stand in that at ``app_folder`` alone: a
    key may have come to another task, whose row of it is the newer one.

    What stands there is as of ``source_through``, here as of ``through``, which is older than both epochs; all of that
    must be in the tables. Memory is bounded by one store of one task.
    """
    made = _standing(source_folder, spec, task, source_through)
    gone = _standing(app_folder, spec, task, through).join(made, on=list(spec.key), how="anti", nulls_equal=True)
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


def _standing(app_folder: Path, spec: StoreSpec, task: str, through: int) -> pl.DataFrame:
    """Columns as those of ``TaskChangelog.newest_rows``, with ``_ts`` as the table has it."""
    rows = TaskChangelog.of(app_folder, spec, task, through=through).newest_rows()
    return rows.filter(~pl.col("_deleted")).with_columns(pl.col("_ts").cast(pl.Datetime("ms", "UTC")))
