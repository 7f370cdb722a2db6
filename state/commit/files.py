"""Parquet files that an epoch leaves in a table's folder; nobody sees one until a commit names it.

Naming them in a commit belongs to ``weir.state.commit.protocol``, adding them to their table to
``weir.state.commit.tables``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

import polars as pl

from weir.state.frames import framed, without
from weir.state.stopwatch import Activity, during
from weir.state.storage.contract import Target
from weir.state.storage.places import Place, content_on_disk, folder_at, storage_options
from weir.state.storage.syncs import Syncs
from weir.state.types import FileEntry, TableSpec

MERGED = "merged-"
"""The prefix of file names written by compaction; files written by an epoch have none."""

WIDER = pl.ScanCastOptions(
    integer_cast="upcast", float_cast="upcast", missing_struct_fields="insert", extra_struct_fields="ignore"
)
"""A table's types may be wider than those of its older files."""
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder of a partition whose value is null, as Hive and Spark name it; some readers take the value from there, and
not from Delta's log."""
_STATS_TEXT_CHARACTERS = 32


def stored_schema(spec: TableSpec) -> pl.Schema:
    """The columns as Delta stores them: times in microseconds, times of day as nanoseconds since midnight, no unsigned
    numbers."""
    return pl.Schema({name: stored_type(dtype) for name, dtype in spec.schema.items()})


def read_files(place: Place, names: Iterable[str], schema: pl.Schema) -> pl.DataFrame:
    """The rows of a table's files, named below the table's folder, with the columns of ``schema``, as stored: null
    where a file was written before its table had the column or the field of a struct, and wider where its type was
    narrower then."""
    return scan_files(place, names, schema).collect()


def with_epochs(place: Place, files: pl.DataFrame) -> pl.DataFrame:
    """``files`` with their least and greatest epochs, ``min._epoch`` and ``max._epoch``: those that another writer left
    out are read from the files."""
    unknown = files.filter(pl.col("max._epoch").is_null())["path"]
    if unknown.is_empty():
        return files
    epochs = [read_files(place, [path], pl.Schema({"_epoch": pl.Int64()}))["_epoch"] for path in unknown]
    found = pl.DataFrame(
        {"path": unknown, "min._epoch": [each.min() for each in epochs], "max._epoch": [each.max() for each in epochs]},
        schema={"path": pl.String(), "min._epoch": pl.Int64(), "max._epoch": pl.Int64()},
    )
    return files.with_columns(pl.col("min._epoch", "max._epoch").cast(pl.Int64)).update(found, on="path")


def scan_files(place: Place, names: Iterable[str], schema: pl.Schema) -> pl.LazyFrame:
    """The same, for a query that needs only some of it."""
    if not (uris := _uris(place, names)):
        return pl.LazyFrame(schema=schema)
    return pl.scan_parquet(
        uris,
        schema=schema,
        missing_columns="insert",
        extra_columns="ignore",
        cast_options=WIDER,
        hive_partitioning=False,
        storage_options=storage_options(place),
    )


def scan_as_written(place: Place, names: Iterable[str], *, name_in: str | None = None) -> pl.LazyFrame:
    """The rows of files of a folder with the columns that they have there, and ``name_in``, a column for their URI."""
    return pl.scan_parquet(
        _uris(place, names),
        glob=False,
        hive_partitioning=False,
        include_file_paths=name_in,
        storage_options=storage_options(place),
    )


def read_as_written(place: Place, name: str) -> pl.DataFrame:
    """The rows of a file of a folder, with the columns that they have there; of a few rows on a disk in half the time
    of a scan, and at once if they are asked for again."""
    content = content_on_disk(place, name)
    return scan_as_written(place, [name]).collect() if content is None else _rows_of(content)


@lru_cache(4)
def _rows_of(content: bytes) -> pl.DataFrame:
    return pl.read_parquet(content)


def _uris(place: Place, names: Iterable[str]) -> list[str]:
    uri = folder_at(place).uri
    return [f"{uri}/{name}" for name in names]


def write_file(
    app_folder: Place,
    spec: TableSpec,
    frame: pl.DataFrame,
    partition_values: Mapping[str, str | None] | None = None,
    *,
    is_merged: bool = False,
    syncs: Syncs | None = None,
) -> FileEntry:
    """Write rows into a new file of a table's folder and sync it, and its folder, to disk; with ``syncs``, they are on
    disk once those are waited for.

    ``frame`` has the table's columns in any order; partition columns may be left out, since ``partition_values`` has
    their values. The name is unique, so a second attempt never collides with the first (PROTOCOL 7).

    Raises:
        ValueError: A column or a partition value is missing, or a column is of a type that the table's does not take.
        DiskFullError: There is no room for it, and no file.
    """
    values = dict(partition_values or {})
    if set(values) != set(spec.partition_by):
        raise ValueError(
            f"table {spec.name!r} is partitioned by {spec.partition_by}, but the file's values are {values}"
        )
    columns = file_columns(spec)
    if missing := columns.keys() - set(frame.columns):
        raise ValueError(f"table {spec.name!r}: the rows to be written lack the columns {sorted(missing)}")
    found = {name: frame.get_column(name) for name in columns}
    for name, column in found.items():
        given, declared = column.dtype, spec.schema[name]
        is_structured = given.is_nested() or (declared.is_nested() and given != pl.Null)
        if is_structured and type(given) is not type(declared):  # a cast would leave some as they are
            raise ValueError(
                f"table {spec.name!r}: the rows to be written have the column {name!r} as {given}, and the table has "
                f"it as {declared}"
            )
    rows = framed([_cast(found[name], spec.schema[name], dtype) for name, dtype in columns.items()])
    apart = {name: values[name] for name in spec.partition_by if not spec.has_partition_columns}
    parts = [f"{name}={_folder_name(value)}" for name, value in apart.items()]
    folder = folder_at(app_folder) / "/".join([spec.name, *parts])
    name = f"{MERGED if is_merged else ''}{uuid.uuid4().hex}.parquet"

    def encode(target: Target) -> None:
        with during(Activity.ENCODE):
            rows.write_parquet(target, compression="zstd", compression_level=1)

    # 1. Files written and synced
    with during(Activity.FILES):
        size_bytes = folder.add(
            name,
            encode,
            what=f"a file of table {spec.name!r}",
            needed=int(rows.estimated_size()),
            is_durable=syncs is None,
        )
    if syncs is not None:
        syncs.begin(folder, name)
    return FileEntry(
        table=spec.name,
        path="/".join([*parts, name]),
        size_bytes=size_bytes,
        rows=rows.height,
        partition_values=values,
        stats=_stats(without(rows, *values)),
    )


def write_files(
    app_folder: Place, spec: TableSpec, frame: pl.DataFrame, *, is_merged: bool = False, syncs: Syncs | None = None
) -> list[FileEntry]:
    """Write rows as ``write_file``, into a file for each partition that they belong to.

    Delta knows no empty text as a partition's value, so it becomes null.
    """
    if not spec.partition_by:
        return [write_file(app_folder, spec, frame, is_merged=is_merged, syncs=syncs)]
    parts = frame.with_columns(_without_empty_text(spec)).partition_by(spec.partition_by, as_dict=True)
    written = folder_at(app_folder).at_once(
        partial(
            write_file,
            app_folder,
            spec,
            rows,
            {name: partition_text(value) for name, value in zip(spec.partition_by, values, strict=True)},
            is_merged=is_merged,
            syncs=syncs,
        )
        for values, rows in parts.items()
    )
    return [*written]


def _cast(column: pl.Series, *dtypes: pl.DataType) -> pl.Series:
    """A column as one type after another, of which it mostly has the last one already."""
    for dtype in dtypes:
        if column.dtype != dtype:
            column = column.cast(dtype)
    return column


def _folder_name(value: str | None) -> str:
    return NULL_FOLDER if value is None else quote(value, safe="")


def _without_empty_text(spec: TableSpec) -> list[pl.Expr]:
    return [pl.col(name).replace("", None) for name in spec.partition_by if spec.schema[name] == pl.String]


def file_columns(spec: TableSpec) -> dict[str, pl.DataType]:
    """The columns that a table's files have, as stored."""
    apart = () if spec.has_partition_columns else spec.partition_by
    return {name: dtype for name, dtype in stored_schema(spec).items() if name not in apart}


def partition_text(value: str | int | bool | date | None) -> str | None:
    """A partition's value as Delta writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else None if value is None else str(value)


def stored_type(dtype: pl.DataType) -> pl.DataType:
    """The type that Delta stores values of ``dtype`` as."""
    if isinstance(dtype, pl.Datetime):
        return pl.Datetime("us", dtype.time_zone)
    if isinstance(dtype, pl.List):
        return pl.List(stored_type(dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return pl.Struct({field.name: stored_type(field.dtype) for field in dtype.fields})  # type: ignore[arg-type]
    return pl.Int64() if dtype.is_unsigned_integer() or dtype == pl.Time else dtype


def _stats(rows: pl.DataFrame) -> str:
    """Delta file statistics, which let readers skip files."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in rows.iter_columns():
        name, dtype = column.name, column.dtype
        is_text, is_time = isinstance(dtype, pl.String), isinstance(dtype, pl.Datetime)
        if not (is_text or is_time or dtype.is_integer()):
            continue
        nulls[name] = column.null_count()
        try:
            low: Any = column.min()
            high: Any = column.max()
        except OverflowError:  # a time outside the range of Python's datetime
            continue
        if low is None:
            continue
        if is_time:
            low, high = _iso_text(low), _iso_text(high)
        elif is_text and max(len(low), len(high)) > _STATS_TEXT_CHARACTERS:
            continue
        lows[name], highs[name] = low, high
    return json.dumps(
        {"numRecords": rows.height, "minValues": lows, "maxValues": highs, "nullCount": nulls}, ensure_ascii=False
    )


def _iso_text(value: datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
