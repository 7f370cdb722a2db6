"""Writing rows to a SQL sink's table, within a transaction of the caller: how PostgreSQL and SQLite take many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import polars as pl
from sqlalchemy import Connection

from weir.pipelines.sinks.sql import SqlTable

_STAGED, _GONE = "weir_rows", "weir_gone"
_TEXT_FORMATS = {pl.Datetime: "%Y-%m-%d %H:%M:%S%.3f+00:00", pl.Date: "%Y-%m-%d", pl.Time: "%H:%M:%S%.6f"}
"""Of times in SQLite: its own functions and Python's ``fromisoformat`` read them, and they sort by time."""


class RowWriter(Protocol):
    """Writes to one table over one connection; the frames have the table's columns, or those of its key."""

    def append(self, rows: pl.DataFrame) -> None: ...

    def upsert(self, rows: pl.DataFrame) -> None:
        """Each key comes once."""
        ...

    def delete(self, keys: pl.DataFrame) -> None:
        """Each key comes once; it need not be there."""
        ...


class PostgresqlRows:
    """Copies rows into the table, or into temporary ones first."""

    def __init__(self, connection: Connection, sink: SqlTable, table: str) -> None:
        """``table`` is the quoted name. It makes the temporary tables, for the time of the connection."""
        self._connection, self._table, self._key = connection, table, sink.key
        if sink.key:
            for name, columns in ((_STAGED, list(sink.table_columns)), (_GONE, list(sink.key))):
                execute(
                    connection,
                    f"CREATE TEMPORARY TABLE {name} ON COMMIT DELETE ROWS AS "
                    f"SELECT {listed(columns)} FROM {table} WITH NO DATA",
                )

    def append(self, rows: pl.DataFrame) -> None:
        self._copy(self._table, rows)

    def upsert(self, rows: pl.DataFrame) -> None:
        self._copy(_STAGED, rows)
        columns = listed(rows.columns)
        execute(
            self._connection,
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {_STAGED} "
            + _on_conflict(self._key, rows.columns),
        )

    def delete(self, keys: pl.DataFrame) -> None:
        self._copy(_GONE, keys)
        matches = " AND ".join(f"there.{quoted(name)} = gone.{quoted(name)}" for name in self._key)
        execute(self._connection, f"DELETE FROM {self._table} AS there USING {_GONE} AS gone WHERE {matches}")

    def _copy(self, table: str, rows: pl.DataFrame) -> None:
        binary = [name for name, dtype in rows.schema.items() if dtype == pl.Binary()]
        shown = rows.with_columns((pl.lit("\\x") + pl.col(name).bin.encode("hex")).alias(name) for name in binary)
        # Quoted text is never taken for a null or for the end; nulls are empty and not quoted.
        text = shown.write_csv(include_header=False, quote_style="non_numeric")
        cursor: Any = self._connection.connection.cursor()
        with cursor, cursor.copy(f"COPY {table} ({listed(rows.columns)}) FROM STDIN (FORMAT csv)") as copy:
            copy.write(text)


class SqliteRows:
    """Inserts rows one by one, by prepared statements."""

    def __init__(self, connection: Connection, sink: SqlTable, table: str) -> None:
        """``table`` is the quoted name."""
        self._connection, self._table, self._key = connection, table, sink.key

    def append(self, rows: pl.DataFrame) -> None:
        self._insert(rows, "")

    def upsert(self, rows: pl.DataFrame) -> None:
        self._insert(rows, _on_conflict(self._key, rows.columns))

    def delete(self, keys: pl.DataFrame) -> None:
        matches = " AND ".join(f"{quoted(name)} = ?" for name in keys.columns)
        self._connection.exec_driver_sql(f"DELETE FROM {self._table} WHERE {matches}", _values(keys))

    def _insert(self, rows: pl.DataFrame, conflict: str) -> None:
        places = ", ".join("?" * rows.width)
        self._connection.exec_driver_sql(
            f"INSERT INTO {self._table} ({listed(rows.columns)}) VALUES ({places}) {conflict}", _values(rows)
        )


def quoted(name: str) -> str:
    """A name as both databases take it, whatever it contains."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Quoted names with commas."""
    return ", ".join(map(quoted, names))


def execute(connection: Connection, statement: str) -> None:
    """Execute a statement as it is: percent signs in names are no parameters."""
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _on_conflict(key: Sequence[str], columns: Sequence[str]) -> str:
    """The clause that replaces the row with the same key."""
    changed = [f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in columns if name not in key]
    return f"ON CONFLICT ({listed(key)}) DO " + (f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING")


def _values(rows: pl.DataFrame) -> list[tuple[Any, ...]]:
    texts = []
    for name, dtype in rows.schema.items():
        if type(dtype) in _TEXT_FORMATS:
            texts.append(pl.col(name).dt.to_string(_TEXT_FORMATS[type(dtype)]))
        elif isinstance(dtype, pl.Decimal):
            texts.append(pl.col(name).cast(pl.String))
    return rows.with_columns(texts).rows()
