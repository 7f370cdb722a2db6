"""Changelog rows that deal a store's rows out anew among its tasks: what moves is deleted where it was and written
where it belongs.

Which task a row belongs to is for the caller to say; the newest rows of a task come from
``weir.state.changelog.replacing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.files import write_file
from weir.state.storage.places import Place
from weir.state.types import FileEntry, StoreSpec


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """The rows that one task has of a store, and the tasks that are to have them."""

    spec: StoreSpec
    sub_topology: str
    """Its stored name."""
    partition: int
    rows: pl.DataFrame
    """As ``standing_rows`` gives them, with the values that they are to have."""
    targets: pl.Series
    """The partition of the task that each row belongs to."""
    is_changed: pl.Series
    """Whether a row gets other values."""

    @property
    def moves(self) -> pl.Series:
        """Whether each row leaves its task."""
        return self.targets != self.partition

    def write(self, app_folder: Place, epoch: int) -> Iterator[FileEntry]:
        """Write, for a commit of ``epoch``, what moves or changes, and, with the epoch before it, deletions of what
        leaves the task: older, because whoever reads the changelog by key takes the newest row."""
        values = [name for name in self.spec.value if name in self.rows.columns]
        gone = self.rows.filter(self.moves).with_columns(
            *(pl.lit(None, self.rows.schema[name]).alias(name) for name in (*values, "_ts")), _deleted=pl.lit(True)
        )
        if gone.height:
            yield self._file(app_folder, gone, self.partition, epoch - 1)
        is_written = self.moves | self.is_changed
        written = self.rows.filter(is_written).with_columns(self.targets.filter(is_written).alias("_target"))
        for (target,), part in sorted(written.partition_by("_target", as_dict=True, include_key=False).items()):
            yield self._file(app_folder, part, target, epoch)

    def _file(self, app_folder: Place, rows: pl.DataFrame, partition: int, epoch: int) -> FileEntry:
        return write_file(
            app_folder,
            changelog_spec(self.spec),
            rows.with_columns(_epoch=pl.lit(epoch, pl.Int64())),
            {"task": f"{self.sub_topology}_{partition}", "segment": str(epoch // SEGMENT_EPOCHS)},
        )
