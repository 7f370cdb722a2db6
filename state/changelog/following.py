"""Users' own stores that follow one of an application's stores: they get what its changelog has gained, once committed.

Whether a store keeps its own offset or has it kept in a file belongs to ``weir.state.stores.custom``; the offset is the
next epoch to read from the changelog. It is kept for the changelog's name and for its table's id, since after a removal
or a reset another table may have the name. After a crash, rows may come twice but are never missing, and the newest row
of a key comes last.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from weir.state.changelog.rows import changelog_spec
from weir.state.commit.files import read_files, stored_schema, with_epochs
from weir.state.commit.tables import file_actions, tombstone_horizon
from weir.state.errors import DeletionsGoneError, TableReplacedError
from weir.state.storage.places import Place, is_table, table_at
from weir.state.stores.custom import FollowingStore, OffsetKeeper
from weir.state.types import StoreSpec

PARTITION = 0
"""A changelog is a single log, however many tasks write to it."""


class Follower:
    """Hands a store what the changelog of ``spec`` has gained since the last call."""

    def __init__(self, app_folder: Place, spec: StoreSpec, store: FollowingStore, folder: Path) -> None:
        """``folder`` holds the position file of a store that does not keep its own offset.

        Raises:
            PositionsFileError: The position file cannot be read.
        """
        self._table, self._app_folder = changelog_spec(spec), app_folder
        self._store, self._keeper = store, OffsetKeeper(store, folder)
        self._seen = "", -1

    def follow(self) -> None:
        """Hand over everything committed by now, then commit the store.

        Raises:
            DeletionsGoneError: Compaction has dropped deletions that the store has not seen.
            TableReplacedError: The changelog is another one than the store has followed.
        """
        folder = self._app_folder / self._table.name
        if not is_table(folder):
            return
        table = table_at(folder)
        known, of_table = f"{self._table.name}@", f"{self._table.name}@{table.metadata().id}"
        if (of_table, table.version()) == self._seen:
            return
        begin = self._keeper.committed_offset(of_table, PARTITION)
        if begin is None and self._keeper.committed_offset(known, PARTITION) is not None:
            raise TableReplacedError(self._store.name, self._table.name)
        if begin is None:  # nothing yet, or an offset from before tables were told apart
            begin = self._keeper.committed_offset(self._table.name, PARTITION) or 0
        horizon = tombstone_horizon(table)
        if 0 < begin <= horizon:
            raise DeletionsGoneError(self._store.name, self._table.name, begin, horizon)
        files = with_epochs(folder, file_actions(table, ranges=["_epoch"]))
        files = files.filter(pl.col("max._epoch") >= begin).sort("min._epoch", "max._epoch")
        if not files.is_empty():
            stored = stored_schema(self._table).items()
            columns = pl.Schema({name: dtype for name, dtype in stored if name not in self._table.partition_by})
            for path in files["path"]:
                rows = read_files(folder, [path], columns)
                rows = rows.filter(pl.col("_epoch") >= begin).sort("_epoch", maintain_order=True)
                self._store.put_rows(rows.unique(self._table.keys, keep="last", maintain_order=True).drop("_epoch"))
            through = int(files["max._epoch"].max())  # type: ignore[arg-type]
            self._keeper.commit({known: {PARTITION: through + 1}, of_table: {PARTITION: through + 1}})
        self._seen = of_table, table.version()
