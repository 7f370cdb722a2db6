"""Publishing to PostgreSQL and SQLite: rows and mark in one transaction, the mark as a row of a table beside the sink's
(PROTOCOL 25)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import polars as pl
from sqlalchemy import BigInteger, Column, MetaData, Row, Table, Text, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from weir.pipelines.publishing.connection import (
    BatchLimits,
    Published,
    RefusedRowsError,
    SinkError,
    SinkFencedError,
)
from weir.pipelines.publishing.sql_address import SinkAddressError, address_of, engine_of
from weir.pipelines.publishing.sql_rows import PostgresqlRows, RowWriter, SqliteRows
from weir.pipelines.publishing.sql_table import SinkTableError, TargetTable
from weir.pipelines.sinks.sink import Sink
from weir.pipelines.sinks.sql import SqlTable
from weir.state.commit.outbox import Mark

log = logging.getLogger("weir.publisher")

LIMITS = BatchLimits(rows=50_000, size_bytes=32 << 20)
"""What one transaction takes."""
MARKS_TABLE = "weir_progress"
_TABLES_LOCK = 0x7765697273
"""PostgreSQL's advisory lock for making tables: "weirs"."""
_LOCK_NOT_AVAILABLE = "55P03"
_REFUSALS = ("21", "22", "23", "44", "54", "P0")
"""Classes of PostgreSQL's error codes that are about the rows: values, constraints, limits, triggers. Of 21, keys that
are one in the database and several here, no row is left when it is alone."""


class SqlConnection:
    """A connection with a publisher's number, by which the marks table knows the one that began last."""

    def __init__(self, application: str, sink: SqlTable, default_url: str) -> None:
        """Makes the sink's table if it is missing, and the columns that it lacks.

        Raises:
            SinkError: The database does not answer or refuses, or the table does not take the rows.
        """
        self._sink, self._application, self.limits = sink, application, LIMITS
        self._known_as = f"weir {application} {sink.name}"[:63]
        self._marks = _marks(sink.schema)
        try:
            engine = engine_of(sink, address_of(sink, default_url), known_as=self._known_as)
        except SinkAddressError as error:
            raise SinkError(str(error)) from error
        self._error: Any = engine.dialect.loaded_dbapi.Error
        with self._told():
            self._connection = engine.connect()
        try:
            with self._told(ends_sleepers=True):
                self._writer = self._prepare()
                self._number, self._published = self._begin()
        except SinkError:
            self.close()
            raise

    def published(self) -> Published | None:
        return self._published

    def publish(self, rows: pl.DataFrame, published: Published) -> None:
        with self._told(), self._connection.begin():
            self._move(published)
            if not rows.is_empty():
                self._write(rows)

    def close(self) -> None:
        with suppress(SQLAlchemyError, self._error):
            self._connection.close()

    def _prepare(self) -> RowWriter:
        with self._connection.begin():
            if self._is_postgresql:
                self._connection.execute(text(f"SELECT pg_advisory_xact_lock({_TABLES_LOCK})"))
            self._marks.create(self._connection, checkfirst=True)
            target = TargetTable(self._connection, self._sink)
            if target.prepare():  # whatever an earlier table of that name had
                nothing = {"outbox": None, "epoch": 0, "rows": 0}
                self._connection.execute(update(self._marks).where(*self._own).values(nothing))
            writer = PostgresqlRows if self._is_postgresql else SqliteRows
            return writer(self._connection, self._sink, target.name)

    def _begin(self) -> tuple[int, Published | None]:
        """Take the next publisher's number: from here on, no earlier one moves the mark."""
        insert = (postgresql if self._is_postgresql else sqlite).insert(self._marks)
        own = {"application": self._application, "sink": self._sink.name}
        taken = insert.values(own | {"epoch": 0, "rows": 0, "publisher": 1}).on_conflict_do_update(
            index_elements=list(own), set_={"publisher": self._marks.c.publisher + 1}
        )
        with self._connection.begin():
            row: Row[Any] = self._connection.execute(taken.returning(*self._marks.c)).one()
        return row.publisher, None if row.outbox is None else Published(row.outbox, Mark(row.epoch, row.rows))

    def _move(self, published: Published) -> None:
        outbox, mark = published
        moved = (
            update(self._marks)
            .where(*self._own, self._marks.c.publisher == self._number)
            .values({"outbox": outbox, "epoch": mark.epoch, "rows": mark.rows})
        )
        if self._connection.execute(moved).rowcount != 1:
            raise SinkFencedError(f"another publisher has connected for the table {self._sink.qualified}")

    def _write(self, rows: pl.DataFrame) -> None:
        key = list(self._sink.key)
        rows = rows.select(pl.col(name).cast(dtype) for name, dtype in self._sink.columns.items())
        if not key:
            return self._writer.append(rows.drop("_deleted"))
        if rows.select(pl.any_horizontal(pl.col(key).is_null()).any()).item():
            raise RefusedRowsError(f"the table {self._sink.qualified} does not take a row whose key has a null")
        newest = rows.unique(key, keep="last", maintain_order=True)
        gone, there = (
            part.drop("_deleted") for part in (newest.filter("_deleted"), newest.filter(~pl.col("_deleted")))
        )
        if gone.height:
            self._writer.delete(gone.select(key))
        if there.height:
            self._writer.upsert(there)

    @property
    def _is_postgresql(self) -> bool:
        return self._connection.dialect.name == "postgresql"

    @property
    def _own(self) -> tuple[Any, Any]:
        columns = self._marks.c
        return columns.application == self._application, columns.sink == self._sink.name

    @contextmanager
    def _told(self, *, ends_sleepers: bool = False) -> Iterator[None]:
        """What the database says, as an error of sinks. ``ends_sleepers`` says that a lock that is not to be had may be
        that of an earlier publisher, which is to end."""
        try:
            yield
        except SinkTableError as error:
            raise SinkError(str(error)) from error
        except (SQLAlchemyError, self._error) as error:
            found = error.orig if isinstance(error, DBAPIError) else error
            if ends_sleepers and getattr(found, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                self._end_sleepers()
            if _is_refusal(found):
                reason = f"the table {self._sink.qualified} does not take the row: {_message(found)}"
                raise RefusedRowsError(reason) from error
            raise SinkError(f"the database of the table {self._sink.qualified}: {_message(found)}") from error

    def _end_sleepers(self) -> None:
        """End connections of other publishers of this sink, which hold a lock and do not go on."""
        others = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :known_as "
            "AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
        )
        with suppress(SQLAlchemyError), self._connection.begin():
            self._connection.execute(others, {"known_as": self._known_as})


def check_sql_tables(sinks: Iterable[Sink], default_url: str) -> None:
    """Look at the start of a run whether the tables that are there take the rows; a database that does not answer is
    left to the publishers, which try again.

    Raises:
        SinkTableError: A table does not; all of them are named.
        SinkAddressError: A sink has no database.
    """
    unfit: list[SinkTableError] = []
    for sink in sinks:
        if isinstance(sink, SqlTable):
            engine = engine_of(sink, address_of(sink, default_url), known_as="weir", writes=False)
            try:
                with closing(engine.connect()) as connection:
                    TargetTable(connection, sink).check()
            except SinkTableError as error:
                unfit.append(error)
            except SQLAlchemyError as error:
                log.warning("sink %r: the table %s is checked later: %s", sink.name, sink.qualified, _message(error))
    if unfit:
        first, *others = unfit
        raise SinkTableError(first.sink, first.table, first.faults, others)


def _marks(schema: str | None) -> Table:
    return Table(
        MARKS_TABLE,
        MetaData(),
        Column("application", Text, primary_key=True),
        Column("sink", Text, primary_key=True),
        Column("outbox", Text),
        Column("epoch", BigInteger, nullable=False),
        Column("rows", BigInteger, nullable=False),
        Column("publisher", BigInteger, nullable=False),
        schema=schema,
    )


def _is_refusal(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError))
    return str(getattr(error, "sqlstate", None) or "")[:2] in _REFUSALS


def _message(error: BaseException | None) -> str:
    """What the database says, on one line; statements and values of ours are left out."""
    found = error.orig if isinstance(error, DBAPIError) else error
    said = getattr(found, "diag", None)
    if said is not None and said.message_primary:
        return f"{said.message_primary} ({said.message_detail})" if said.message_detail else str(said.message_primary)
    return "; ".join(" ".join(line.split()) for line in str(found).splitlines() if line.strip())
