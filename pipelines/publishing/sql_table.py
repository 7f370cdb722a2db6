"""The table of a SQL sink: whether one that is there takes the sink's rows, and making or extending it.

A table that does not fit is left as it is: the error says which statements make it fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, DateTime, MetaData, Table, inspect
from sqlalchemy.exc import DBAPIError, UnsupportedCompilationError
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from weir.pipelines.publishing.sql_rows import execute, listed, quoted
from weir.pipelines.publishing.sql_types import column_type, takes
from weir.pipelines.sinks.sql import SqlTable


class SinkTableError(Exception):
    """A table that is there does not take a sink's rows."""

    def __init__(self, sink: str, table: str, faults: Sequence[str], others: Sequence[SinkTableError] = ()) -> None:
        """``others`` are those of the program's other sinks."""
        super().__init__(sink, table, faults, others)
        self.sink, self.table, self.faults, self.others = sink, table, faults, others

    def __str__(self) -> str:
        own = f"sink {self.sink!r}: its rows do not fit the table {self.table}: {'; '.join(self.faults)}"
        return "; ".join([own, *map(str, self.others)])


class _Fault(NamedTuple):
    """What does not fit, and the statement that helps."""

    what: str
    statement: str
    makes_anew: bool = False
    """Whether the statement puts the table aside, so that no other is needed."""


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
        if not self._exists or not (faults := list(self._faults())):
            return
        if any(fault.makes_anew for fault in faults):
            *first, last = [fault.what for fault in faults]
            told = [*first, f"{last}: run `{self._set_aside()}`, and the run makes a table of its own"]
        else:
            told = [f"{fault.what}: run `{fault.statement}`" for fault in faults]
        raise SinkTableError(self._sink.name, self._sink.qualified, told)

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

    def _faults(self) -> Iterator[_Fault]:
        """What does not fit, in the order in which the statements are to be run."""
        found, left = self._columns, set(self._columns)
        for name, wanted in self._types.items():
            if name in found and not takes(kind := found[name]["type"], wanted, self._dialect):
                what = f"the column {name} is {self._shown(kind)}, and its values are {self._shown(wanted)}"
                if self._dialect == "sqlite":
                    yield _Fault(what, self._set_aside(), makes_anew=True)
                elif self._is_cast(kind, wanted):
                    yield _Fault(what, self._retyped(name, kind, wanted))
                else:  # the run adds a new column
                    left.remove(name)
                    other = quoted(f"{name}_old")
                    yield _Fault(what, f"ALTER TABLE {self.name} RENAME COLUMN {quoted(name)} TO {other}")
        for name, column in found.items():
            if name not in self._types and not column["nullable"] and not self._is_filled(column):
                what = f"the rows have no {name}, which must not be null"
                if self._dialect == "sqlite" or name in self._primary_key:
                    yield _Fault(what, self._set_aside(), makes_anew=True)
                else:
                    yield _Fault(what, f"ALTER TABLE {self.name} ALTER COLUMN {quoted(name)} DROP NOT NULL")
        if self._sink.key and set(self._sink.key) not in self._unique():
            missing = [self._added(name) for name in self._sink.key if name not in left]
            index = "" if self._dialect == "postgresql" else quoted(f"{self._sink.table}_key") + " "
            statement = f"CREATE UNIQUE INDEX {index}ON {self.name} ({listed(self._sink.key)})"
            what = f"no unique key has just the columns {', '.join(self._sink.key)}"
            yield _Fault(what, "; ".join([*missing, statement]))

    def _added(self, name: str) -> str:
        return f"ALTER TABLE {self.name} ADD COLUMN {quoted(name)} {self._shown(self._types[name])}"

    def _is_cast(self, found: TypeEngine[Any], wanted: TypeEngine[Any]) -> bool:
        """Whether the database can make one type of the other."""
        try:
            with self._connection.begin_nested():
                execute(self._connection, f"SELECT CAST(CAST(NULL AS {self._shown(found)}) AS {self._shown(wanted)})")
        except DBAPIError:
            return False
        return True

    def _retyped(self, name: str, found: TypeEngine[Any], wanted: TypeEngine[Any]) -> str:
        now = self._shown(wanted)
        cast = " AT TIME ZONE 'UTC'" if isinstance(found, DateTime) else f"::{now}"
        return f"ALTER TABLE {self.name} ALTER COLUMN {quoted(name)} TYPE {now} USING {quoted(name)}{cast}"

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
