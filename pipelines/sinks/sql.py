"""Tables of a SQL database as sinks: the columns of keys and values, as the table gets them.

Connecting and writing belong to ``weir.pipelines.publishing.sql``; workers import no database library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

import msgspec
import polars as pl

from weir.pipelines.operators.functions import KeyType
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.shapes import TIME, Choice, Field, Scalar, known_field
from weir.pipelines.serdes.values import objects_of
from weir.pipelines.sinks.shown import shown_columns

SqlMode = Literal["append", "upsert"]
_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class SqlTable:
    """A table that gets every record as a row, or the newest row of each key."""

    name: str
    table: str
    schema: str | None
    """The database's own if None."""
    mode: SqlMode
    key: tuple[str, ...]
    """The columns that an upsert goes by; none if rows are appended."""
    record_key: KeyType
    value: RowType
    url: str | None = field(repr=False)
    """A SQLAlchemy URL, ``env:NAME``, or None for that of the settings."""

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """What the values of each column of the table are."""
        bounds = ("window_start", "window_end") if self.record_key.is_windowed else ()
        return {
            **self.record_key.row_type.fields,
            **dict.fromkeys(bounds, known_field(datetime)),
            **self.value.fields,
        }

    @cached_property
    def table_columns(self) -> pl.Schema:
        """The columns that the table gets: nested values as JSON text."""
        return pl.Schema({name: _column_type(each) for name, each in self.fields.items()})

    @property
    def kind(self) -> str:
        scheme = (self.url or "").partition(":")[0].partition("+")[0]
        return scheme if scheme in ("postgresql", "sqlite") else "sql"

    @property
    def columns(self) -> pl.Schema:
        return pl.Schema({**self.table_columns, "_deleted": pl.Boolean()})

    @property
    def serdes(self) -> tuple[Serde, ...]:
        return ()

    @property
    def qualified(self) -> str:
        """The table's name with its schema's, for people."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    def outgoing(self, rows: pl.DataFrame) -> pl.DataFrame:
        columns = [
            _json(rows.get_column(name), each)
            if is_nested(each)
            else rows.get_column(name).cast(self.table_columns[name])
            for name, each in self.fields.items()
        ]
        return pl.DataFrame([*columns, rows.get_column("_deleted")])

    def shown_key(self, row: pl.DataFrame) -> str:
        return shown_columns(row, self.record_key.names)

    def __str__(self) -> str:
        return f"sql table: {self.qualified}" + (f", by {', '.join(self.key)}" if self.key else "")


def is_nested(field: Field) -> bool:
    """Whether values are lists, dictionaries or dataclasses."""
    return not isinstance(field.shape, (Scalar, Choice))


def _column_type(field: Field) -> pl.DataType:
    if is_nested(field):
        return pl.String()
    return TIME if isinstance(field.shape.dtype, pl.Datetime) else field.shape.dtype


def _json(column: pl.Series, field: Field) -> pl.Series:
    texts = [None if each is None else _ENCODER.encode(each).decode() for each in objects_of(column, field)]
    return pl.Series(column.name, texts, dtype=pl.String())
