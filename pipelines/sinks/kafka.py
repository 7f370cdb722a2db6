"""Kafka topics as sinks: keys and values become bytes as a producer would write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from weir.pipelines.errors import OperatorError, UserFunctionError
from weir.pipelines.operators.functions import KeyType, Records, UserFunction
from weir.pipelines.serdes.column_bytes import bytes_of
from weir.pipelines.serdes.headers import HEADERS, HEADERS_TYPE
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.scalar import Boolean, Bytes, Float64, Int64, String
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.shapes import Scalar
from weir.pipelines.sinks.shown import shown
from weir.pipelines.topic_names import TOPIC_NAME, is_topic_name

BY_KEY = -1
"""The partition of a record whose key decides, as in Java's producer."""
_AS_BYTES = (String, Bytes)
_SCALARS: dict[Any, Callable[[], Serde]] = {str: String, bytes: Bytes, int: Int64, float: Float64, bool: Boolean}


@dataclass(frozen=True, kw_only=True)
class TopicFunction:
    """A function of ``(key, value)`` that gives each record its topic."""

    function: UserFunction
    key: KeyType
    value: RowType

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """The column ``topic``; raises ``UserFunctionError`` if a result is no name."""
        records = Records(rows, self.key.names)
        values = self.value.to_objects(rows, rows.get_column("_deleted"))
        found = self.function.over(zip(self.key.to_objects(rows), values, strict=True), records)
        for index, topic in enumerate(found):
            if not is_topic_name(topic):
                raise self.function.failed(
                    f"it returned {topic!r} for the topic, which has to be a name of {TOPIC_NAME}", records, index
                )
        return pl.Series("topic", found, pl.String())


@dataclass(frozen=True, kw_only=True)
class KafkaTopic:
    """A topic, or one for each record."""

    name: str
    topic: str | pl.Expr | TopicFunction
    """An expression over the columns of key and value, or a function of both, gives each record its topic."""
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
                self._topics(rows),
                (pl.lit(BY_KEY) if self.partition is None else self.partition.fill_null(BY_KEY))
                .cast(pl.Int32)
                .alias("partition"),
                pl.col("_ts").alias("time_ms"),
                (pl.col(HEADERS) if self.has_headers else pl.lit(None, HEADERS_TYPE)).alias("headers"),
            )
            .with_columns(key=self._keys(rows), value=self._values(rows))
            .select(list(self.columns))
        )

    def shown_key(self, row: pl.DataFrame) -> str:
        key = shown(row["key"].item())
        return key if isinstance(self.topic, str) else f"{key}, topic {shown(row['topic'].item())}"

    def __str__(self) -> str:
        match self.topic:
            case str():
                return f"topic: {self.topic}"
            case TopicFunction():
                return f"topic: by {self.topic.function.name}"
            case _:
                return "topic: by expression"

    def _topics(self, rows: pl.DataFrame) -> pl.Expr | pl.Series:
        match self.topic:
            case str():
                return pl.lit(self.topic, pl.String()).alias("topic")
            case TopicFunction():
                return self.topic.of(rows)
            case _:
                return self._topics_by(self.topic, rows)

    def _topics_by(self, expression: pl.Expr, rows: pl.DataFrame) -> pl.Series:
        topics = rows.with_columns(topic=expression).get_column("topic")
        for topic in topics.unique(maintain_order=True):
            if not is_topic_name(topic):
                raise OperatorError(
                    f"the sink {self.name!r}",
                    f"the expression for the topic gives {topic!r}, which has to be a name of {TOPIC_NAME}",
                )
        return topics

    def _keys(self, rows: pl.DataFrame) -> pl.Series:
        if (
            not self.key.is_windowed
            and (written := _at_once(self.key_serde, self.key.row_type, rows, None)) is not None
        ):
            return written
        return self._encoded("key", self.key_serde, self.key.to_objects(rows), rows)

    def _values(self, rows: pl.DataFrame) -> pl.Series:
        is_gone = rows.get_column("_deleted")
        absent = is_gone if is_gone.any() else None
        if (written := _at_once(self.value_serde, self.value, rows, absent)) is not None:
            return written
        return self._encoded("value", self.value_serde, self.value.to_objects(rows, absent), rows)

    def _encoded(self, what: str, serde: Serde, items: Sequence[Any], rows: pl.DataFrame) -> pl.Series:
        encode, encoded = serde.encode, list[bytes | None]()
        try:
            for item in items:
                encoded.append(encode(item))
        except (TypeError, ValueError) as error:
            place = Records(rows, self.key.names).at(len(encoded))
            raise UserFunctionError(repr(serde), f"the sink {self.name!r}", f"the {what}: {error}", place) from error
        return pl.Series(encoded, dtype=pl.Binary())


def _at_once(serde: Serde, row_type: RowType, rows: pl.DataFrame, absent: pl.Series | None) -> pl.Series | None:
    """The bytes of a single column, null where ``absent``; None if the serde has to write each object."""
    is_text = isinstance(serde, _AS_BYTES)
    name, *others = row_type.columns
    if not is_text and (others or not row_type.is_scalar or not isinstance(row_type.fields[name].shape, Scalar)):
        return None
    column = rows.get_column(name)
    if absent is not None:
        column = column.set(absent, None)
    return column.cast(pl.Binary()) if is_text else bytes_of(serde, column)
