"""The newest state of a Delta table as its log gives it: the newest checkpoint and the entries after it, read through
the storage.

Delta's libraries take longer, and ask an object store for more. They read the logs that are left to them here:
checkpoints in Delta's V2 format or without statistics as text, and whatever is damaged, since they say what is wrong.
Which features of a table are supported is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
import polars as pl

from weir.state.commit.checkpoints import LOG, checkpoint_version, complete_checkpoints, entry_name, entry_version
from weir.state.commit.damage import require_content
from weir.state.commit.files import scan_as_written
from weir.state.commit.layout import Layout
from weir.state.storage.contract import Folder
from weir.state.storage.object_store import away, is_away

_ADD = ("path", "size", "partitionValues", "stats")
"""What is read of the files that a checkpoint names."""
_STATE = ("txn", "protocol", "metaData")
"""The actions of a checkpoint that are not of files."""

Kind = TypeVar("Kind", bound=msgspec.Struct)
"""What an action is read as; fields that it lacks are passed over."""


class Protocol(msgspec.Struct, rename="camel"):
    """What a table demands of those that read or write it."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Transaction(msgspec.Struct, rename="camel"):
    """An application's transaction, which an entry carries."""

    app_id: str
    version: int


class _Add(msgspec.Struct, rename="camel"):
    path: str
    size: int
    partition_values: dict[str, str | None] = msgspec.field(default_factory=dict)
    stats: str | None = None


class Remove(msgspec.Struct):
    """A file that is no longer one of the table's."""

    path: str


class Action(msgspec.Struct, rename="camel"):
    """One line of an entry; of these fields, it has one."""

    txn: Transaction | None = None
    meta_data: Any = None
    protocol: Protocol | None = None


class _FileAction(Action, rename="camel"):
    add: _Add | None = None
    remove: Remove | None = None


_ACTIONS, _FILE_ACTIONS = msgspec.json.Decoder(Action), msgspec.json.Decoder(_FileAction)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A table's newest state."""

    version: int
    transactions: Mapping[str, int]
    """The version of each application's newest transaction."""
    protocol: Protocol
    metadata: Mapping[str, Any]
    """The action ``metaData``."""
    files: pl.DataFrame
    """One row per file: ``path``, as named on disk, ``size_bytes``, ``stats``, the text that Delta keeps, and
    ``partition.*``, texts, null where there is none; empty if files were not asked for."""

    @property
    def layout(self) -> Layout:
        """What the table is apart from its rows."""
        return Layout.of_action(self.metadata)


def replay(folder: Folder, *, with_files: bool) -> Replay | None:
    """The newest state of the table in a folder, in one list and one round of reads; None if Delta's libraries have to
    read it.

    Raises:
        DamagedFileError: An entry is empty.
        ObjectStoreAwayError: The store does not answer.
    """
    log = folder / LOG
    names = [file.name for file in log.list()]
    checkpoints = complete_checkpoints(names)
    covered = max(checkpoints, default=-1)
    versions = sorted(version for version in map(entry_version, names) if version is not None and version > covered)
    newest = max([covered, *versions, *(checkpoint_version(name) or 0 for name in names)])
    if versions != [*range(covered + 1, newest + 1)]:
        return None
    decoder: msgspec.json.Decoder[Any] = _FILE_ACTIONS if with_files else _ACTIONS
    reads: list[Callable[[], Any]] = [partial(actions_of, log, version, decoder) for version in versions]
    if checkpoints:
        reads.append(partial(_checkpoint, log, checkpoints[covered], with_files))
    try:
        found = log.at_once(reads)
    except msgspec.DecodeError:
        return None
    if any(each is None for each in found):
        return None
    entries = found[: len(versions)]
    before, named = found[-1] if checkpoints else ([], pl.DataFrame())
    actions = [*before, *(action for entry in entries for action in entry)]
    protocols = [action.protocol for action in actions if action.protocol is not None]
    metadata = [action.meta_data for action in actions if action.meta_data is not None]
    if not protocols or not metadata:
        return None
    return Replay(
        version=newest,
        transactions={action.txn.app_id: action.txn.version for action in actions if action.txn is not None},
        protocol=protocols[-1],
        metadata=metadata[-1],
        files=_files(named, entries, metadata[-1]["partitionColumns"]) if with_files else pl.DataFrame(),
    )


def actions_of(log: Folder, version: int, decoder: msgspec.json.Decoder[Kind]) -> list[Kind] | None:
    """What the entry of a version says, each action as ``decoder`` reads it; None if there is none.

    Raises:
        DamagedFileError: It is empty.
    """
    name = entry_name(version)
    try:
        content = log.get(name)
    except FileNotFoundError:
        return None
    require_content(log, name, content)
    return [decoder.decode(line) for line in content.splitlines() if line]


def _checkpoint(log: Folder, names: Sequence[str], with_files: bool) -> tuple[list[Action], pl.DataFrame] | None:
    """What a checkpoint of these files says: the actions that are not of files, and the files, with the columns
    ``_ADD``, without any if not asked for; None if Delta's libraries have to read it."""
    try:
        rows = scan_as_written(log, names)
        types = rows.collect_schema()
        adds = {name: pl.col("add").struct.field(name) for name in _names_in(types.get("add"))}
        if with_files and not adds.keys() >= {*_ADD}:
            return None
        elsewhere = [pl.col("sidecar").is_not_null()] if "sidecar" in types else []
        if with_files and "stats_parsed" in adds:
            elsewhere.append(adds["stats"].is_null() & adds["stats_parsed"].is_not_null())
        found = rows.select(
            *_STATE,
            *(adds[name] for name in _ADD if with_files),
            is_elsewhere=pl.any_horizontal(pl.lit(False), *elsewhere),
        ).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        if is_away(error):
            raise away(log.uri, error) from error
        return None
    if found["is_elsewhere"].any():
        return None
    state = found.select(_STATE).filter(pl.any_horizontal(pl.all().is_not_null()))
    actions = _ACTIONS.decode_lines(state.write_ndjson())
    return actions, found.select(_ADD).drop_nulls("path") if with_files else pl.DataFrame()


def _names_in(dtype: pl.DataType | None) -> list[str]:
    return [field.name for field in dtype.fields] if isinstance(dtype, pl.Struct) else []


def _files(covered: pl.DataFrame, entries: Iterable[list[_FileAction]], partition_by: Sequence[str]) -> pl.DataFrame:
    """Those that a checkpoint names, if there is one, as the entries after it have changed them."""
    changed: dict[str, _Add | None] = {}
    for entry in entries:
        changed |= {unquote(action.remove.path): None for action in entry if action.remove is not None}
        changed |= {unquote(action.add.path): action.add for action in entry if action.add is not None}
    texts = {f"partition.{name}": pl.String() for name in partition_by}
    added = pl.DataFrame(
        [
            (path, add.size, add.stats or None, *(add.partition_values.get(name) or None for name in partition_by))
            for path, add in changed.items()
            if add is not None
        ],
        {"path": pl.String(), "size_bytes": pl.Int64(), "stats": pl.String(), **texts},
        orient="row",
    )
    if covered.is_empty():
        return added
    if covered["path"].str.contains("%", literal=True).any():
        covered = covered.with_columns(pl.Series("path", [unquote(path) for path in covered["path"]]))
    left = covered.filter(~pl.col("path").is_in(pl.Series([*changed], dtype=pl.String()).implode())).select(
        "path",
        pl.col("size").alias("size_bytes"),
        pl.col("stats").replace("", None),
        *(
            pl.col("partitionValues").map.get(name).replace("", None).alias(f"partition.{name}")
            for name in partition_by
        ),
    )
    return pl.concat([left, added])
