"""Sinks that get batches of rows: HTTP endpoints, and what programs write themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import polars as pl

from weir.pipelines.operators.functions import KeyType
from weir.pipelines.operators.windows import WINDOW_COLUMNS
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.shapes import TIME, Field, known_field
from weir.pipelines.sinks.http import HttpEndpoint
from weir.pipelines.sinks.json_rows import json_rows
from weir.pipelines.sinks.own import Sink
from weir.pipelines.sinks.shown import shown_columns
from weir.state.commit.outbox import BYTES

SEPARATOR_BYTES = 1
"""Between rows of a body: a comma or the end of a line."""


@dataclass(frozen=True, kw_only=True)
class BatchedSink:
    """A target that gets rows in batches, at least once."""

    name: str
    target: HttpEndpoint | Sink
    key: KeyType
    value: RowType
    max_records: int
    max_bytes: int

    @property
    def kind(self) -> str:
        return "http" if isinstance(self.target, HttpEndpoint) else "python"

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """What the target gets of each row."""
        bounds = dict.fromkeys(WINDOW_COLUMNS if self.key.is_windowed else (), known_field(datetime))
        times = {"_ts": known_field(datetime), "_deleted": known_field(bool)}
        return {**self.key.row_type.fields, **bounds, **self.value.fields, **times}

    @cached_property
    def row_columns(self) -> pl.Schema:
        """The columns of these fields."""
        bounds = WINDOW_COLUMNS if self.key.is_windowed else {}
        times = {"_ts": TIME, "_deleted": pl.Boolean()}
        return pl.Schema({**self.key.row_type.columns, **bounds, **self.value.columns, **times})

    @property
    def columns(self) -> pl.Schema:
        return pl.Schema({**self.row_columns, BYTES: pl.Int64()})

    @property
    def serdes(self) -> tuple[Serde, ...]:
        return ()

    def outgoing(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows, each with its bytes in a body of JSON: batches are cut by these, whatever the target's form."""
        leaving = self.rows(rows)
        sizes = [len(row) + SEPARATOR_BYTES for row in json_rows(leaving, self.fields)]
        return leaving.with_columns(pl.Series(BYTES, sizes, dtype=pl.Int64()))

    def rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """What the target gets of rows of a stream or an outbox."""
        return rows.select(pl.col(name).cast(dtype) for name, dtype in self.row_columns.items())

    def shown_key(self, row: pl.DataFrame) -> str:
        return shown_columns(row, self.key.names)

    def __str__(self) -> str:
        if isinstance(self.target, HttpEndpoint):
            return f"http: {self.target}, at least once"
        return f"sink: {type(self.target).__name__}, at least once"
