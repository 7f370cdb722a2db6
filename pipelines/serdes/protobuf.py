"""Protobuf messages of a generated class, with the header that a schema registry's serializers write.

Reading needs only the class: Protobuf's own rules reconcile older and newer messages, so the registry is not asked.
Fields become columns; a field with presence (``optional``, or a timestamp) that is not set is
null, any other has its default. An enum's value is its name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.registry import HEADER_BYTES, RegistrySerde, header, schema_id_of
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import DecodedColumns, decode_one_by_one, fields_of
from weir.pipelines.serdes.shapes import TIME

_TIMESTAMP = "google.protobuf.Timestamp"
_NUMBER = re.compile("-?[0-9]+")


class Protobuf(RegistrySerde):
    """``Protobuf(orders_pb2.Order)``: the fields of the message class as columns. Functions get objects with these.

    Encoding takes messages, or objects with the fields, and registers the class's file under ``subject``, by default
    the message's name. Unsigned 64-bit integers of 2^63 and more are bad input; nested messages are refused.
    """

    def __init__(self, message: Any, *, subject: str | None = None) -> None:
        if not hasattr(message, "DESCRIPTOR"):
            raise TopologyError(
                f"Protobuf got {message!r}, which is not a message class; pass one that protoc generated, for example "
                "Protobuf(orders_pb2.Order)"
            )
        self.message, self._descriptor = message, message.DESCRIPTOR
        self.subject = subject or self._descriptor.name
        self._readers = {field.name: _reader(field) for field in self._descriptor.fields}
        self._row_type = RowType(pl.Schema({field.name: _dtype(field) for field in self._descriptor.fields}))
        self._taken = {
            field.name: None if field.enum_type else self._row_type.annotations[field.name]
            for field in self._descriptor.fields
        }
        if not self._readers:
            raise TopologyError(f"the message {self._descriptor.name} has no fields; give it at least one")
        self._index = _message_index(self._descriptor)
        self._unsigned = [field.name for field in self._descriptor.fields if field.cpp_type == field.CPPTYPE_UINT64]
        self._enums = {field.name for field in self._descriptor.fields if field.enum_type}
        self._header: bytes | None = None

    def __repr__(self) -> str:
        return f"Protobuf({self._descriptor.full_name})"

    def connect(self, registry: Any) -> None:
        super().connect(registry)
        self._header = None

    def row_type(self, default_name: str) -> RowType:
        return self._row_type

    def encode(self, item: Any) -> bytes | None:
        if item is None:
            return None
        if self._header is None:
            file = base64.standard_b64encode(self._descriptor.file.serialized_pb).decode()
            self._header = header(self.registry.register(self.subject, file, "PROTOBUF")) + self._index
        if not isinstance(item, self.message):
            values = {name: value for name, value in fields_of(self, item, self._taken).items() if value is not None}
            for name in self._enums & values.keys():
                values[name] = _numbered(values[name])
            item = self.message(**values)
        encoded: bytes = item.SerializeToString()
        return self._header + encoded

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        messages, absent, bad = decode_one_by_one(items, self._decode_one)
        columns = [
            pl.Series(
                name, [None if message is None else read(message) for message in messages], dtype=row_type.columns[name]
            )
            for name, read in self._readers.items()
        ]
        return DecodedColumns(columns, absent, bad)

    def _decode_one(self, item: bytes) -> Any:
        schema_id_of(item)
        if not item.startswith(self._index, HEADER_BYTES):
            raise ValueError(f"not {self._descriptor.name}, but another message of its file")
        try:
            message = self.message.FromString(item[HEADER_BYTES + len(self._index) :])
        except Exception as error:  # DecodeError, which is not a ValueError
            raise ValueError(f"cannot be read as {self._descriptor.name}: {error}") from None
        for name in self._unsigned:
            if _beyond(getattr(message, name)):
                raise ValueError(f"{name} does not fit into a signed 64-bit integer")
        return message


def _beyond(value: Any) -> bool:
    return any(each >= 1 << 63 for each in value) if not isinstance(value, int) else value >= 1 << 63


def _numbered(value: Any) -> Any:
    """An enum's value that is not a name but the text of a number, as read from a newer message, as that number."""
    if isinstance(value, (list, tuple)):
        return [_numbered(each) for each in value]
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _dtype(field: Any) -> pl.DataType:
    kinds = {
        field.CPPTYPE_INT32: pl.Int64(),
        field.CPPTYPE_INT64: pl.Int64(),
        field.CPPTYPE_UINT32: pl.Int64(),
        field.CPPTYPE_UINT64: pl.Int64(),
        field.CPPTYPE_DOUBLE: pl.Float64(),
        field.CPPTYPE_FLOAT: pl.Float64(),
        field.CPPTYPE_BOOL: pl.Boolean(),
        field.CPPTYPE_ENUM: pl.String(),
        field.CPPTYPE_STRING: pl.String(),
    }
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        if field.message_type.full_name != _TIMESTAMP or field.is_repeated:
            raise TopologyError(
                f"the field {field.full_name} is a nested message, which has no column type; flatten it in the producer"
            )
        return TIME
    dtype = pl.Binary() if field.type == field.TYPE_BYTES else kinds[field.cpp_type]
    return pl.List(dtype) if field.is_repeated else dtype


def _reader(field: Any) -> Callable[[Any], Any]:
    """How a column's value is taken from a message."""
    name = field.name

    if field.cpp_type == field.CPPTYPE_MESSAGE:
        return lambda message: _time(getattr(message, name)) if message.HasField(name) else None
    plain = attrgetter(name)
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        if field.is_repeated:
            return lambda message: [names.get(value, str(value)) for value in plain(message)]
        read: Callable[[Any], Any] = lambda message: names.get(plain(message), str(plain(message)))  # noqa: E731
    else:
        read = plain
    if field.is_repeated:
        return lambda message: list(plain(message))
    if field.has_presence:
        return lambda message: read(message) if message.HasField(name) else None
    return read


def _time(timestamp: Any) -> datetime:
    time: datetime = timestamp.ToDatetime(tzinfo=UTC)
    return time


def _message_index(descriptor: Any) -> bytes:
    """The message's position in its file, as serializers write it: a count and indexes as zigzag varints, or just 0."""
    path: list[int] = []
    while descriptor is not None:
        siblings = (
            descriptor.containing_type.nested_types
            if descriptor.containing_type
            else list(descriptor.file.message_types_by_name.values())
        )
        path.insert(0, [each.full_name for each in siblings].index(descriptor.full_name))
        descriptor = descriptor.containing_type
    return b"\x00" if path == [0] else b"".join(map(_zigzag, [len(path), *path]))


def _zigzag(number: int) -> bytes:
    rest, encoded = number << 1, b""
    while rest >= 0x80:
        encoded, rest = encoded + bytes([rest & 0x7F | 0x80]), rest >> 7
    return encoded + bytes([rest])
