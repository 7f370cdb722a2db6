"""What every serde promises of any bytes, and the serdes that are tried: one group of them is one target.

An input is a batch of records: ``BETWEEN`` parts them, and ``ABSENT`` is one without a value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from unittest.mock import patch
from uuid import UUID

import polars as pl
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from weir import Windowed
from weir.pipelines.serdes import (
    Avro,
    Boolean,
    Bytes,
    Delimited,
    Float32,
    Float64,
    Int32,
    Int64,
    Json,
    Msgpack,
    Protobuf,
    SessionWindowed,
    String,
    TimeWindowed,
    Uuid,
    json_serde,
)
from weir.pipelines.serdes.registry import UnknownSchemaError
from weir.pipelines.serdes.serde import DecodedColumns, Serde, decoded
from weir.pipelines.serdes.values import is_datetime
from weir.pipelines.serdes.windowed import TIME_BYTES, WindowedSerde

BETWEEN, ABSENT = b"\xfe|\xfe", b"~"
MOST_RECORDS = 8


class Status(Enum):
    OPEN = "open"
    PAID = "paid"


@dataclass(frozen=True)
class Place:
    zip: int
    city: str | None = None


@dataclass(frozen=True)
class Order:
    """A field of every shape."""

    item: str
    amount: int
    price: float | None = None
    at: datetime | None = None
    day: date | None = None
    clock: time | None = None
    cost: Decimal | None = None
    fee: Annotated[Decimal, pl.Decimal(6, 2)] | None = None
    id: UUID | None = None
    status: Status | None = None
    unit: Literal["kg", "g"] | None = None
    level: Literal[1, 2] | None = None
    raw: bytes | None = None
    paid: bool | None = None
    tags: list[str | None] | None = None
    place: Place | None = None
    stops: tuple[Place, ...] | None = None
    counts: dict[str, int] | None = None


@dataclass(frozen=True)
class Route:
    carrier: str
    number: int
    origin: str


def _record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


NODE = _record("Node", label="string", next=["null", "Node"])
WRITERS = [
    _record("Order", item="string", amount="int"),
    _record(
        "shop.Order",
        skipped={"type": "map", "values": {"type": "array", "items": ["null", "double", NODE]}},
        item={"type": "enum", "name": "Item", "symbols": ["tea", "pen"]},
        amount="long",
        price=["null", "float", "int"],
        at={"type": "long", "logicalType": "timestamp-micros"},
        day={"type": "int", "logicalType": "date"},
        clock={"type": "int", "logicalType": "time-millis"},
        cost={"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 12},
        fee={"type": "fixed", "name": "Fee", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 2},
        id="string",
        status="string",
        raw="bytes",
        place=["null", _record("Spot", city=["null", "string"], zip="int")],
        stops={"type": "array", "items": "Spot"},
        counts={"type": "map", "values": "int"},
    ),
    _record("Nested", next=["null", NODE], item="string", amount="int"),
    _record("Endless", nothing={"type": "array", "items": "null"}, item="string", amount="int"),
    "string",
]
"""Schemas that records were written with, by their ids from 2; 1 is the one that the serde registers."""


class Schemas:
    """A schema registry in memory."""

    def __init__(self) -> None:
        self.texts = [json.dumps(None), *map(json.dumps, WRITERS)]

    def register(self, subject: str, schema: str, kind: str) -> int:
        self.texts[0] = schema
        return 1

    def schema(self, schema_id: int) -> str:
        if not 0 < schema_id <= len(self.texts):
            raise UnknownSchemaError(f"the schema registry has no schema {schema_id}")
        return self.texts[schema_id - 1]


def message_class() -> Any:
    """A message class with a field of every type, as ``protoc`` would generate it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="fuzz.proto", package="fuzz", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    color = file.enum_type.add(name="Color")
    for number, name in enumerate(("RED", "BLUE")):
        color.value.add(name=name, number=number)
    message = file.message_type.add(name="Order")
    plain = ["string", "bytes", "bool", "double", "float", "int32", "int64"]
    plain += ["uint32", "uint64", "sint64", "fixed64", "enum"]
    for number, (kind, label) in enumerate(((kind, label) for kind in plain for label in (1, 3)), 1):
        field = message.field.add(name=f"{kind}_{label}", number=number, label=label)
        field.type = getattr(kinds, f"TYPE_{kind.upper()}")
        if kind == "enum":
            field.type_name = ".fuzz.Color"
    message.field.add(name="at", number=40, label=1, type=kinds.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    maybe = message.field.add(name="maybe", number=41, label=1, type=kinds.TYPE_INT64)
    maybe.proto3_optional, maybe.oneof_index = True, 0
    message.oneof_decl.add(name="_maybe")
    pool = descriptor_pool.DescriptorPool()
    for needed in (descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), file):
        pool.Add(needed)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fuzz.Order"))


def _connected(serde: Any) -> Any:
    serde.connect(Schemas())
    return serde


TARGETS: dict[str, Sequence[Serde]] = {
    "scalars": [String(), Bytes(), Int64(), Int32(), Float64(), Float32(), Boolean(), Uuid()],
    "keys": [
        Delimited(Route, sep="-"),
        Delimited(Route, sep="--"),
        TimeWindowed(String("user"), size=timedelta(hours=1)),
        SessionWindowed(Int64("user")),
        TimeWindowed(Delimited(Route, sep="-"), size=timedelta(milliseconds=1)),
    ],
    "json": [Json(Order), Json(Order, within="payload")],
    "msgpack": [Msgpack(Order)],
    "avro": [_connected(Avro(Order))],
    "protobuf": [_connected(Protobuf(message_class()))],
}


def records_of(data: bytes) -> list[bytes | None]:
    """The records of an input."""
    return [None if part == ABSENT else part for part in data.split(BETWEEN)[:MOST_RECORDS]]


def check(serde: Serde, records: list[bytes | None]) -> None:
    """Raises ``AssertionError`` where a serde breaks a promise with a batch of records:

    whatever the bytes, each record has a value, or none, or a reason that it is bad; a batch is read as its records are
    one by one, however large it is; and what was read is the same after it was written and read again.
    """
    row_type = serde.row_type("value")
    whole = _decoded(serde, records, row_type)
    if len(records) > 1:
        alone = [_decoded(serde, [record], row_type) for record in records]
        _same(_rows(whole), [row for each in alone for row in _rows(each)])
    if isinstance(serde, Json):
        with patch.object(json_serde, "FEW", 1):
            _same(_rows(_decoded(serde, records, row_type)), _rows(whole))
    for index, item in _items(serde, whole, row_type).items():
        written = serde.encode(item)
        assert isinstance(written, bytes)
        _require_nothing_lost(serde, records[index] or b"", written)
        again = _decoded(serde, [written], row_type)
        assert (again.bad, again.absent) == ({}, []), f"{item!r} is written as {written!r}"
        _same([_items(serde, again, row_type)[0]], [item])


def _require_nothing_lost(serde: Serde, record: bytes, written: bytes) -> None:
    """Where there is one way to write a value, that is how it was written."""
    if isinstance(serde, WindowedSerde):
        width = serde.times * TIME_BYTES
        assert written[-width:] == record[-width:]
        serde, record, written = serde.key, record[:-width], written[:-width]
    if isinstance(serde, (String, Bytes, Int64, Int32, Boolean)):
        assert written == record
    if isinstance(serde, Delimited):  # a number may have had leading zeros
        assert len(written.split(serde.sep.encode())) == len(record.split(serde.sep.encode()))


def _decoded(serde: Serde, records: list[bytes | None], row_type: Any) -> DecodedColumns:
    found = decoded(serde, pl.Series(records, dtype=pl.Binary()), row_type)
    extra = {"window_start", "window_end"} if isinstance(serde, WindowedSerde) else set()
    types = {column.name: column.dtype for column in found.columns}
    assert {name: dtype for name, dtype in types.items() if name not in extra} == dict(row_type.columns)
    assert {len(column) for column in found.columns} == {len(records)}
    assert found.absent == sorted(set(found.absent) - found.bad.keys())
    assert {index for index, record in enumerate(records) if record is None} <= set(found.absent)
    assert all(isinstance(reason, str) and reason for reason in found.bad.values())
    return found


def _rows(found: DecodedColumns) -> list[Any]:
    """Of each record its columns, or why there are none."""
    values = zip(*(column.to_physical().to_list() for column in found.columns), strict=True)
    rows: list[Any] = list(values)
    for index in found.bad:
        rows[index] = "bad"
    for index in found.absent:
        assert all(column[index] is None for column in found.columns if not column.name.startswith("window_"))
        rows[index] = "absent"
    return rows


def _items(serde: Serde, found: DecodedColumns, row_type: Any) -> dict[int, Any]:
    """The objects that were read, by their rows. Without those that have a time which Python cannot hold: it is another
    in them."""
    frame = pl.DataFrame(found.columns)
    is_read = pl.Series([True] * frame.height).scatter([*found.absent, *found.bad], False)
    for column in frame:
        if isinstance(column.dtype, pl.Datetime):
            is_read &= is_datetime(column)
    frame = frame.filter(is_read)
    items = row_type.to_objects(frame)
    if isinstance(serde, WindowedSerde):
        starts, ends = frame["window_start"].to_list(), frame["window_end"].to_list()
        assert all(start <= end for start, end in zip(starts, ends, strict=True))
        items = [Windowed(*each) for each in zip(items, starts, ends, strict=True)]
    return dict(zip(is_read.arg_true().to_list(), items, strict=True))


def _same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert _equal(one, other), f"{one!r} instead of {other!r}"


def _equal(one: Any, other: Any) -> bool:
    """NaN equals itself here."""
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and _equal(list(vars(one).values()), list(vars(other).values()))
    return bool(one == other)
