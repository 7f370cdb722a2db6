"""The files that a table's log names, as a start and a restore look for them: from the log's replay, and by Delta's
libraries only where that cannot be read here, or the table has features that this does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from weir.state.commit.checkpoints import opened
from weir.state.commit.damage import naming_damage
from weir.state.commit.replay import Protocol, replay
from weir.state.commit.tables import file_actions
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
    ends = pl.Struct({name: layout.columns[name] for name in ranges})
    types = pl.Struct({"numRecords": pl.Int64(), "minValues": ends, "maxValues": ends})
    try:
        stats = found.files["stats"].str.json_decode(types).struct.unnest()
    except pl.exceptions.PolarsError:  # of another writer
        return None
    least, most = stats["minValues"].struct.unnest(), stats["maxValues"].struct.unnest()
    files = pl.DataFrame(
        [
            found.files["path"],
            found.files["size_bytes"],
            stats["numRecords"].alias("num_records"),
            *(least[name].alias(f"min.{name}") for name in ranges),
            *(most[name].alias(f"max.{name}") for name in ranges),
            *(found.files[f"partition.{name}"] for name in partitions),
        ]
    )
    return files, layout.properties


def _is_known(protocol: Protocol) -> bool:
    features = {*(protocol.reader_features or ())}
    return features <= _FEATURES and (protocol.min_reader_version <= _PLAIN_READER_VERSION or bool(features))
