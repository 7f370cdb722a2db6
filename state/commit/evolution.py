"""Tables that get other columns because the program that writes them has changed.

Columns and fields of structs are added, null in the rows that are there. A changelog takes more, since what a store may
become is decided before, in ``weir.pipelines.topology.changes``: wider types, and columns or keys in place of those
that no commit keeps any more. Its rows are then written anew, since the libraries that read Delta tables here do not
know Delta's own type widening; those with other keys are dropped. Columns that nobody writes any more stay in it. All
other changes are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

import polars as pl
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError

from weir.state.commit.checkpoints import NO_HOOKS
from weir.state.commit.columns import Difference, differences, fitted, merged
from weir.state.commit.delta_log import DeltaLog, is_append_only, rewrite
from weir.state.commit.files import partition_text, scan_as_written, stored_schema, write_file
from weir.state.commit.layout import Layout
from weir.state.commit.upserts import shown_name, upserts_of
from weir.state.errors import AppendOnlyError, TableModeError, TableSchemaError
from weir.state.storage.places import Place, is_table, table_at
from weir.state.types import FileEntry, TableSpec

KEYS_PROPERTY = "weir.keys"
"""The table property that names the key columns of a table of updates, separated by commas."""
UPDATES_PROPERTY = "weir.updates"
"""The table property of a table of upserts that names its table of updates (``weir.state.changelog.upserts``)."""
TOMBSTONE_HORIZON = "weir.tombstone_horizon"
"""The table property with the newest epoch from which deletions may be missing, since compaction or other keys have
dropped them: a copy of the rows older than that, brought up to date from newer rows alone, would keep what was deleted,
so it starts over."""
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """What a table needs before a program can write to it; nothing if it is false."""

    table: str
    differences: tuple[Difference, ...]
    """What it gets; columns in polars' types, as stored."""
    schema: pl.Schema
    """Its columns afterwards, as stored."""
    keys: tuple[str, ...] | None
    """The key columns that it gets in place of others; None if it keeps those that it has."""

    @property
    def is_rewritten(self) -> bool:
        """Whether its rows are written anew, and not only its columns added."""
        return self.keys is not None or any(each.before is not None for each in self.differences)

    def __bool__(self) -> bool:
        return bool(self.differences) or self.keys is not None

    def __str__(self) -> str:
        if self.keys is not None:
            return f"its rows make way for others by {', '.join(self.keys)}"
        return "; ".join(map(str, self.differences))


def is_upserts(layout: Layout) -> bool:
    """Whether a table shows the standing rows of a table of updates."""
    return UPDATES_PROPERTY in layout.properties


def evolution(app_folder: Place, spec: TableSpec) -> Evolution | None:
    """What the table needs; None if it does not exist. The table of upserts that shows it, if one does, is checked too.

    Raises:
        TableModeError: A table was written in another mode.
        TableSchemaError: Its columns or keys cannot become those of ``spec``.
    """
    if (shown := upserts_of(spec)) is not None:
        _evolution(app_folder, shown, is_shown=True)
    return _evolution(app_folder, spec, is_shown=False)


def _evolution(app_folder: Place, spec: TableSpec, *, is_shown: bool) -> Evolution | None:
    if not is_table(app_folder / spec.name):
        return None
    log = DeltaLog(app_folder / spec.name, app_folder.name)
    return needed(app_folder, log.layout, spec, is_shown=is_shown)


def needed(app_folder: Place, layout: Layout, spec: TableSpec, *, is_shown: bool = False) -> Evolution:
    """What a table that is there needs, given its layout; ``is_shown`` as for ``evolve``.

    Raises:
        TableModeError, TableSchemaError: As for ``evolution``.
    """
    if is_upserts(layout) != is_shown:
        raise TableModeError(app_folder.name, shown_name(spec.name), "upsert" if is_shown else "append")
    keys = layout.properties.get(KEYS_PROPERTY) or ""
    wanted, found = stored_schema(spec), layout.columns
    changed = differences(found, wanted)
    if layout.partition_by != spec.partition_by:
        reason = (
            f"it is {_divided(layout.partition_by)}, and the program writes one that is {_divided(spec.partition_by)}"
        )
        raise TableSchemaError(app_folder.name, shown_name(spec.name), reason)
    has_other_keys = keys != ",".join(spec.keys) or any(each.path in spec.keys for each in changed)
    if spec.evolves_freely:
        # What is left out goes from the rows, too: a later program may have a column of that name again.
        is_shorter = any(each.now is None for each in changed)
        return Evolution(
            table=spec.name,
            differences=tuple(changed),
            schema=wanted if has_other_keys or is_shorter else pl.Schema(merged(found, wanted)),
            keys=spec.keys if has_other_keys else None,
        )
    if has_other_keys:
        reason = f"it has {_keyed(keys)}, and the program writes {_keyed(','.join(spec.keys))}"
        raise TableSchemaError(app_folder.name, shown_name(spec.name), reason)
    if refused := [each for each in changed if each.before is not None or each.path in spec.required]:
        raise TableSchemaError(app_folder.name, shown_name(spec.name), ", ".join(map(str, refused)))
    return Evolution(table=spec.name, differences=tuple(changed), schema=pl.Schema(merged(found, wanted)), keys=None)


def evolve(
    app_folder: Place,
    spec: TableSpec,
    *,
    is_shown: bool = False,
    epoch: int = 0,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Give the table what it needs. If this is interrupted, the next call goes on.

    ``is_shown`` is for a table of upserts. Where a changelog gets other keys, only rows from ``epoch`` on may stay.
    ``check`` is called before each attempt to write, with the table read as it is then; it raises an error if the
    caller must not write any more.

    Raises:
        TableSchemaError: See ``evolution``.
    """
    failures = 0
    while True:
        table = table_at(app_folder / spec.name)
        lacking = needed(app_folder, Layout.of(table), spec, is_shown=is_shown)
        if not lacking:
            return
        check()
        try:
            if lacking.is_rewritten:
                _write_anew(app_folder, table, spec, lacking, epoch)
            else:
                names = {each.path.partition(".")[0].partition("[")[0] for each in lacking.differences}
                fields = [field for field in delta_schema(lacking.schema).fields if field.name in names]
                table.alter.add_columns(fields, post_commithook_properties=NO_HOOKS)
        except CommitFailedError:  # another writer was quicker
            failures += 1
            if failures == _ATTEMPTS:
                raise


def delta_schema(columns: Mapping[str, pl.DataType]) -> Schema:
    """Columns, as stored, in Delta's types."""
    return Schema.from_arrow(pl.Schema(columns))


def _write_anew(app_folder: Place, table: DeltaTable, spec: TableSpec, lacking: Evolution, epoch: int) -> None:
    """Replace all files by ones with the new types, and the schema, in one Delta commit; does nothing if another writer
    was quicker. Where keys are others, files without them and older ones go."""
    if is_append_only(table):
        raise AppendOnlyError(str(app_folder / spec.name))
    folder, properties = app_folder / spec.name, dict(table.metadata().configuration)
    files = pl.Series(table.get_add_actions(flatten=True)).struct.unnest()
    files = files.with_columns(pl.Series("path", [unquote(path) for path in files["path"]], dtype=pl.String))
    goal = TableSpec(name=spec.name, schema=lacking.schema, partition_by=spec.partition_by, keys=spec.keys)
    columns = {name: dtype for name, dtype in lacking.schema.items() if name not in spec.partition_by}
    written: list[FileEntry] = []
    for file in files.iter_rows(named=True):
        rows = scan_as_written(folder, [file["path"]]).collect()
        if lacking.keys is not None:
            has_keys = all(rows.schema.get(name) == columns[name] for name in lacking.keys)
            if not has_keys or file["min._epoch"] < epoch:
                horizon = max(int(properties.get(TOMBSTONE_HORIZON, 0)), file["max._epoch"] + 1)
                properties[TOMBSTONE_HORIZON] = str(horizon)
                continue
        values = {name: partition_text(file[f"partition.{name}"]) for name in spec.partition_by}
        written.append(write_file(app_folder, goal, fitted(rows, columns), values))
    properties[KEYS_PROPERTY] = ",".join(spec.keys)
    rewrite(folder, table, delta_schema(lacking.schema), properties, files, written)


def _divided(partition_by: tuple[str, ...]) -> str:
    return f"partitioned by {', '.join(partition_by)}" if partition_by else "not partitioned"


def _keyed(keys: str) -> str:
    return f"updates keyed by {keys.replace(',', ', ')}" if keys else "facts, where every row counts"
