"""Records of Delta tables and Parquet files that replace a topic's: sorted by time, one slice per partition.

A file has the columns of the source's key and value, and a time; where ``_deleted`` is true the value is null. Keys and
values are written as a producer would write them, record by record, so that the tasks read a slice as they read a
topic. Slices are Arrow files in the shadow's folder; an offset is the number of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from weir.pipelines.backfill.errors import SourceFilesError
from weir.pipelines.operators.functions import KeyType
from weir.pipelines.serdes.headers import HEADERS_TYPE
from weir.pipelines.serdes.partitioner import partition_of
from weir.pipelines.topology import SourceNode
from weir.state.commit.tables import scan_table

SLICES = "_input"
TIME_COLUMN = "_ts"


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """Where the records of the days are, instead of in topics."""

    paths: Mapping[str, str]
    """By topic, a Delta table's folder, or a Parquet file or folder."""
    time_column: str
    """The column of the records' timestamps: a time in UTC, or an integer in milliseconds since 1970."""
    from_ms: int
    end_ms: int
    """Records of ``[from_ms, end_ms)`` are read."""


def check_files(source: SourceNode, files: SourceFiles) -> None:
    """Raise ``SourceFilesError`` unless the files of the topic can be read and have its columns."""
    path = files.paths[source.topic]
    try:
        columns = _scan(path).collect_schema()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise SourceFilesError(source.topic, path, f"cannot be read ({str(error).splitlines()[0]})") from None
    wanted = [*source.record.columns, files.time_column]
    if missing := [name for name in wanted if name not in columns]:
        raise SourceFilesError(source.topic, path, f"has no column {missing[0]!r}; it has {', '.join(columns)}")
    time = columns[files.time_column]
    if not (isinstance(time, pl.Datetime) or time.is_integer()):
        raise SourceFilesError(
            source.topic,
            path,
            f"has times of type {time} in {files.time_column!r}; they must be a "
            "datetime, or an integer in milliseconds since 1970",
        )
    if timeless := _scan(path).select(pl.col(files.time_column).null_count()).collect().item():
        raise SourceFilesError(
            source.topic,
            path,
            f"has no time in {files.time_column!r} for {timeless:,} of its rows; such a row belongs to no day: give it "
            "a time, or leave it out of the files",
        )


def write_slice(folder: Path, source: SourceNode, partition: int, partitions: int, files: SourceFiles) -> int:
    """Write one partition's records, oldest first, as Kafka would hold them; returns how many there are."""
    scan = _scan(files.paths[source.topic])
    schema = scan.collect_schema()
    time = pl.col(files.time_column)
    time_ms = time.dt.timestamp("ms") if isinstance(schema[files.time_column], pl.Datetime) else time.cast(pl.Int64)
    deleted = pl.col("_deleted") if "_deleted" in schema else pl.lit(False)
    rows = (
        scan.with_columns(time_ms.alias("_time_ms"), deleted.alias("_gone"))
        .filter(pl.col("_time_ms").is_between(files.from_ms, files.end_ms, closed="left"))
        .select(*(pl.col(name).cast(dtype) for name, dtype in source.record.columns.items()), "_time_ms", "_gone")
        .collect()
    )
    rows = rows.filter(partition_of(rows, list(source.key.columns), partitions, source.key_bytes) == partition)
    rows = rows.sort("_time_ms", maintain_order=True)
    keys = KeyType(source.key, is_windowed=False).to_objects(rows)
    values = source.value.to_objects(rows, rows["_gone"])
    records = pl.DataFrame(
        {
            "key": pl.Series([source.key_serde.encode(key) for key in keys], dtype=pl.Binary),
            "value": pl.Series([source.value_serde.encode(value) for value in values], dtype=pl.Binary),
            "timestamp_ms": rows["_time_ms"],
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    records.write_ipc(_slice(folder, source.topic, partition))
    return records.height


@dataclass(frozen=True)
class SliceRecords:
    """Records of a slice in order."""

    topic: str
    partition: int
    frame: pl.DataFrame
    """The records, with the columns of ``RAW_SCHEMA``."""
    next_offset: int
    next_time_ms: int | None


class SliceReader:
    """Reads a slice as ``weir.infra.kafka.reader.PartitionReader`` reads a topic partition."""

    def __init__(self, folder: Path, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        records = pl.read_ipc(_slice(folder, topic, partition))
        self._records = records.with_columns(offset=pl.int_range(pl.len(), dtype=pl.Int64))

    def read(
        self, start: int, end: int, *, until_time_ms: int | None, max_bytes: int, is_strict: bool = False
    ) -> SliceRecords:
        """Records of ``[start, end)``, at least one unless ``is_strict``.

        They end before the first one later than ``until_time_ms``, or with the one that exceeds ``max_bytes``.
        """
        rows = self._records[start:end]
        count = rows.height
        if until_time_ms is not None:
            count = min(count, rows["timestamp_ms"].search_sorted(until_time_ms, side="right"))
        sizes = (rows["key"].bin.size().fill_null(0) + rows["value"].bin.size().fill_null(0)).cum_sum()
        count = min(count, sizes.search_sorted(max_bytes) + 1)
        rows = rows[: max(not is_strict, count)]
        position = start + rows.height
        next_time_ms = self._records["timestamp_ms"][position] if position < self._records.height else None
        return SliceRecords(self.topic, self.partition, rows, position, next_time_ms)

    def take_back(self, records: object, offset: int) -> None:
        """Reading takes nothing out of a slice."""

    def headers(self, offsets: Sequence[int]) -> pl.DataFrame:
        """Records of files have none."""
        return pl.DataFrame(schema={"offset": pl.Int64(), "headers": HEADERS_TYPE})

    def connect(self) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""


def _slice(folder: Path, topic: str, partition: int) -> Path:
    return folder / f"{topic}-{partition}.arrow"


def _scan(path: str) -> pl.LazyFrame:
    if Path(path, "_delta_log").is_dir():
        return scan_table(DeltaTable(path))
    return pl.scan_parquet(Path(path) / "**/*.parquet" if Path(path).is_dir() else path)
