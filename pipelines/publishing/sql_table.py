"""The table of a SQL sink: whether one that is there takes the sink's rows, and making or extending it.

A table that does not fit is left as it is: the error says which statements make it fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Column, Connection, DateTime, MetaData, Table, inspect
from sqlalchemy.exc import DBAPIError, UnsupportedCompilationError
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from weir.pipelines.publishing.sql_rows import execute, listed, quoted
from weir.pipelines.publishing.sql_types import column_type, takes
from weir.pipelines.sinks.sql import SqlTable


class SinkTableError(Exception):
    """A table that is there does not take a sink's rows."""

    def __init__(self, sink: str, table: str, faults: Sequence[str]) -> None:
        super().__init__(sink, table, faults)
        self.sink, self.table, self.faults = sink, table, faults

    def __str__(self) -> str:
        return f"sink {self.sink!r}: its rows do not fit the table {self.table}: {'; '.join(self.faults)}"


class TargetTable:
    """A sink's table, as one connection finds it."""

    def __init__(self, connection: Connection, sink: SqlTable) -> None:
        self._connection, self._sink = connection, sink
        self._dialect = connection.dialect.name
        self._inspector = inspect(connection)
        self._place = sink.table, sink.schema
        self._types = {name: column_type(field, self._dialect) for name, field in sink.fields.items()}
        self.name = ".".join(map(quoted, filter(None, (sink.schema, sink.table))))
        """Quoted, with its schema."""

    def check(self) -> None:
        """Raises ``SinkTableError`` if the table is there and does not take the sink's rows; changes nothing."""
        if self._exists and (faults := list(self._faults())):
            raise SinkTableError(self._sink.name, self._sink.qualified, faults)

    def prepare(self) -> bool:
        """Make the table if it is missing, or add the columns that it lacks; whether it was missing.

        Raises:
            SinkTableError: It does not take the sink's rows.
        """
        if not self._exists:
            key = self._sink.key
            names = [*key, *(name for name in self._types if name not in key)]
            columns = [Column(name, self._types[name], primary_key=name in key) for name in names]
            table = Table(self._sink.table, MetaData(), *columns, schema=self._sink.schema)
            self._connection.execute(CreateTable(table))
            return True
        self.check()
        found = self._columns
        for name in self._types:
            if name not in found:
                execute(self._connection, self._added(name))
        return False

    @property
    def _exists(self) -> bool:
        return self._inspector.has_table(*self._place)

    @property
    def _columns(self) -> dict[str, Any]:
        return {each["name"]: each for each in self._inspector.get_columns(*self._place)}

    @property
    def _primary_key(self) -> list[str]:
        return self._inspector.get_pk_constraint(*self._place)["constrained_columns"]

    def _faults(self) -> Iterator[str]:
        """What does not fit, each with the statement that helps."""
        found = self._columns
        for name, wanted in self._types.items():
            if name in found and not takes(kind := found[name]["type"], wanted, self._dialect):
                yield (
                    f"the column {name} is {self._shown(kind)}, and its values are {self._shown(wanted)}: run "
                    f"`{self._retyped(name, kind, wanted)}`"
                )
        for name, column in found.items():
            if name not in self._types and not column["nullable"] and not self._is_filled(column):
                yield f"the rows have no {name}, which must not be null: run `{self._optional(name)}`"
        if self._sink.key and set(self._sink.key) not in self._unique():
            missing = [self._added(name) for name in self._sink.key if name not in found]
            index = "" if self._dialect == "postgresql" else quoted(f"{self._sink.table}_key") + " "
            statement = f"CREATE UNIQUE INDEX {index}ON {self.name} ({listed(self._sink.key)})"
            yield (
                f"no unique key has just the columns {', '.join(self._sink.key)}: run "
                f"`{'; '.join([*missing, statement])}`"
            )

    def _added(self, name: str) -> str:
        return f"ALTER TABLE {self.name} ADD COLUMN {quoted(name)} {self._shown(self._types[name])}"

    def _retyped(self, name: str, found: TypeEngine[Any], wanted: TypeEngine[Any]) -> str:
        if self._dialect == "sqlite":
            return self._set_aside()
        before, now = self._shown(found), self._shown(wanted)
        try:
            with self._connection.begin_nested():
                execute(self._connection, f"SELECT CAST(CAST(NULL AS {before}) AS {now})")
        except DBAPIError:  # there is no cast: the run adds a new column
            return f"ALTER TABLE {self.name} RENAME COLUMN {quoted(name)} TO {quoted(f'{name}_old')}"
        cast = " AT TIME ZONE 'UTC'" if isinstance(found, DateTime) else f"::{now}"
        return f"ALTER TABLE {self.name} ALTER COLUMN {quoted(name)} TYPE {now} USING {quoted(name)}{cast}"

    def _optional(self, name: str) -> str:
        if self._dialect == "sqlite" or name in self._primary_key:
            return self._set_aside()
        return f"ALTER TABLE {self.name} ALTER COLUMN {quoted(name)} DROP NOT NULL"

    def _set_aside(self) -> str:
        """After it the run makes a table of its own."""
        return f"ALTER TABLE {self.name} RENAME TO {quoted(f'{self._sink.table}_old')}"

    def _is_filled(self, column: Any) -> bool:
        """Whether the database itself gives the column a value."""
        if column["default"] is not None or column.get("identity") or column.get("computed"):
            return True
        is_row_number = self._primary_key == [column["name"]] and self._shown(column["type"]) == "INTEGER"
        return self._dialect == "sqlite" and is_row_number

    def _unique(self) -> Iterator[set[str]]:
        """The columns of each key that an upsert can go by."""
        yield set(self._primary_key)
        for constraint in self._inspector.get_unique_constraints(*self._place):
            yield set(constraint["column_names"])
        for index in self._inspector.get_indexes(*self._place):
            is_partial = any(option.endswith("_where") for option in index.get("dialect_options", {}))
            if index["unique"] and not is_partial and not index.get("expressions"):
                yield {str(name) for name in index["column_names"]}

    def _shown(self, kind: TypeEngine[Any]) -> str:
        try:
            return kind.compile(dialect=self._connection.dialect)
        except UnsupportedCompilationError:  # SQLAlchemy does not know the type
            return str(kind)
