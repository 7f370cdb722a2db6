"""The files that a table's log names, as a start and a restore look for them: from the log's replay, and by Delta's
libraries only where that cannot be read here, or the table has features that this does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import polars as pl

from weir.state.commit.checkpoints import opened
from weir.state.commit.damage import naming_damage
from weir.state.commit.replay import Protocol, replay
from weir.state.commit.tables import file_actions
from weir.state.frames import framed
from weir.state.storage.contract import Folder
from weir.state.storage.places import Place, folder_at

_PLAIN_READER_VERSION = 1
_FEATURES = frozenset({"timestampNtz"})
"""Table features for readers that leave the files of a table as its log names them."""


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
    if (found := _replayed(folder, ranges, partitions)) is not None:
        return found
    with naming_damage(folder):
        table = opened(folder)
        return file_actions(table, ranges=ranges), table.metadata().configuration


def _replayed(
    folder: Folder, ranges: Sequence[str], partitions: Sequence[str]
) -> tuple[pl.DataFrame, Mapping[str, str | None]] | None:
    found = replay(folder, with_files=True)
    if found is None or not _is_known(found.protocol):
        return None
    layout = found.layout
    decoder = _stats_decoder(tuple(ranges))
    try:
        stats = [decoder.decode(text or "{}") for text in found.files["stats"]]
        columns = [pl.Series("num_records", [each.numRecords for each in stats], pl.Int64())]
        for end in ("min", "max"):
            values = [getattr(each, f"{end}Values") for each in stats]
            columns += [
                pl.Series(f"{end}.{name}", [getattr(each, name) for each in values], layout.columns[name])
                for name in ranges
            ]
    except (msgspec.DecodeError, TypeError, OverflowError, pl.exceptions.PolarsError):  # of another writer
        return None
    named = (found.files.get_column(name) for name in ("path", "size_bytes"))
    divided = (found.files.get_column(f"partition.{name}") for name in partitions)
    return framed([*named, *columns, *divided]), layout.properties


@cache
def _stats_decoder(ranges: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """What reads a file's statistics: its number of rows, and the least and greatest values of ``ranges``."""
    ends = msgspec.defstruct("Ends", [(name, Any, None) for name in ranges])
    none = msgspec.field(default_factory=ends)
    fields = [("numRecords", int | None, None), ("minValues", ends, none), ("maxValues", ends, none)]
    return msgspec.json.Decoder(msgspec.defstruct("Stats", fields))


def _is_known(protocol: Protocol) -> bool:
    features = {*(protocol.reader_features or ())}
    return features <= _FEATURES and (protocol.min_reader_version <= _PLAIN_READER_VERSION or bool(features))
