"""Merges more keys than one process should: a Spark job that reads a table through its Delta library.

One process reads a table's files once for each two million keys. Spark reads them once, and sends each row to the task
that has its key, by way of the disk. Each task writes the newest rows by the code that merges in one process
(``weir.state.changelog.merging``), and the compaction commits the files as any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import msgspec
import polars as pl
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col

from weir.infra.settings import Settings
from weir.infra.spark.session import SparkStartError, sql_session, stop_session
from weir.state.changelog.merging import Merge, Merged, key_count, merged, merged_rows
from weir.state.commit.files import file_columns
from weir.state.commit.tables import newest_of_each_key
from weir.state.storage.places import disks
from weir.state.types import FileEntry

_FILES = msgspec.json.Decoder(list[FileEntry])

KEYS_A_TASK = 1_000_000
"""About as many keys has a task, and a file of merged updates."""
BATCH_ROWS = 250_000
"""Rows that a task takes at a time."""
_OPTIMIZED_JAVA = ("-XX:TieredStopAtLevel=4",)
"""A job of minutes repays the second compiler."""
_DONE = "rows bigint, forgotten bigint, files binary"


class SparkMergeError(Exception):
    """Spark could not merge a table; nothing has been replaced."""

    def __init__(self, application: str, table: str, reason: str) -> None:
        super().__init__(application, table, reason)
        self.application, self.table, self.reason = application, table, reason

    def __str__(self) -> str:
        return (
            f"Spark could not merge {self.table} ({self.reason}), and nothing was replaced; the settings' folder has "
            "Spark's logs, logs/spark.log and logs/spark.out, "
            f"and `weir compact {self.application} --engine process` needs no Spark"
        )


class SparkMerging:
    """Merges updates by Spark and facts in this process, 32 MB at a time; Spark is started for the first merge.

    ``is_large`` says which merges are for Spark, given about how many keys they have. Use it as a context, which stops
    Spark at its end. ``on_spark`` gets the table and the number of keys before each job.
    """

    def __init__(
        self,
        settings: Settings,
        is_large: Callable[[int], bool],
        on_spark: Callable[[str, int], None] = lambda table, keys: None,
    ) -> None:
        self._settings, self._is_large, self._on_spark = settings, is_large, on_spark
        self._session: SparkSession | None = None

    def __enter__(self) -> SparkMerging:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            stop_session(self._session)
            self._session = None

    def __call__(self, merge: Merge) -> Merged:
        """Raises ``SparkMergeError`` if Spark does not start, or its job fails."""
        if not disks(merge.app_folder):  # Spark has no client for object stores here
            return merged(merge)
        if not merge.spec.keys or not self._is_large(merge.rows):  # there are at least as many rows as keys
            return merged(merge)
        keys = key_count(merge)
        if not self._is_large(keys):
            return merged(merge)
        self._on_spark(merge.spec.name, keys)
        try:
            if self._session is None:
                self._session = sql_session(self._settings, "compaction", java_options=_OPTIMIZED_JAVA)
            return merged_by_spark(self._session, merge, keys)
        except SparkStartError as error:
            reason = f"its Java process did not start: {error.last_line or 'it said nothing'}"
            raise SparkMergeError(merge.app_folder.name, merge.spec.name, reason) from error
        except (PySparkException, Py4JError) as error:
            reason = " ".join(str(error).partition("\n")[0].split()).removesuffix(".")
            raise SparkMergeError(merge.app_folder.name, merge.spec.name, reason) from error


def merged_by_spark(session: SparkSession, merge: Merge, keys: int) -> Merged:
    """Merge updates by a Spark job, given about how many keys they have.

    Raises:
        SparkMergeError: The table's version has other rows than the files that were chosen.
    """
    sent = replace(merge, files=merge.files.clear())
    tasks = ceil(keys / KEYS_A_TASK)
    by_key = _rows(session, merge).repartition(tasks, *(col(_quoted(name)) for name in merge.spec.keys))
    done = by_key.mapInArrow(partial(_merged_part, sent), _DONE).collect()
    if (read := sum(part.rows for part in done)) != merge.rows:
        reason = f"it read {read:,} rows, and the files that were chosen have {merge.rows:,}"
        raise SparkMergeError(merge.app_folder.name, merge.spec.name, reason)
    return Merged(
        files=[entry for part in done for entry in _FILES.decode(part.files)],
        forgotten=max((part.forgotten for part in done), default=0),
    )


def _rows(session: SparkSession, merge: Merge) -> DataFrame:
    """The rows of the merge's files, with the columns that files have."""
    folder = str(merge.app_folder / merge.spec.name)
    rows = session.read.format("delta").option("versionAsOf", merge.version).load(folder)
    if not merge.spec.has_partition_columns:
        for name in merge.spec.partition_by:
            rows = rows.where(_is_one_of(col(_quoted(name)), merge.files[f"partition.{name}"].unique().to_list()))
    return rows.select(*(col(_quoted(name)) for name in file_columns(merge.spec)))


def _merged_part(merge: Merge, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the newest row of each key of a task's; gives how many rows there were, and the files."""
    columns, keys = file_columns(merge.spec), merge.spec.keys
    held, waiting, count = pl.DataFrame(schema=columns), list[pa.RecordBatch](), 0

    def newest() -> pl.DataFrame:
        arrived = pl.from_arrow(pa.Table.from_batches(waiting))
        assert isinstance(arrived, pl.DataFrame)
        rows = arrived.select(pl.col(name).cast(dtype) for name, dtype in columns.items())
        return newest_of_each_key(pl.concat([held, rows]), keys)

    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if sum(each.num_rows for each in waiting) >= BATCH_ROWS:
            held, waiting = newest(), []
    if waiting:
        held, waiting = newest(), []
    done = merged_rows(merge, held)
    files = msgspec.json.encode(done.files)
    yield pa.RecordBatch.from_pydict({"rows": [count], "forgotten": [done.forgotten], "files": [files]})


def _is_one_of(column: Column, values: Sequence[object]) -> Column:
    """Null is one of ``values`` if they have it, which SQL's ``IN`` does not say."""
    is_one = column.isin([value for value in values if value is not None])
    return is_one | column.isNull() if None in values else is_one


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
