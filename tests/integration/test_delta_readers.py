"""Others read the tables of an application, and change them beside a run: delta-spark, DuckDB, delta-rs and polars.

What a table should hold is known by plain lists and dictionaries of what was written.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from weir.state.changelog.compaction import Compaction
from weir.state.changelog.rows import changelog_spec
from weir.state.commit.checkpoints import LOG
from weir.state.commit.files import write_file, write_files
from weir.state.commit.live_files import live_files
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.replay import replay
from weir.state.commit.tables import AppendTable, file_actions, read_rows
from weir.state.errors import TableFeatureError, TableSchemaError
from weir.state.storage.places import folder_at
from weir.state.types import FileEntry, StoreSpec, TableSpec

pytestmark = pytest.mark.spark
TIME = pl.Datetime("ms", "UTC")
OF_COMMITS = {"_ts": TIME, "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
VALUES = {
    "text": pl.String(),
    "whole": pl.Int32(),
    "number": pl.Float64(),
    "is_paid": pl.Boolean(),
    "day": pl.Date(),
    "at": TIME,
    "price": pl.Decimal(12, 2),
    "tags": pl.List(pl.String()),
    "address": pl.Struct({"town": pl.String(), "floor": pl.Int64()}),
    "raw": pl.Binary(),
}
FACTS = TableSpec(name="late.orders", schema=pl.Schema({"place": pl.String(), **VALUES, **OF_COMMITS}))
BY_PLACE = replace(FACTS, name="by_place", partition_by=("place",), has_partition_columns=True)
TOTALS = TableSpec(name="totals", keys=("key",), schema=pl.Schema({"key": pl.String(), **VALUES, **OF_COMMITS}))
CHANGES = changelog_spec(StoreSpec(name="totals-by-key", key=pl.Schema({"key": pl.String()}), value=pl.Schema(VALUES)))
SPECS = (FACTS, BY_PLACE, TOTALS, CHANGES)
PLACES = (None, "a", "é ü", "50%", "a=b/c", "'quoted'", "A")
TASKS = ("0_0", "0_1")


class Orders:
    """Random commits of the application ``shop``, and the rows of its tables."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse, self.random, self.epoch = warehouse, random.Random(5), 0
        self.rows: dict[str, list[dict[str, Any]]] = {spec.name: [] for spec in SPECS}
        self.driver = self.next_driver()

    def next_driver(self) -> Committer:
        driver = Committer(self.warehouse, "shop", SPECS, fingerprint="f")
        self.generation = driver.claim().generation
        return driver

    @property
    def app(self) -> Path:
        return self.warehouse / "shop"

    def commit(self, count: int = 1) -> None:
        for _ in range(count):
            files = self.files()
            self.driver.commit(
                CommitRecord(
                    kind="commit",
                    generation=self.generation,
                    epoch=self.epoch,
                    at_ms=1_000,
                    fingerprint="f",
                    files=tuple(files),
                )
            )

    def files(self) -> list[FileEntry]:
        """The next epoch's."""
        self.epoch += 1
        found = []
        for spec in (FACTS, BY_PLACE, TOTALS):
            found += write_files(self.app, spec, self._frame(spec, [self._row(spec) for _ in range(3)]))
        for task in TASKS:
            partition = {"task": task, "segment": "0"}
            rows = [{**self._row(CHANGES), **partition, "segment": 0}]
            found.append(write_file(self.app, CHANGES, self._frame(CHANGES, rows), partition))
        return found

    def _frame(self, spec: TableSpec, rows: list[dict[str, Any]]) -> pl.DataFrame:
        self.rows[spec.name] += rows
        return pl.DataFrame(rows, schema=spec.schema)

    def _row(self, spec: TableSpec) -> dict[str, Any]:
        one_of, number = self.random.choice, self.random.randrange(-999, 999)
        at = datetime(2026, 3, 29, 1, 59, 59, 999_000, tzinfo=UTC) + timedelta(hours=number)
        values = {
            "place": one_of(PLACES),
            "key": one_of("abcdefg"),
            "text": one_of((None, "", "plain", "ä€𝄞", "line\nbreak", "x" * 40)),
            "whole": one_of((None, number, -(2**31), 2**31 - 1)),
            "number": one_of((None, number / 7, 0.0, -1e300)),
            "is_paid": one_of((None, True, False)),
            "day": one_of((None, date(1969, 7, 20), at.date())),
            "at": one_of((None, at)),
            "price": one_of((None, Decimal(number).scaleb(-2), Decimal("9999999999.99"))),
            "tags": one_of((None, [], ["a", None, ""])),
            "address": one_of(({"town": "Ulm", "floor": number}, {"town": None, "floor": None})),
            "raw": one_of((None, b"", b"\x00\xff\n")),
            "_ts": at,
            "_epoch": self.epoch,
            "_seq": number,
            "_deleted": one_of((True, False)),
        }
        return {name: values[name] for name in spec.schema if name in values}

    def compact(self) -> None:
        compaction = Compaction(self.warehouse, "shop", is_whole=True, tombstone_retention_ms=10**15)
        list(compaction.run([FACTS.name, BY_PLACE.name]))

    def check(self, read: Callable[[Path], pl.DataFrame]) -> None:
        """Whether a reader finds the rows of all tables."""
        for spec in SPECS:
            found = read(self.app / spec.name).select(spec.schema.names())
            found, wanted = counted(found.to_dicts()), counted(self.rows[spec.name])
            assert (found - wanted, wanted - found) == ({}, {}), spec.name


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr({name: plain(value) for name, value in row.items()}) for row in rows)


def plain(value: Any) -> Any:
    """The value whatever a reader calls UTC."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


@pytest.fixture
def orders(tmp_path) -> Iterator[Orders]:
    orders = Orders(tmp_path / "warehouse")
    yield orders
    orders.driver.close()


def by_duckdb(folder: Path) -> pl.DataFrame:
    (extension,) = Path(duckdb_extension_delta.__file__).parent.glob("extensions/*/delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.load_extension(str(extension))
        return connection.execute("SELECT * FROM delta_scan(?)", [str(folder)]).pl()


def by_delta_rs(folder: Path) -> pl.DataFrame:
    return pl.from_arrow(DeltaTable(folder).to_pyarrow_table())  # type: ignore[return-value]


def by_spark(session) -> Callable[[Path], pl.DataFrame]:
    def read(folder: Path) -> pl.DataFrame:
        table: pa.Table = session.read.format("delta").load(str(folder)).toArrow()
        return pl.from_arrow(table)  # type: ignore[return-value]

    return read


def change(session, statement: str, folder: Path) -> None:
    session.sql(statement.format(table=f"delta.`{folder}`")).collect()


def test_four_readers_find_what_was_written(orders, session):
    orders.commit(3)
    for spec in SPECS:
        AppendTable(orders.app / spec.name, spec.name, "shop").checkpoint()
    orders.commit(2)
    for read in (pl.read_delta, by_delta_rs, by_duckdb):
        orders.check(read)
    orders.compact()
    orders.commit()
    for read in (pl.read_delta, by_delta_rs, by_duckdb, by_spark(session)):
        orders.check(read)


OPTIMIZE = "OPTIMIZE {table}"
TOLERATED = (
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')",
    "COMMENT ON TABLE {table} IS 'orders of the shop'",
    OPTIMIZE,
    "VACUUM {table} RETAIN 168 HOURS",
)


def test_what_spark_may_do_to_a_table_beside_a_driver(orders, session):
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # of VACUUM: 10,000 tasks before
    orders.commit(3)
    for statement in TOLERATED:
        change(session, statement, orders.app / BY_PLACE.name)
        orders.commit()
    orders.check(read_rows)
    orders.compact()
    orders.commit()
    orders.driver.close()
    orders.driver = orders.next_driver()
    orders.commit()
    orders.check(read_rows)
    orders.check(by_duckdb)


AS_COLUMNS = "'delta.checkpoint.writeStatsAsStruct' = 'true'"
COLUMNS = ("path", "size_bytes", "num_records", "min._epoch", "max._epoch", "partition.place")


@pytest.mark.parametrize(
    ("properties", "part_size", "is_read_here"),
    [
        (AS_COLUMNS, None, True),
        (f"{AS_COLUMNS}, 'delta.checkpoint.writeStatsAsJson' = 'false'", None, False),
        ("'delta.checkpoint.writeStatsAsStruct' = 'false'", 4, True),
    ],
)
def test_a_checkpoint_of_spark_gives_the_files_that_delta_rs_finds(
    orders, session, properties, part_size, is_read_here
):
    folder, size = orders.app / BY_PLACE.name, "spark.databricks.delta.checkpoint.partSize"
    orders.commit(2)
    session.conf.set(size, str(part_size or 1_000_000))
    try:
        every = f"ALTER TABLE {{table}} SET TBLPROPERTIES ('delta.checkpointInterval' = '1', {properties})"
        for statement in (every, "COMMENT ON TABLE {table} IS 'orders of the shop'"):
            change(session, statement, folder)
            orders.commit()
    finally:
        session.conf.unset(size)
    newest = max(folder.glob(f"{LOG}/*.checkpoint.*parquet")).name
    assert (newest.count(".") == 4) is (part_size is not None)
    assert (replay(folder_at(folder), with_files=True) is not None) is is_read_here
    found, _ = live_files(folder, ranges=["_epoch"], partitions=["place"])
    wanted = file_actions(DeltaTable(folder), ranges=["_epoch"])
    assert sorted(found.select(COLUMNS).rows(), key=str) == sorted(wanted.select(COLUMNS).rows(), key=str)
    orders.driver.close()
    orders.driver = orders.next_driver()
    orders.commit()
    orders.check(read_rows)


def test_a_column_of_another_writer_stays_empty_and_is_refused_at_the_next_start(orders, session):
    orders.commit()
    change(session, "ALTER TABLE {table} ADD COLUMNS (note STRING)", orders.app / BY_PLACE.name)
    orders.commit()
    change(session, OPTIMIZE, orders.app / BY_PLACE.name)
    orders.commit()
    for read in (read_rows, by_duckdb):
        orders.check(read)
        assert read(orders.app / BY_PLACE.name)["note"].null_count() == len(orders.rows[BY_PLACE.name])
    with pytest.raises(TableSchemaError, match="`note` is left out; columns may only be added"):
        orders.next_driver()


@pytest.mark.parametrize(
    ("statement", "feature"),
    [
        ("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", "deletionVectors"),
        ("ALTER TABLE {table} ADD CONSTRAINT small CHECK (_seq < 2000)", "writer version 3"),
        ("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", "changeDataFeed"),
    ],
)
def test_what_no_driver_may_go_on_with_is_refused_by_name(orders, session, statement, feature):
    orders.commit(2)
    change(session, statement, orders.app / FACTS.name)
    with pytest.raises(TableFeatureError, match=feature):
        orders.commit()
    orders.driver.close()
    with pytest.raises(TableFeatureError, match=feature):
        orders.next_driver()
