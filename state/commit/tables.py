"""Delta tables of an application: created from their specs, appended to once per commit, and read.

An append carries the application's Delta transaction at the commit's version, so repeating it changes nothing. Which
commits to append, and in what order, is up to ``weir.state.commit.protocol``; writing the files belongs to
``weir.state.commit.files``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import unquote, urlsplit

import polars as pl
from deltalake import DeltaTable

from weir.state.commit.checkpoints import LOG, RETENTION, entry_name, last_checkpoint, write_checkpoint
from weir.state.commit.damage import naming_damage
from weir.state.commit.delta_log import DeltaLog, first_entry
from weir.state.commit.evolution import (
    KEYS_PROPERTY,
    TOMBSTONE_HORIZON,
    UPDATES_PROPERTY,
    delta_schema,
    evolution,
    evolve,
    needed,
)
from weir.state.commit.files import WIDER, stored_schema
from weir.state.commit.record import TableSwap
from weir.state.commit.swap import taken_out
from weir.state.commit.upserts import upserts_of
from weir.state.errors import AppendOnlyError, TableBehindError
from weir.state.frames import with_series
from weir.state.storage.places import Place, folder_at, is_table, storage_options, table_at
from weir.state.types import FileEntry, StateId, TableSpec

REPLACED_RETENTION = {"delta.deletedFileRetentionDuration": "interval 10 minutes"}
"""How long files that left a table of upserts stay for readers of an older version; every refresh replaces some."""
CHECKPOINT_EVERY_VERSIONS = 100
"""Readers read every log entry since the last checkpoint, 0.1 ms each."""
LOG_RETENTION = {RETENTION: "interval 1 hours"}
"""How long Delta's own log keeps entries that the checkpoint before the newest covers: readers list them all, 2 us
each. The application's commits are in its commit log; a table keeps older data for as long as vacuum does."""

_ORDER = ("_epoch", "_seq")
_DELETED = "_deleted"
_ATTEMPTS = 3


class AppendTable:
    """One Delta table and the application's transaction in it. Between appends it keeps what it has read of the log."""

    def __init__(self, place: Place, name: str, application: str) -> None:
        """Open a table that exists."""
        self.folder, self.name, self.application = folder_at(place), name, application
        self._log = DeltaLog(self.folder, application)
        self._prepared = 0
        self._checkpointed = last_checkpoint(self.folder)

    @classmethod
    def create(
        cls, app_folder: Place, spec: TableSpec, application: str, properties: Mapping[str, str] | None = None
    ) -> AppendTable:
        """Open a table, creating it first, with ``properties``, if it is missing, and adding columns that are.

        Raises:
            TableSchemaError: It exists with columns that cannot become those of ``spec``.
        """
        folder = folder_at(app_folder) / spec.name
        if not is_table(folder):
            (folder / LOG).make()
            (folder / LOG).put_if_absent(entry_name(0), _first_entry(spec, properties or {}))
        table = cls(folder, spec.name, application)
        table.evolve(app_folder, spec, is_shown=UPDATES_PROPERTY in (properties or {}))
        return table

    @classmethod
    def create_upserts(cls, app_folder: Place, updates: TableSpec, application: str) -> AppendTable | None:
        """Open the table that shows the standing rows of ``updates``, creating it first if it is missing; None if there
        is to be none.

        Raises:
            AppendOnlyError: Its rows may not be replaced.
            TableModeError, TableSchemaError: As for ``evolution``.
        """
        shown = upserts_of(updates)
        if shown is None:
            return None
        evolution(app_folder, updates)
        table = cls.create(app_folder, shown, application, {**REPLACED_RETENTION, UPDATES_PROPERTY: updates.name})
        if table._log.is_append_only:
            raise AppendOnlyError(table.folder.uri)
        return table

    @property
    def version(self) -> int:
        """The application's transaction version as last read; 0 before the first."""
        return self._log.transaction

    def refresh(self) -> None:
        """Read what was added to the table's log since the last read, and make sure that it is on disk."""
        self._log.refresh()

    def evolve(
        self,
        app_folder: Place,
        spec: TableSpec,
        *,
        is_shown: bool = False,
        epoch: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Give the table what ``spec`` needs, if it lacked that when its log was last read: ``evolution.evolve``."""
        if needed(app_folder, self._log.layout, spec, is_shown=is_shown):
            with naming_damage(self.folder):
                evolve(app_folder, spec, is_shown=is_shown, epoch=epoch, check=check)
            self.refresh()

    def prepare(self, version: int, files: Sequence[FileEntry]) -> None:
        """Look whether all is there that an append at ``version`` needs; the next one then need not wait for that.

        Raises:
            TableBehindError: A file is gone.
            DeltaLogGoneError: The table's log is.
        """
        look = partial(check_files, self.application, self.folder, self.name, version, files)
        looks: list[Callable[[], None]] = [look, self._log.prepare]
        self.folder.at_once(looks)
        self._prepared = version

    def stage(self, version: int, files: Sequence[FileEntry]) -> None:
        """Write the entry of an append at ``version`` that has no swaps: ``DeltaLog.stage``."""
        self._log.stage(version, files)

    def close(self) -> None:
        """Remove what was staged for an append that was not made."""
        self._log.drop_staged()

    def append(self, version: int, files: Sequence[FileEntry], swaps: Sequence[TableSwap] = ()) -> None:
        """Add a commit's files and carry out its swaps, unless the table already has that commit.

        A write can succeed and still raise, so after any error the version is read back before the next attempt.

        Raises:
            TableBehindError, DeltaLogGoneError: As for ``prepare``.
        """
        added = [*files, *(entry for swap in swaps for entry in swap.files)]
        failures = 0
        while self.version < version:
            if self._prepared != version:
                self.prepare(version, added)
            self._prepared = 0
            try:
                if swaps:
                    self._swap(version, added, swaps)
                else:
                    self.write(version, added)
            except Exception:
                self.refresh()
                failures += 1
                if self.version < version and failures == _ATTEMPTS:
                    raise

    def write(self, version: int, files: Sequence[FileEntry]) -> bool:
        """One Delta commit with the application's transaction at ``version``; False if that version has moved.

        A writer that slept until the log was cleaned up notices only by reading ``version`` afterwards.
        """
        return self._log.append(version, files)

    def replace(self, version: int, files: Sequence[FileEntry], removed: pl.DataFrame) -> bool:
        """Like ``write``, also removing files that ``snapshot`` has; False, with nothing written, if any other writer
        was quicker."""
        return self._log.append(version, files, removed)

    def snapshot(self) -> DeltaTable:
        """The table as it was when its log was last read."""
        return table_at(self.folder, self._log.version)

    def _swap(self, version: int, added: Sequence[FileEntry], swaps: Sequence[TableSwap]) -> None:
        """Like ``write``, also removing what the swaps replace; does nothing if another writer was quicker."""
        # 4. The table read as it is
        self._log.refresh()
        table = table_at(self.folder)
        if self._log.transaction < version and table.version() == self._log.version:
            removed, kept = taken_out(self.folder, self.name, table, file_actions(table), swaps)
            # 6. One Delta entry
            self._log.append(version, [*added, *kept], removed)

    def files(self) -> pl.DataFrame:
        """The table's files as of now, as ``file_actions`` has them."""
        with naming_damage(self.folder):
            return file_actions(table_at(self.folder))

    def is_checkpoint_due(self) -> bool:
        """Whether enough versions have passed since the last one to make opening the table slow."""
        return self._log.version - self._checkpointed >= CHECKPOINT_EVERY_VERSIONS

    def checkpoint(self) -> None:
        """Write a Delta checkpoint and drop old log entries; uses its own handle, so any thread may call it."""
        self._checkpointed = write_checkpoint(self.folder)
        (self.folder / LOG).remove_leftovers()


def _first_entry(spec: TableSpec, properties: Mapping[str, str]) -> bytes:
    keys = {KEYS_PROPERTY: ",".join(spec.keys)} if spec.keys else {}
    return first_entry(delta_schema(stored_schema(spec)), spec.partition_by, {**LOG_RETENTION, **keys, **properties})


def check_files(application: str, place: Place, table: str, version: int, files: Sequence[FileEntry]) -> None:
    """Raise ``TableBehindError`` unless all files are in the table's folder (Delta would not notice)."""
    folder = folder_at(place)
    for entry, found in zip(files, folder.at_once(partial(folder.find, entry.path) for entry in files), strict=True):
        if found is None or found.size_bytes != entry.size_bytes:
            raise TableBehindError(application, table, version_text(version), entry.path)


def version_text(version: int) -> str:
    """The state id that a transaction version stands for, as text."""
    return str(StateId(version >> 32, version & 0xFFFF_FFFF))


def file_actions(table: DeltaTable, *, ranges: Sequence[str] = ()) -> pl.DataFrame:
    """One row per file: ``path``, ``size_bytes``, ``num_records``, ``partition.*``, ``min.*``, ``max.*``.

    Least and greatest values are null where another writer left them out: Spark has those of the first 32 columns.
    Columns that no file has are missing, but those of ``ranges``.
    """
    actions = pl.Series(table.get_add_actions(flatten=True)).struct.unnest()
    paths = actions["path"].to_list()
    if any("%" in path for path in paths):
        actions = with_series(actions, pl.Series("path", [unquote(path) for path in paths]))
    wanted = (f"{end}.{name}" for name in ranges for end in ("min", "max"))
    lacking = [name for name in wanted if name not in actions.columns]
    return with_series(actions, *(pl.Series(name, [None] * actions.height, pl.Null) for name in lacking))


def scan_table(table: DeltaTable) -> pl.LazyFrame:
    """All rows of a table as stored.

    ``pl.scan_delta`` looks for the files under the table's URL, and finds none where that escapes characters of the
    folder's path, such as spaces. It also fails where files of other writers, such as Spark's OPTIMIZE, have the
    partition in their path, and those written here have it as a column. Then the files are scanned by their real paths.
    """
    uri, partitions = table.table_uri, table.metadata().partition_columns
    is_on_disk = urlsplit(uri).scheme in ("", "file")
    escaped = urlsplit(uri).path if is_on_disk else uri
    root = unquote(escaped) if is_on_disk else uri
    if root == escaped and not partitions:
        return pl.scan_delta(table)
    paths = [path.removeprefix(escaped) for path in table.file_uris()]
    apart = [bool(partitions) and path.lstrip("/").startswith(f"{partitions[0]}=") for path in paths]
    if root == escaped and (all(apart) or not any(apart)):
        return pl.scan_delta(table)
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise ValueError(f"{root} has deletion vectors, which are not read in folders like this; rename the folder")
    schema = pl.scan_delta(table).collect_schema()
    hive_schema = {name: schema[name] for name in partitions}
    within = {name: dtype for name, dtype in schema.items() if name not in hive_schema}
    scans = [
        pl.scan_parquet(
            [root + path for path, is_one in zip(paths, apart, strict=True) if is_one is is_apart],
            schema=within if is_apart else schema,
            hive_schema=hive_schema if is_apart else None,
            hive_partitioning=is_apart,
            missing_columns="insert",
            extra_columns="ignore",
            cast_options=WIDER,
            storage_options=None if is_on_disk else storage_options(folder_at(uri)),
        ).select(list(schema))
        for is_apart in sorted(set(apart))
    ]
    return pl.concat(scans) if scans else pl.LazyFrame(schema=schema)


def read_rows(folder: Place, version: int | None = None) -> pl.DataFrame:
    """All rows of a table as stored, at a Delta version or the newest one."""
    with naming_damage(folder):
        return scan_table(table_at(folder, version)).collect()


def read_table(folder: Place | str, version: int | None = None) -> pl.DataFrame:
    """The current rows of an output table, now or at a Delta version; ``folder`` may be the URI of one on an object
    store.

    A table of facts gives all its rows. A table of updates gives the newest row of each key, by ``_epoch`` and then
    ``_seq`` where there is one, without the deleted ones.

    Examples:
        >>> customers = read_table(Path(".weir/warehouse/shop/customers"))
        >>> customers.sort("customer").select("customer", "orders", "cents").rows()
        [('ann', 2, 1200), ('bob', 1, 200)]
    """
    place = folder_at(folder)
    with naming_damage(place):
        table = table_at(place, version)
        return standing_rows(scan_table(table).collect(), key_columns(table))


def count_rows(folder: Place, *, read_at_most: int) -> int | None:
    """How many rows ``read_table`` would return.

    For a table of facts the Delta log knows. For a table of updates every row's key has to be read: None if there are
    more rows than ``read_at_most``.
    """
    with naming_damage(folder):
        table = table_at(folder)
        files, keys = file_actions(table), key_columns(table)
    stored = 0 if files.is_empty() else int(files["num_records"].sum())
    if not keys or not stored:
        return stored
    if stored > read_at_most:
        return None
    names = [name for name in (*keys, *_ORDER, _DELETED) if name in {field.name for field in table.schema().fields}]
    return standing_rows(scan_table(table).select(names).collect(), keys).height


def key_columns(table: DeltaTable) -> list[str]:
    """The key columns of a table of updates; empty for a table of facts."""
    names = table.metadata().configuration.get(KEYS_PROPERTY)
    return names.split(",") if names else []


def tombstone_horizon(table: DeltaTable) -> int:
    """The newest epoch from which compaction may have dropped a deletion; 0 before the first."""
    return int(table.metadata().configuration.get(TOMBSTONE_HORIZON, 0))


def newest_of_each_key(updates: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The newest row of each key, deleted or not, oldest first."""
    order = [name for name in _ORDER if name in updates.columns]
    return updates.sort(order).unique(keys, keep="last", maintain_order=True)


def standing_rows(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """All rows if there are no ``keys`` (facts); else the newest row per key, unless deleted (updates)."""
    if not keys:
        return rows
    newest = newest_of_each_key(rows, keys)
    return newest.filter(~pl.col(_DELETED)) if _DELETED in rows.columns else newest
