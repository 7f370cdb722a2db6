"""Tables that get other columns because the program that writes them has changed.

Columns are added, null in the rows that are there. A changelog may also get wider types: its rows are written anew,
since the libraries that read Delta tables here do not know Delta's own type widening. Columns that nobody writes any
more stay in it. All other changes are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import polars as pl
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError

from weir.state.commit.delta_log import rewrite
from weir.state.commit.files import read_files, stored_schema, write_file
from weir.state.commit.upserts import upserts_of
from weir.state.commit.widening import is_wider
from weir.state.errors import TableModeError, TableSchemaError
from weir.state.types import TableSpec

KEYS_PROPERTY = "weir.keys"
"""The table property that names the key columns of a table of updates, separated by commas."""
UPDATES_PROPERTY = "weir.updates"
"""The table property of a table of upserts that names its table of updates (``weir.state.changelog.upserts``)."""
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """What a table needs before a program can write to it; columns in polars' types, as stored."""

    table: str
    added: Mapping[str, pl.DataType]
    widened: Mapping[str, pl.DataType]

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    def __str__(self) -> str:
        told = [f"column {name} {dtype} is added" for name, dtype in self.added.items()]
        return ", ".join([*told, *(f"column {name} is now {dtype}" for name, dtype in self.widened.items())])


def is_upserts(table: DeltaTable) -> bool:
    """Whether it shows the standing rows of a table of updates."""
    return UPDATES_PROPERTY in table.metadata().configuration


def evolution(app_folder: Path, spec: TableSpec) -> Evolution | None:
    """What the table needs; None if it does not exist. The table of upserts that shows it, if one does, is checked too.

    Raises:
        TableModeError: A table was written in another mode.
        TableSchemaError: Its columns or keys cannot become those of ``spec``.
    """
    if (shown := upserts_of(spec)) is not None:
        _evolution(app_folder, shown, is_shown=True)
    return _evolution(app_folder, spec, is_shown=False)


def _evolution(app_folder: Path, spec: TableSpec, *, is_shown: bool) -> Evolution | None:
    if not DeltaTable.is_deltatable(str(app_folder / spec.name)):
        return None
    table = DeltaTable(app_folder / spec.name)
    if is_upserts(table) != is_shown:
        raise TableModeError(app_folder.name, spec.name, "upsert" if is_shown else "append")
    keys = table.metadata().configuration.get(KEYS_PROPERTY, "")
    if keys != ",".join(spec.keys):
        raise TableSchemaError(spec.name, _keyed(",".join(spec.keys)), _keyed(keys))
    wanted, found = stored_schema(spec), pl.scan_delta(table).collect_schema()
    added = {name: dtype for name, dtype in wanted.items() if name not in found}
    other = {name: dtype for name, dtype in wanted.items() if name in found and found[name] != dtype}
    is_refused = any(name in spec.keys for name in (*added, *other))
    if spec.evolves_freely:
        is_refused |= any(not is_wider(str(found[name]), str(dtype)) for name, dtype in other.items())
    else:
        is_refused |= bool(other) or not wanted.keys() >= set(found)
    if is_refused:
        raise TableSchemaError(spec.name, _columns(wanted), _columns(found))
    return Evolution(table=spec.name, added=added, widened=other)


def evolve(app_folder: Path, spec: TableSpec, *, is_shown: bool = False) -> None:
    """Give the table what it needs. If this is interrupted, the next call goes on.

    ``is_shown`` is for a table of upserts.

    Raises:
        TableSchemaError: See ``evolution``.
    """
    failures = 0
    while needed := _evolution(app_folder, spec, is_shown=is_shown):
        try:
            if needed.widened:
                _write_anew(app_folder, spec, needed)
            else:
                DeltaTable(app_folder / spec.name).alter.add_columns(delta_schema(needed.added).fields)
        except CommitFailedError:  # another writer was quicker
            failures += 1
            if failures == _ATTEMPTS:
                raise


def delta_schema(columns: Mapping[str, pl.DataType]) -> Schema:
    """Columns, as stored, in Delta's types."""
    return Schema.from_arrow(pl.DataFrame(schema=dict(columns)).to_arrow().schema)


def _write_anew(app_folder: Path, spec: TableSpec, needed: Evolution) -> None:
    """Replace all files by ones with the wider types, and the schema, in one Delta commit; does nothing if another
    writer was quicker."""
    folder = app_folder / spec.name
    table = DeltaTable(folder)
    files = pl.Series(table.get_add_actions(flatten=True)).struct.unnest()
    files = files.with_columns(pl.Series("path", [unquote(path) for path in files["path"]], dtype=pl.String))
    stored = {**pl.scan_delta(table).collect_schema(), **needed.widened, **needed.added}
    wider = TableSpec(name=spec.name, schema=pl.Schema(stored), partition_by=spec.partition_by, keys=spec.keys)
    columns = pl.Schema({name: dtype for name, dtype in stored.items() if name not in spec.partition_by})
    written = []
    for file in files.iter_rows(named=True):
        rows = read_files([folder / file["path"]], columns)
        values = {name: str(file[f"partition.{name}"]) for name in spec.partition_by}
        written.append(write_file(app_folder, wider, rows, values))
    rewrite(folder, table, delta_schema(stored), files, written)


def _columns(columns: Mapping[str, pl.DataType]) -> str:
    return ", ".join(f"{field.name} {json.loads(field.type.to_json())}" for field in delta_schema(columns).fields)


def _keyed(keys: str) -> str:
    return f"its updates keyed by {keys.replace(',', ', ')}" if keys else "rows that all count, without a key"
