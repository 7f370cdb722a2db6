"""Declares sinks: their names and serdes, checked against the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from weir.pipelines.dsl.graph import check_name, user_function
from weir.pipelines.dsl.sources import check_serde
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import expression_dtype
from weir.pipelines.operators.functions import KeyType
from weir.pipelines.serdes.json_serde import Json
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.scalar import Boolean, Bytes, Float64, Int64, String
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.sinks.kafka import KafkaTopic, TopicFunction
from weir.pipelines.topology.nodes import RecordType

_SCALARS: dict[Any, Callable[[], Serde]] = {str: String, bytes: Bytes, int: Int64, float: Float64, bool: Boolean}


def kafka_topic(
    record: RecordType,
    topic: str | pl.Expr | Callable[[Any, Any], str],
    *,
    key: Serde | None,
    value: Serde | None,
    partition: pl.Expr | None,
    name: str | None,
    has_headers: bool = False,
) -> KafkaTopic:
    """A topic that takes records of this type.

    Raises:
        TopologyError: A serde writes other columns, an expression has another type, or the sink lacks a name.
    """
    chosen: str | pl.Expr | TopicFunction
    if isinstance(topic, str):
        chosen = check_name("topic", topic)
        name = topic if name is None else name
    elif not isinstance(topic, pl.Expr) and not callable(topic):
        raise TopologyError(
            f"to() got {topic!r} for the topic; pass its name, or a polars expression or a function that names it"
        )
    elif name is None:
        what = "an expression" if isinstance(topic, pl.Expr) else "a function"
        raise TopologyError(f'to() with {what} for the topic needs a name for the sink; add name="..."')
    elif isinstance(topic, pl.Expr):
        _check_expression("topic", topic, record, pl.String(), "text")
        chosen = topic
    else:
        function = user_function(topic, f"the sink {name!r}", "key", "value")
        chosen = TopicFunction(function=function, key=record.key_type, value=record.value)
    if partition is not None and not isinstance(partition, pl.Expr):
        raise TopologyError(
            f"the sink {name!r}: partition is {partition!r}; pass a polars expression for its number, for example "
            'col("shard")'
        )
    for part, serde in (("key", key), ("value", value)):
        if serde is not None:
            check_serde(f"the sink {name!r}", part, serde)
    if partition is not None:
        _check_expression("partition", partition, record, pl.Int64(), "a whole number")
    if record.is_windowed and key is None:
        raise TopologyError(
            f"the sink {name!r} gets windowed keys, and there are several ways to write these; pass one, for example "
            "key=TimeWindowed(String(), size=timedelta(minutes=1)), or select another key first"
        )
    key_type, key_serde = (record.key, key) if key and record.is_windowed else _written("key", name, record.key, key)
    value_type, value_serde = _written("value", name, record.value, value)
    return KafkaTopic(
        name=check_name("sink", name),
        topic=chosen,
        key=KeyType(key_type, record.is_windowed),
        value=value_type,
        key_serde=key_serde,
        value_serde=value_serde,
        partition=partition,
        has_headers=has_headers,
    )


def _check_expression(what: str, expression: pl.Expr, record: RecordType, wanted: pl.DataType, kind: str) -> None:
    found = expression_dtype(expression, record.columns, f"the expression for the {what}")
    if found != wanted and not (wanted.is_integer() and found.is_integer()):
        raise TopologyError(f"the expression for the {what} gives {found}; it has to give {kind}")


def _written(what: str, name: str, row_type: RowType, serde: Serde | None) -> tuple[RowType, Serde]:
    """The serde that the program gives, or else the one that writes the columns as Kafka's own tools read them, and
    the columns as the objects that it takes: one that writes scalars takes any single column."""
    if serde is None:
        if not row_type.is_scalar:
            return row_type, Json(row_type.python_type or row_type.columns)
        (annotation,) = row_type.annotations.values()
        if annotation in _SCALARS:
            return row_type, _SCALARS[annotation]()
        return RowType(row_type.columns, declared=row_type.annotations), Json(row_type.columns)
    written = serde.row_type(what)
    has_same_types = list(written.columns.values()) == list(row_type.columns.values())
    if has_same_types and written.is_scalar:
        return RowType(row_type.columns, True, written.python_type), serde
    if has_same_types and list(written.columns) == list(row_type.columns):
        return row_type, serde
    raise TopologyError(
        f"the sink {name!r} writes its {what} with {serde!r}, which has {_listed(written)}, but the records have "
        f"{_listed(row_type)}; pass another serde, or map the {what} first"
    )


def _listed(row_type: RowType) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in row_type.columns.items()) or "no columns"
