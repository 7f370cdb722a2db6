"""The files that a table's log names, as a start and a restore look for them: by our own code, as logs are opened.

Delta's libraries take some ten times as long, and on an object store ask for more. They read the logs in which a
checkpoint stands for entries, and those of tables with features that this does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import polars as pl

from weir.state.commit.checkpoints import LOG
from weir.state.commit.damage import naming_damage
from weir.state.commit.delta_log import entries_from_first
from weir.state.commit.layout import Layout
from weir.state.commit.tables import file_actions
from weir.state.storage.contract import Folder
from weir.state.storage.places import Place, folder_at, table_at

_PLAIN_READER_VERSION = 1
_FEATURES = frozenset({"timestampNtz"})
"""Table features for readers that leave the files of a table as its log names them."""


class _Add(msgspec.Struct, rename="camel"):
    path: str
    size: int
    partition_values: dict[str, str | None] = msgspec.field(default_factory=dict)
    stats: str | None = None


class _Remove(msgspec.Struct):
    path: str


class _Protocol(msgspec.Struct, rename="camel"):
    min_reader_version: int
    reader_features: list[str] | None = None


class _Action(msgspec.Struct, rename="camel"):
    add: _Add | None = None
    remove: _Remove | None = None
    meta_data: Any = None
    protocol: _Protocol | None = None


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    min_values: dict[str, Any] = msgspec.field(default_factory=dict)
    max_values: dict[str, Any] = msgspec.field(default_factory=dict)


def live_files(
    place: Place, *, ranges: Sequence[str], partitions: Sequence[str] = ()
) -> tuple[pl.DataFrame, Mapping[str, str | None]]:
    """The table's files as of now, and its properties.

    Columns, as ``file_actions`` has them, and perhaps others: ``path``, ``size_bytes``, ``num_records``, ``min.*`` and
    ``max.*`` of ``ranges``, columns of numbers or texts, and ``partition.*`` of ``partitions``, columns of texts, which
    a table without files may lack.

    Raises:
        TableNotFoundError: There is none.
        DamagedFileError: Its log cannot be read.
    """
    folder = folder_at(place)
    if (found := _from_first(folder / LOG, ranges, partitions)) is not None:
        return found
    with naming_damage(folder):
        table = table_at(folder)
        return file_actions(table, ranges=ranges), table.metadata().configuration


def _from_first(
    log: Folder, ranges: Sequence[str], partitions: Sequence[str]
) -> tuple[pl.DataFrame, Mapping[str, str | None]] | None:
    entries = entries_from_first(log, _Action)
    actions = [action for entry in entries or () for action in entry]
    protocols = [action.protocol for action in actions if action.protocol is not None]
    layouts = [action.meta_data for action in actions if action.meta_data is not None]
    if entries is None or not protocols or not layouts or not _is_known(protocols[-1]):
        return None
    live: dict[str, _Add] = {}
    for entry in entries:
        for action in entry:
            if action.remove is not None:
                live.pop(action.remove.path, None)
        live |= {action.add.path: action.add for action in entry if action.add is not None}
    layout = Layout.of_action(layouts[-1])
    schema = {
        "path": pl.String(),
        "size_bytes": pl.Int64(),
        "num_records": pl.Int64(),
        **{f"min.{name}": layout.columns[name] for name in ranges},
        **{f"max.{name}": layout.columns[name] for name in ranges},
        **{f"partition.{name}": pl.String() for name in partitions},
    }
    try:
        rows = [_row(add, ranges, partitions) for add in live.values()]
    except msgspec.DecodeError:  # statistics of another writer
        return None
    return pl.DataFrame(rows, schema=schema, orient="row"), layout.properties


def _is_known(protocol: _Protocol) -> bool:
    features = {*(protocol.reader_features or ())}
    return features <= _FEATURES and (protocol.min_reader_version <= _PLAIN_READER_VERSION or bool(features))


def _row(add: _Add, ranges: Sequence[str], partitions: Sequence[str]) -> tuple[Any, ...]:
    stats = msgspec.json.decode(add.stats or "{}", type=_Stats)
    return (
        unquote(add.path),
        add.size,
        stats.num_records,
        *(stats.min_values.get(name) for name in ranges),
        *(stats.max_values.get(name) for name in ranges),
        *(add.partition_values.get(name) for name in partitions),
    )
