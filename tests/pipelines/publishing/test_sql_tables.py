"""The table of a SQL sink: made with types from the schema, extended, or refused with the statements that help."""

import re
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated
from uuid import UUID

import polars as pl
import pytest

from tests.pipelines.publishing.sql_shop import TABLE, SqlShop, drain
from weir import Application, Int64, StreamsBuilder, String
from weir.pipelines.publishing.connection import Published, SinkError
from weir.pipelines.publishing.sql import SqlConnection, check_sql_tables
from weir.pipelines.publishing.sql_address import SinkAddressError
from weir.pipelines.publishing.sql_table import SinkTableError
from weir.state.commit.outbox import Mark

STATEMENT = re.compile(r"run `([^`]+)`")
ROWS = [{"user": "ann", "item": "tea", "cents": 1}, {"user": "bob", "item": None, "cents": 2}]


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Address:
    street: str
    since: date | None


@dataclass(frozen=True)
class Everything:
    text: str | None
    number: int | None
    fraction: float | None
    is_new: bool | None
    content: bytes | None
    at: datetime | None
    day: date | None
    clock: time | None
    price: Annotated[Decimal, pl.Decimal(12, 2)] | None
    exact: Decimal | None
    id: UUID | None
    size: Size | None
    tags: list[str] | None
    stock: dict[str, int] | None
    address: Address | None


VALUES = {
    "text": 'a,"b"\n\\N %s {}',
    "number": -(2**63),
    "fraction": 0.1,
    "is_new": True,
    "content": b"\x00\xff\\",
    "at": datetime(2026, 5, 1, 9, 30, 0, 250_000, tzinfo=UTC),
    "day": date(1969, 12, 31),
    "clock": time(8, 30, 1, 5),
    "price": Decimal("-1234567890.12"),
    "exact": Decimal("12345678901234567890123456789.123456789"),
    "id": str(UUID(int=7)),
    "size": "l",
    "tags": ["x", 'y"', ""],
    "stock": [{"key": "tea", "value": 2}],
    "address": {"street": "Main", "since": date(2020, 2, 29)},
}
NESTED = {"tags": ["x", 'y"', ""], "stock": {"tea": 2}, "address": {"street": "Main", "since": "2020-02-29"}}
POSTGRESQL_TYPES = {
    "user": "text",
    "text": "text",
    "number": "bigint",
    "fraction": "double precision",
    "is_new": "boolean",
    "content": "bytea",
    "at": "timestamp with time zone",
    "day": "date",
    "clock": "time without time zone",
    "price": "numeric(12,2)",
    "exact": "numeric(38,9)",
    "id": "uuid",
    "size": "text",
    "tags": "jsonb",
    "stock": "jsonb",
    "address": "jsonb",
}
SQLITE_TYPES = {
    **dict.fromkeys(POSTGRESQL_TYPES, "TEXT"),
    "number": "BIGINT",
    "fraction": "DOUBLE",
    "is_new": "BOOLEAN",
    "content": "BLOB",
    "price": "NUMERIC(12, 2)",
}


def commit_everything(shop):
    """One row with all values and one that has none but its key."""
    shop.commit_rows([{"user": "ann", **VALUES}, {"user": "bob", **dict.fromkeys(VALUES)} | {"number": 0}])
    drain(shop.publisher())


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_every_type_of_a_column_arrives_in_postgresql(tmp_path, postgresql, mode):
    shop = SqlShop(tmp_path, postgresql.url, mode, value=Everything)
    commit_everything(shop)
    assert postgresql.types(TABLE) == POSTGRESQL_TYPES
    full, empty = postgresql.rows(TABLE)
    assert full == {"user": "ann", **VALUES, **NESTED, "id": UUID(int=7)}
    assert empty == {"user": "bob", **dict.fromkeys(VALUES), "number": 0}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_every_type_of_a_column_arrives_in_sqlite(tmp_path, sqlite, mode):
    shop = SqlShop(tmp_path, sqlite.url, mode, value=Everything)
    commit_everything(shop)
    assert sqlite.types(TABLE) == SQLITE_TYPES
    full, empty = sqlite.rows(TABLE)
    assert full == {
        **{"user": "ann", **VALUES},
        "at": "2026-05-01 09:30:00.250+00:00",
        "day": "1969-12-31",
        "clock": "08:30:01.000005",
        "price": float(VALUES["price"]),
        "exact": str(VALUES["exact"]),
        "tags": '["x","y\\"",""]',
        "stock": '{"tea":2}',
        "address": '{"street":"Main","since":"2020-02-29"}',
    }
    assert datetime.fromisoformat(full["at"]) == VALUES["at"]
    assert empty == {"user": "bob", **dict.fromkeys(VALUES), "number": 0}


@pytest.mark.parametrize("names", [("user", "100%", 'a "quoted" name'), ("User", "select", "weir_rows")])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_names_may_be_whatever_the_database_takes(tmp_path, database, names, mode):
    key, *values = names
    builder = StreamsBuilder()
    stream = builder.stream("in", key=String(key), value=Int64("n")).map_values(**dict.fromkeys(values, pl.col("n")))
    stream.to_sql(TABLE, mode=mode, url=database.url)
    (node,) = Application("shop", builder).topology.sinks
    connection = SqlConnection("shop", node.sink, "")
    rows = pl.DataFrame({key: ["ann", "bob"], **{name: [1, 2] for name in values}, "_deleted": [False, False]})
    connection.publish(rows, Published("x", Mark(1, 2)))
    if mode == "upsert":
        connection.publish(rows[1:].with_columns(_deleted=True), Published("x", Mark(2, 1)))
    connection.close()
    assert database.rows(TABLE) == rows[: 2 if mode == "append" else 1].drop("_deleted").to_dicts()


def test_an_upsert_makes_a_primary_key_and_a_schema_is_that_of_table_and_marks(tmp_path, postgresql):
    postgresql.run("CREATE SCHEMA sales")
    shop = SqlShop(tmp_path, postgresql.url, "upsert", schema="sales", key=["item", "user"])
    shop.commit_rows(ROWS[:1])
    drain(shop.publisher())
    assert postgresql.rows(f"sales.{TABLE}") == [{"item": "tea", "user": "ann", "cents": 1}]
    assert postgresql.rows("sales.weir_progress")
    with pytest.raises(Exception, match="duplicate key"):
        postgresql.run(f"INSERT INTO sales.{TABLE} VALUES ('tea', 'ann', 2)")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_gets_the_columns_that_a_changed_program_adds(tmp_path, database, mode):
    database.run(f'CREATE TABLE {TABLE} ("user" text PRIMARY KEY, item text)')
    database.run(f"INSERT INTO {TABLE} VALUES ('zoe', 'jam')")
    shop = SqlShop(tmp_path, database.url, mode)
    check_sql_tables([shop.sink], "")
    shop.commit_rows(ROWS)
    drain(shop.publisher())
    assert database.rows(TABLE) == [{"user": "zoe", "item": "jam", "cents": None}, *ROWS]


def test_a_column_that_a_changed_program_leaves_out_stays_and_is_null(tmp_path, database):
    database.run(f'CREATE TABLE {TABLE} ("user" text, item text, cents bigint, shop text)')
    shop = SqlShop(tmp_path, database.url)
    shop.commit_rows(ROWS)
    drain(shop.publisher())
    assert database.rows(TABLE) == [{**row, "shop": None} for row in ROWS]


MISFITS = {
    "another type": ('"user" text, item text, cents text', "append", "the column cents is TEXT, and its values are"),
    "no cast": ('"user" text, item text, cents date', "append", "the column cents is DATE, and its values are"),
    "no unique key": ('"user" text, item text, cents bigint', "upsert", "no unique key has just the columns user"),
    "a missing key": ("item text, cents bigint", "upsert", "no unique key has just the columns user"),
    "another key": (
        '"user" text, item text, cents bigint, PRIMARY KEY ("user", item)',
        "upsert",
        "no unique key has just the columns user",
    ),
    "a column that must be filled": (
        '"user" text, item text, cents bigint, shop text NOT NULL',
        "append",
        "the rows have no shop, which must not be null",
    ),
    "a key that the rows lack": (
        '"user" text, item text, cents bigint, shop text NOT NULL PRIMARY KEY',
        "append",
        "the rows have no shop, which must not be null",
    ),
    "a key without a cast": ('"user" bytea, item text, cents bigint', "upsert", "no unique key has just the columns"),
    "several": (
        '"user" text, item bytea, cents text, shop text NOT NULL',
        "upsert",
        "item is .*; the column cents is .*; the rows have no shop.*; no unique key",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_table_that_does_not_fit_is_refused_with_statements_that_make_it_fit(tmp_path, database, misfit):
    columns, mode, reason = MISFITS[misfit]
    if not database.is_postgresql:
        columns = columns.replace("bytea", "blob")
    database.run(f"CREATE TABLE {TABLE} ({columns})")
    shop = SqlShop(tmp_path, database.url, mode)
    before = database.types(TABLE)
    with pytest.raises(SinkTableError, match=f"sink 'orders': its rows do not fit the table orders: .*{reason}"):
        check_sql_tables([shop.sink], "")
    with pytest.raises(SinkError, match=reason):  # of a publisher that could not be started with it
        SqlConnection("shop", shop.sink, "")
    assert database.types(TABLE) == before
    _follow(database, shop.sink)
    rows = [row | {"item": "tea"} for row in ROWS]
    shop.commit_rows(rows)
    drain(shop.publisher())
    assert [{name: row[name] for name in rows[0]} for row in database.rows(TABLE)] == rows


def _follow(database, *sinks):
    """Run all that the message says, in its order; then the tables fit."""
    with pytest.raises(SinkTableError) as refused:
        check_sql_tables(sinks, "")
    for statement in STATEMENT.findall(str(refused.value)):
        database.run(*statement.split("; "))
    check_sql_tables(sinks, "")


def test_all_tables_that_do_not_fit_are_named_at_once(tmp_path, database):
    database.run(
        'CREATE TABLE first ("user" text, item text, cents text)',
        'CREATE TABLE second ("user" text, item text, cents bigint, shop text NOT NULL)',
    )
    sinks = []
    for name in ("first", "fitting", "second"):
        builder = StreamsBuilder()
        stream = builder.stream("in", key=String("user"), value=Int64("cents")).map_values(
            item=pl.lit("tea"), cents=pl.col("cents")
        )
        stream.to_sql(name, url=database.url)
        (node,) = Application("shop", builder).topology.sinks
        sinks.append(node.sink)
    both = r"sink 'first'.*the column cents is.*sink 'second'.*the rows have no shop"
    with pytest.raises(SinkTableError, match=both):
        check_sql_tables(sinks, "")
    _follow(database, *sinks)


def test_what_the_database_fills_itself_does_not_matter(tmp_path, database):
    number = "bigint GENERATED ALWAYS AS IDENTITY" if database.is_postgresql else "INTEGER NOT NULL PRIMARY KEY"
    database.run(
        f"CREATE TABLE {TABLE} (number {number}, made text NOT NULL DEFAULT 'now', \"user\" varchar(20), "
        "item text, cents integer)"
    )
    shop = SqlShop(tmp_path, database.url)
    check_sql_tables([shop.sink], "")
    shop.commit_rows(ROWS)
    drain(shop.publisher())
    assert database.rows(TABLE) == [{"number": n, "made": "now", **row} for n, row in enumerate(ROWS, 1)]


def test_a_partial_index_is_no_key(tmp_path, database):
    database.run(
        f'CREATE TABLE {TABLE} ("user" text, item text, cents bigint)',
        f'CREATE UNIQUE INDEX part ON {TABLE} ("user") WHERE cents > 0',
    )
    with pytest.raises(SinkTableError, match="no unique key"):
        check_sql_tables([SqlShop(tmp_path, database.url, "upsert").sink], "")


@pytest.mark.parametrize(
    ("declared", "is_taken"),
    [("numeric", True), ("numeric(30, 4)", True), ("numeric(12, 1)", False), ("double precision", False)],
)
def test_decimals_are_never_rounded(tmp_path, postgresql, declared, is_taken):
    @dataclass(frozen=True)
    class Price:
        price: Annotated[Decimal, pl.Decimal(12, 2)]

    postgresql.run(f'CREATE TABLE {TABLE} ("user" text, price {declared})')
    shop = SqlShop(tmp_path, postgresql.url, value=Price)
    if not is_taken:
        with pytest.raises(SinkTableError, match="the column price is"):
            check_sql_tables([shop.sink], "")
        _follow(postgresql, shop.sink)
    shop.commit_rows([{"user": "ann", "price": Decimal("1.25")}])
    drain(shop.publisher())
    assert [row["price"] for row in postgresql.rows(TABLE)] == [Decimal("1.25")]


def test_a_database_that_does_not_answer_does_not_stop_the_start(tmp_path, caplog):
    shop, url = SqlShop(tmp_path, None), "postgresql://ann:secret@127.0.0.1:1/shop"
    check_sql_tables([shop.sink], url)
    assert "sink 'orders': the table orders is checked later: " in caplog.text
    assert "Connection refused; Is the server running" in caplog.text, "PostgreSQL says it in two lines"
    with pytest.raises(SinkError, match=r"the database of the table orders: .*refused") as error:
        SqlConnection("shop", shop.sink, url)
    assert "secret" not in caplog.text + str(error.value) + repr(shop.sink) + str(shop.sink)


def test_a_sink_without_a_database_takes_that_of_the_settings_or_of_a_variable(tmp_path, sqlite, monkeypatch):
    shop = SqlShop(tmp_path, None)
    with pytest.raises(SinkAddressError, match=r"it has no database; set WEIR_SQL_URL, .* or pass url=") as error:
        check_sql_tables([shop.sink], "")
    SqlConnection("shop", shop.sink, sqlite.url).close()
    named = SqlShop(tmp_path / "named", "env:SHOP_DATABASE")
    with pytest.raises(SinkAddressError, match="the variable SHOP_DATABASE is not set; set it to the URL"):
        check_sql_tables([named.sink], sqlite.url)
    monkeypatch.setenv("SHOP_DATABASE", sqlite.url)
    SqlConnection("other", named.sink, "").close()
    assert {row["application"] for row in sqlite.rows("weir_progress")} == {"shop", "other"}
    assert "sqlite:////folder/file.db" in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["mysql://ann:secret@host/shop", "sqlite://", "sqlite:///:memory:", "no url, secret", "postgresql://ann:secret"],
)
def test_a_url_for_another_database_is_refused_and_not_shown(tmp_path, url):
    shop = SqlShop(tmp_path, None)
    with pytest.raises(SinkAddressError, match="its URL is for neither PostgreSQL nor a file of SQLite") as error:
        check_sql_tables([shop.sink], url)
    assert "secret" not in str(error.value)


def test_a_file_of_sqlite_needs_its_whole_path_and_its_folder(tmp_path):
    shop, folder = SqlShop(tmp_path, None), tmp_path / "missing"
    with pytest.raises(
        SinkAddressError, match=r"does not have the full path of the file 'shop\.db'; give it with four slashes"
    ):
        check_sql_tables([shop.sink], "sqlite:///shop.db")
    url = f"sqlite:///{folder}/shop.db"
    said = f"the folder {str(folder)!r} of its SQLite file does not exist; create it, or correct the URL"
    with pytest.raises(SinkAddressError, match=said):
        check_sql_tables([shop.sink], url)
    with pytest.raises(SinkError, match=said):  # gone during a run
        SqlConnection("shop", shop.sink, url)
    folder.mkdir()
    check_sql_tables([shop.sink], url)
    SqlConnection("shop", shop.sink, url).close()
    check_sql_tables([shop.sink], f"sqlite:///{tmp_path}/shop.db")


def test_without_psycopg_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        SinkAddressError, match=r"PostgreSQL needs psycopg; run `pip install 'weir-streams\[postgresql\]'`"
    ):
        check_sql_tables([SqlShop(tmp_path, "postgresql://ann@host/shop").sink], "")
