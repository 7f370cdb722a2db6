"""The summary of a profiled run, from the tables that it has written (``weir.pipelines.spark.profile``)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

from weir.pipelines.operations.errors import OperationError
from weir.pipelines.spark.profile import EPOCHS, SHARES

ALL = "all"


def require_folder(folder: Path) -> Path:
    """The folder for a profile, made if it is not there.

    Raises:
        OperationError: Nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise OperationError(
            f"no profile can be written to {folder} ({error.strerror}); name another folder with "
            "`--profile-folder FOLDER`"
        ) from error


def profile_summary(folder: Path) -> pl.DataFrame:
    """A row for each task in the order of its first epoch, and one for all: ``task``, ``epochs``, ``records``,
    ``seconds``, and what share of these each of ``SHARES`` had."""
    epochs = pl.read_csv(folder / EPOCHS, schema_overrides={"task": pl.String})
    of_tasks = epochs.group_by("task", maintain_order=True).agg(*_sums())
    return pl.concat([of_tasks, epochs.select(pl.lit(ALL).alias("task"), *_sums())]) if of_tasks.height else of_tasks


def _sums() -> list[pl.Expr]:
    seconds = pl.col("seconds")
    return [
        pl.len().cast(pl.Int64).alias("epochs"),
        pl.col("records").sum(),
        seconds.sum(),
        *((pl.col(name) * seconds).sum().truediv(seconds.sum()).alias(name) for name in SHARES),
    ]
