"""Avro schemas of shapes: the one that is registered, and the one that a writer's records are read into.

A reader's schema follows the writer's where Avro's own rules compare more than the values: names of records and enums,
the scale of a decimal, the unit of a time. What a writer's value then is, and whether it fits, is decided by its field.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from itertools import count
from typing import Any
from uuid import UUID

import polars as pl

from weir.pipelines.serdes.shapes import Choice, Field, ListOf, MapOf, Record, Scalar
from weir.pipelines.serdes.values import fixed

_TYPES: dict[Any, Any] = {
    int: "long",
    float: "double",
    str: "string",
    bool: "boolean",
    bytes: "bytes",
    datetime: {"type": "long", "logicalType": "timestamp-millis"},
    date: {"type": "int", "logicalType": "date"},
    time: {"type": "long", "logicalType": "time-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
}
_SYMBOL = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_WRITER = {Decimal: ("decimal",), UUID: ("uuid",), time: ("time-millis", "time-micros")}
"""Logical types that are read as their writer wrote them."""

Convert = Callable[[Any], Any]


def schema_of(record: Record) -> dict[str, Any]:
    """The schema of a dataclass; nested dataclasses and enums are named after their classes."""
    return _record(record, record.cls.__name__, {})


def _record(record: Record, name: str, names: dict[str, Any]) -> dict[str, Any]:
    names[name] = record
    fields = [_field(inner, field, f"{name}_{inner}", names) for inner, field in record.fields]
    return {"type": "record", "name": name, "fields": fields}


def _field(name: str, field: Field, path: str, names: dict[str, Any]) -> dict[str, Any]:
    written = {"name": name, "type": _type(field, path, names)}
    return {**written, "default": None} if field.is_optional else written


def _type(field: Field, path: str, names: dict[str, Any]) -> Any:
    written = _plain_type(field, path, names)
    return ["null", written] if field.is_optional else written


def _plain_type(field: Field, path: str, names: dict[str, Any]) -> Any:
    """``path`` is the name of a type whose class has the name of another; ``names`` are those that are taken."""
    match field.shape:
        case Scalar(kind=kind, dtype=dtype):
            if kind is Decimal:
                scale: Any = dtype
                return {
                    "type": "bytes",
                    "logicalType": "decimal",
                    "precision": scale.precision,
                    "scale": scale.scale,
                }
            return _TYPES[kind]
        case Choice(values=values, enum=cls) as shape:
            if cls is None or not all(isinstance(value, str) and _SYMBOL.fullmatch(value) for value in values):
                return "string" if isinstance(values[0], str) else "long"
            name = cls.__name__ if names.get(cls.__name__, shape) == shape else path
            if name in names:
                return name
            names[name] = shape
            return {"type": "enum", "name": name, "symbols": list(values)}
        case ListOf(item=item):
            return {"type": "array", "items": _type(item, path, names)}
        case MapOf(value=value):
            return {"type": "map", "values": _type(value, path, names)}
        case Record() as shape:
            name = shape.cls.__name__ if names.get(shape.cls.__name__, shape) == shape else path
            return name if name in names else _record(shape, name, names)


def reader_schema(record: Record, writer: Any) -> Any:
    """The schema into which records of ``writer``, a schema that fastavro has parsed, are read as ``record``."""
    return _Reader().of(Field(record), writer)


class _Reader:
    """Walks a declared shape and a writer's schema together."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._declared: dict[str, Any] = {}
        """The named types of the program that the writer has nothing like; they are named like their classes."""
        self._numbers = count()

    def of(self, field: Field, writer: Any) -> Any:
        self._know(writer)
        branches = [self._named.get(each, each) if isinstance(each, str) else each for each in _branches(writer)]
        fitting = [each for each in branches if _may_fit(field, each)]
        read = [self._plain(field, each) for each in fitting or [None]]
        if field.is_optional:
            read.insert(0, "null")
        return read if len(read) > 1 else read[0]

    def _plain(self, field: Field, writer: Any) -> Any:
        """``writer`` is not a union; None if it has nothing like the field."""
        shape = field.shape
        if writer is None:
            return _plain_type(field, self._new_name(), self._declared)
        match shape:
            case Record(fields=fields):
                written = {each["name"]: each["type"] for each in writer["fields"]}
                read = [
                    {"name": name, "type": self.of(inner, written[name])}
                    if name in written
                    else _field(name, inner, self._new_name(), self._declared)
                    for name, inner in fields
                ]
                return {"type": "record", **self._renamed(writer), "fields": read}
            case ListOf(item=item):
                return {"type": "array", "items": self.of(item, writer["items"])}
            case MapOf(value=value):
                return {"type": "map", "values": self.of(value, writer["values"])}
            case _:
                is_named = isinstance(writer, dict) and writer["type"] in ("enum", "fixed")
                return {**writer, **self._renamed(writer)} if is_named else writer

    def _know(self, writer: Any) -> None:
        """Remember the named types within ``writer``: a later mention is only their name."""
        match writer:
            case list():
                for each in writer:
                    self._know(each)
            case {"type": "record", "name": name, "fields": fields} if name not in self._named:
                self._named[name] = writer
                for each in fields:
                    self._know(each["type"])
            case {"type": "enum" | "fixed", "name": name}:
                self._named[name] = writer
            case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
                self._know(inner)

    def _renamed(self, writer: Any) -> dict[str, Any]:
        """A name of its own: two fields may read one type of the writer differently."""
        return {"name": self._new_name(), "aliases": [writer["name"]]}

    def _new_name(self) -> str:
        return f"declared_{next(self._numbers)}"


def _branches(writer: Any) -> list[Any]:
    return writer if isinstance(writer, list) else [writer]


def _may_fit(field: Field, writer: Any) -> bool:
    """Whether a branch of the writer's is of the field's sort; fastavro then resolves the two."""
    kind = writer["type"] if isinstance(writer, dict) else writer
    match field.shape:
        case Record():
            return bool(kind == "record")
        case ListOf():
            return bool(kind == "array")
        case MapOf():
            return bool(kind == "map")
        case Choice(dtype=dtype):
            return kind in (("enum", "string") if dtype == pl.String() else ("int", "long"))
        case Scalar(kind=scalar):
            if kind in {Decimal: ("string", "int", "long"), UUID: ("string",), str: ("string", "enum")}.get(scalar, ()):
                return True
            return isinstance(writer, dict) and writer.get("logicalType") in _OF_THE_WRITER.get(scalar, ())


def converter(field: Field) -> Convert | None:
    """What makes a field's values of those that fastavro reads: a UUID or a Decimal may be text. None if nothing does.

    Text that is neither stays as it is.
    """
    match field.shape:
        case Scalar(kind=kind) if kind in (Decimal, UUID):

            def parsed(value: Any) -> Any:
                try:
                    return kind(value) if isinstance(value, str) else value
                except (InvalidOperation, ValueError):
                    return value

            return parsed
        case ListOf(item=item) if (each := converter(item)) is not None:
            convert_item = each
            return lambda values: None if values is None else [convert_item(value) for value in values]
        case MapOf(value=item) if (each := converter(item)) is not None:
            convert_value = each
            return lambda values: (
                None if values is None else {name: convert_value(value) for name, value in values.items()}
            )
        case Record(fields=fields):
            changed = {name: convert for name, inner in fields if (convert := converter(inner))}
            if changed:
                return lambda record: (
                    None
                    if record is None
                    else record | {name: convert(record[name]) for name, convert in changed.items()}
                )
    return None


def as_written(field: Field, value: Any) -> Any:
    """A value as fastavro takes it: dataclasses as dictionaries, members of an ``Enum`` as their values."""
    if value is None:
        return None
    match field.shape:
        case Record(fields=fields):
            return {name: as_written(inner, getattr(value, name)) for name, inner in fields}
        case ListOf(item=item):
            return [as_written(item, each) for each in value]
        case MapOf(value=item):
            return {name: as_written(item, each) for name, each in value.items()}
        case Choice() if isinstance(value, enum.Enum):
            return value.value
        case Scalar(kind=kind, dtype=dtype) if kind is Decimal:
            return fixed(value, dtype)
    return value
