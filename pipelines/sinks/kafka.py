"""Kafka topics as sinks: keys and values become bytes as a producer would write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from weir.pipelines.errors import UserFunctionError
from weir.pipelines.operators.functions import KeyType, Records
from weir.pipelines.serdes.headers import HEADERS, HEADERS_TYPE
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.scalar import Boolean, Bytes, Float64, Int64, String
from weir.pipelines.serdes.serde import Serde

BY_KEY = -1
"""The partition of a record whose key decides, as in Java's producer."""
_AS_BYTES = (String, Bytes)
_SCALARS: dict[Any, Callable[[], Serde]] = {str: String, bytes: Bytes, int: Int64, float: Float64, bool: Boolean}


@dataclass(frozen=True, kw_only=True)
class KafkaTopic:
    """A topic, or one for each record."""

    name: str
    topic: str | pl.Expr
    """An expression over the columns of key and value gives each record its topic."""
    key: KeyType
    value: RowType
    key_serde: Serde
    value_serde: Serde
    partition: pl.Expr | None
    has_headers: bool = False
    """Whether the records have headers; the column of the outbox is null if they have not."""

    @property
    def kind(self) -> str:
        return "kafka"

    @property
    def columns(self) -> pl.Schema:
        return pl.Schema(
            {
                "topic": pl.String(),
                "partition": pl.Int32(),
                "key": pl.Binary(),
                "value": pl.Binary(),
                "time_ms": pl.Int64(),
                "headers": HEADERS_TYPE,
            }
        )

    @property
    def serdes(self) -> tuple[Serde, ...]:
        return self.key_serde, self.value_serde

    def outgoing(self, rows: pl.DataFrame) -> pl.DataFrame:
        return (
            rows.select(
                pl.lit(self.topic, pl.String()).alias("topic")
                if isinstance(self.topic, str)
                else self.topic.alias("topic"),
                (pl.lit(BY_KEY) if self.partition is None else self.partition.fill_null(BY_KEY))
                .cast(pl.Int32)
                .alias("partition"),
                pl.col("_ts").alias("time_ms"),
                (pl.col(HEADERS) if self.has_headers else pl.lit(None, HEADERS_TYPE)).alias("headers"),
            )
            .with_columns(key=self._keys(rows), value=self._values(rows))
            .select(list(self.columns))
        )

    def __str__(self) -> str:
        return f"topic: {self.topic}" if isinstance(self.topic, str) else "extractor class: expression"

    def _keys(self, rows: pl.DataFrame) -> pl.Series:
        if isinstance(self.key_serde, _AS_BYTES) and not self.key.is_windowed:
            return rows.get_column(self.key.names[0]).cast(pl.Binary())
        return self._encoded("key", self.key_serde, self.key.to_objects(rows), rows)

    def _values(self, rows: pl.DataFrame) -> pl.Series:
        is_gone = rows.get_column("_deleted")
        if isinstance(self.value_serde, _AS_BYTES):
            column = rows.get_column(next(iter(self.value.columns))).cast(pl.Binary())
            return column.set(is_gone, None) if is_gone.any() else column
        values = self.value.to_objects(rows, is_gone if is_gone.any() else None)
        return self._encoded("value", self.value_serde, values, rows)

    def _encoded(self, what: str, serde: Serde, items: Sequence[Any], rows: pl.DataFrame) -> pl.Series:
        encode, encoded = serde.encode, list[bytes | None]()
        try:
            for item in items:
                encoded.append(encode(item))
        except (TypeError, ValueError) as error:
            place = Records(rows, self.key.names).at(len(encoded))
            raise UserFunctionError(repr(serde), f"the sink {self.name!r}", f"the {what}: {error}", place) from error
        return pl.Series(encoded, dtype=pl.Binary())
