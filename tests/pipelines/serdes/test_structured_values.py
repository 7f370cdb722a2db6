"""Structured values through the serdes, the rows of stores, and a changelog: what went in comes out."""

import dataclasses
import io
import json
import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import fastavro
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.pipelines.structured import gone, objects
from weir import Avro, Json, Msgpack, TopologyError
from weir.pipelines.serdes.registry import header
from weir.pipelines.serdes.row_type import row_type_of
from weir.state.stores.codec import RowCodec
from weir.state.stores.single import SingleRowCodec


class MemoryRegistry:
    """The schemas of one test."""

    def __init__(self) -> None:
        self.schemas: list[str] = []

    def register(self, subject: str, schema: str, kind: str) -> int:
        self.schemas.append(schema)
        return len(self.schemas)

    def schema(self, schema_id: int) -> str:
        return self.schemas[schema_id - 1]


def connected(cls, registry=None):
    serde = Avro(cls)
    serde.connect(registry or MemoryRegistry())
    return serde


def through(serde, values):
    """What functions get of ``values`` after they were written and read, and the reasons of those that were not."""
    row_type = serde.row_type("value")
    items = pl.Series([each if isinstance(each, bytes) else serde.encode(each) for each in values], dtype=pl.Binary())
    decoded = serde.decode(items, row_type)
    frame = pl.DataFrame(decoded.columns)
    assert frame.schema == row_type.columns
    is_absent = [index in decoded.absent or index in decoded.bad for index in range(len(values))]
    return row_type.to_objects(frame, pl.Series(is_absent, dtype=pl.Boolean)), decoded.bad


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(objects())
def test_random_objects_come_back_from_every_serde_alone_and_in_large_batches(made):
    cls, values = made
    for serde in (Json(cls), Msgpack(cls), connected(cls)):
        assert through(serde, values) == (values, {})
    many = values * 40
    assert through(Json(cls), many) == (many, {})


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(objects())
def test_random_objects_come_back_from_the_rows_of_a_store(made):
    cls, values = made
    row_type = row_type_of(cls, "")
    frame = pl.DataFrame(row_type.to_columns(values)).with_columns(_ts=pl.int_range(pl.len(), dtype=pl.Int64))
    codec = RowCodec(row_type.columns)
    packed = codec.encode(frame)
    assert row_type.to_objects(codec.decode(packed), gone(values)) == values
    single = SingleRowCodec(row_type.columns)
    for row, time_ms, one in zip(packed, frame["_ts"], frame.drop("_ts").iter_slices(1), strict=True):
        found = single.decode(row)
        assert found == (one.row(0, named=True), time_ms)
        assert single.encode(*found) == row


class Status(Enum):
    OPEN = "open"
    PAID = "paid"


@dataclass(frozen=True)
class Address:
    zip: int
    city: str | None = None


@dataclass(frozen=True)
class Order:
    address: Address
    others: list[Address] = dataclasses.field(default_factory=list)
    price: Annotated[Decimal, pl.Decimal(6, 2)] | None = None
    by_name: dict[str, Address] | None = None


PLAIN = {"address": {"zip": 1}, "others": []}


@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"address": {"zip": "x"}}, "Expected `int`, got `str` - at `$.address.zip`"),
        ({"address": {}}, "missing required field `zip` - at `$.address`"),
        ({"address": None}, "`$.address`"),
        ({"others": [{"zip": 1}, {"zip": 2**63}]}, "does not fit into 64 bits - at `$.others[1].zip`"),
        ({"by_name": {"a": {"zip": 2**63}}}, "does not fit into 64 bits - at `$.by_name['a'].zip`"),
        ({"price": "1.234"}, "1.234 does not fit a Decimal of 6 digits, 2 of them after the point - at `$.price`"),
        ({"price": "12345"}, "12345 does not fit a Decimal of 6 digits, 2 of them after the point - at `$.price`"),
        ({"price": "NaN"}, "NaN does not fit a Decimal"),
    ],
)
@pytest.mark.parametrize(("serde", "encode"), [(Json, msgspec.json.encode), (Msgpack, msgspec.msgpack.encode)])
def test_a_value_that_does_not_fit_is_named_by_its_path_and_spoils_no_other(serde, encode, change, reason, rows):
    good = encode({**PLAIN, "unknown": [{}]})
    found, bad = through(serde(Order), [good, encode({**PLAIN, **change})] * rows)
    assert found == [Order(Address(1)), None] * rows
    assert list(bad) == list(range(1, 2 * rows, 2))
    assert reason in bad[1]


@pytest.mark.parametrize("rows", [1, 60])
def test_a_json_value_may_be_within_a_field(rows):
    serde = pickle.loads(pickle.dumps(Json(Order, within="payload")))
    values = [
        b'{"schema": {"x": [1]}, "payload": {"address": {"zip": 1}, "others": []}}',
        b'{"payload": null}',
        b"null",
    ]
    wanted = [Order(Address(1)), None, None]
    assert through(serde, values * rows) == (wanted * rows, {})
    assert through(serde, wanted * rows) == (wanted * rows, {})
    large = b'{"payload": {"address": {"zip": 9223372036854775808}, "others": []}}'
    _, bad = through(serde, [*values, large, b'{"other": 1}'] * rows)
    assert list(bad)[:2] == [3, 4]
    assert ("`$.payload.address.zip`" in bad[3], "missing required field `payload`" in bad[4]) == (True, True)


def test_json_takes_the_usual_forms_of_a_value():
    @dataclass(frozen=True)
    class Forms:
        price: Decimal
        id: UUID
        status: Status
        unit: Literal["kg", "g"]
        day: date
        at: time

    forms = {
        "price": 1.10, "id": "9F0C3B6E-3A2D-4C5B-8F4E-0123456789AB", "status": "paid", "unit": "g",
        "day": "2024-05-01", "at": "08:30:00.5",
    }  # fmt: skip
    wanted = Forms(
        Decimal("1.1"), UUID("9f0c3b6e-3a2d-4c5b-8f4e-0123456789ab"), Status.PAID, "g", date(2024, 5, 1),
        time(8, 30, 0, 500_000),
    )  # fmt: skip
    assert through(Json(Forms), [json.dumps(forms).encode()]) == ([wanted], {})
    for name, value in (("status", "gone"), ("unit", "t"), ("id", "x"), ("at", "08:30:00Z"), ("day", "1.5.2024")):
        (_, bad) = through(Json(Forms), [json.dumps({**forms, name: value}).encode()])
        assert f"`$.{name}`" in bad[0]


@dataclass(frozen=True)
class Payment:
    amount: Decimal
    id: UUID
    status: Status
    label: str
    at: time
    before: Address | None
    after: Address
    lines: tuple[Address, ...]


WRITER = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.v1",
    "fields": [
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "country", "type": "string"},
                        {"name": "zip", "type": "int"},
                        {"name": "city", "type": ["null", "string"]},
                    ],
                },
            ],
        },
        {"name": "after", "type": "Value"},
        {"name": "lines", "type": {"type": "array", "items": ["null", "Value"]}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 4}},
        {"name": "id", "type": "string"},
        {"name": "status", "type": {"type": "enum", "name": "State", "symbols": ["open", "paid", "lost"]}},
        {"name": "label", "type": ["string", "State"]},
    ],
}
WRITTEN = {
    "at": time(8, 30, 0, 5000),
    "before": None,
    "after": {"country": "no", "zip": 1, "city": None},
    "lines": [{"country": "no", "zip": 2, "city": "Oslo"}],
    "amount": Decimal("12.3400"),
    "id": "9F0C3B6E-3A2D-4C5B-8F4E-0123456789AB",
    "status": "paid",
    "label": "x",
}


def avro_of(registry, schema, record):
    number = registry.register("orders-value", json.dumps(schema), "AVRO")
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), record)
    return header(number) + written.getvalue()


def test_avro_of_another_writer_is_read_whatever_its_names_scales_and_units():
    registry = MemoryRegistry()
    serde = connected(Payment, registry)
    item = avro_of(registry, WRITER, WRITTEN)
    payment = Payment(
        Decimal("12.34"),
        UUID("9f0c3b6e-3a2d-4c5b-8f4e-0123456789ab"),
        Status.PAID,
        "x",
        time(8, 30, 0, 5000),
        None,
        Address(1),
        (Address(2, "Oslo"),),
    )
    before = avro_of(registry, WRITER, {**WRITTEN, "before": WRITTEN["after"], "label": ("shop.v1.State", "open")})
    assert through(serde, [item, before]) == (
        [payment, dataclasses.replace(payment, before=Address(1), label="open")],
        {},
    )
    assert pickle.loads(pickle.dumps(serde)).subject == "Payment"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "lost"}, "it is declared Status, and the value is str - at `$.status`"),
        ({"id": "x"}, "it is declared UUID, and the value is str - at `$.id`"),
    ],
)
def test_an_avro_value_that_does_not_fit_is_named_by_its_path(change, reason):
    registry = MemoryRegistry()
    serde = connected(Payment, registry)
    good = avro_of(registry, WRITER, WRITTEN)
    found, bad = through(serde, [good, avro_of(registry, WRITER, {**WRITTEN, **change})])
    assert (found[0].label, found[1]) == ("x", None)
    assert reason in bad[1]


def test_avro_reads_decimals_and_enums_that_are_text_and_fields_that_are_missing():
    @dataclass(frozen=True)
    class Price:
        amount: Decimal
        note: Address | None
        count: Decimal
        status: Status = Status.OPEN

    registry = MemoryRegistry()
    written = {"amount": "string", "count": "long", "status": "string"}
    fields = [{"name": name, "type": kind} for name, kind in written.items()]
    schema = {"type": "record", "name": "P", "fields": fields}
    items = [avro_of(registry, schema, {"amount": text, "count": 3, "status": "paid"}) for text in ("1.25", "much")]
    found, bad = through(connected(Price, registry), items)
    assert found[0] == Price(Decimal("1.25"), None, Decimal(3), Status.PAID)
    assert "it is declared Decimal, and the value is str - at `$.amount`" in bad[1]


def test_two_classes_of_one_name_are_two_types_in_avro():
    def named_place(*fields: tuple[str, Any]) -> type:
        return dataclasses.make_dataclass("Place", fields, frozen=True)

    one, other = named_place(("a", int)), named_place(("b", str))
    cls = dataclasses.make_dataclass("Trip", [("start", one), ("end", other), ("stops", list[one])], frozen=True)
    trip = cls(one(1), other("x"), [one(2)])
    assert through(connected(cls), [trip]) == ([trip], {})


def test_an_object_with_a_part_of_another_type_is_refused_naming_its_path():
    with pytest.raises(TypeError, match=r"takes int for address\.zip, found 'x' \(str\)"):
        connected(Order).encode(Order(Address("x")))


def test_a_nested_arrow_schema_makes_rows_that_pickle():
    place = pa.struct([pa.field("zip", pa.int32()), pa.field("city", pa.string())])
    schema = pa.schema(
        [
            pa.field("place", place, nullable=False),
            pa.field("stops", pa.list_(place)),
            pa.field("labels", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.int64())]))),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.time64("us")),
        ]
    )
    values = {"place": {"zip": 1}, "stops": [{"city": "x"}], "labels": {"a": 1}, "price": "1.50", "at": "08:00:00"}
    (row, empty, none), bad = through(Json(schema), [json.dumps(values).encode(), b'{"place": {}}', b'{"place": null}'])
    assert (row.place.zip, row.stops[0].city, row.labels, row.price, row.at) == (
        1, "x", {"a": 1}, Decimal("1.50"), time(8),
    )  # fmt: skip
    assert (empty.place.zip, empty.stops, none, list(bad)) == (None, None, None, [2])
    assert pickle.loads(pickle.dumps([row, empty])) == [row, empty]


class Mixed(Enum):
    A = 1
    B = "b"


def recursive() -> type:
    @dataclass(frozen=True)
    class Tree:
        children: "list[Tree]"

    Tree.__annotations__["children"] = list[Tree]
    return Tree


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Mixed, "Made.f is Mixed of the values 1, 'b', which have no common column type"),
        (Literal["a", 1], "Made.f is a Literal of the values 'a', 1"),
        (Literal[True], "Made.f is a Literal of the values True"),
        (dict[int, str], r"Made.f is annotated dict\[int, str\], which has no column type; use .*dict\[str, X\]"),
        (tuple[int, str], "Made.f is annotated"),
        (list, "Made.f is annotated"),
        (int | str, "Made.f is annotated"),
        (recursive(), "Tree contains itself"),
        (dataclasses.make_dataclass("Open", [("x", int)]), "dataclass Open is not frozen"),
        (dataclasses.make_dataclass("Empty", [], frozen=True), "Empty has no fields"),
    ],
)
@pytest.mark.parametrize("serde", [Json, Msgpack, Avro])
def test_types_without_a_column_are_refused_when_they_are_declared(serde, annotation, words):
    cls = dataclasses.make_dataclass("Made", [("f", annotation)], frozen=True)
    with pytest.raises(TopologyError, match=words):
        serde(cls)


def test_a_class_that_is_defined_further_down_is_named_and_taken_once_it_is_there(monkeypatch):
    basket = dataclasses.make_dataclass("Basket", [("items", "list[Later]")], frozen=True)
    monkeypatch.setattr(basket, "__module__", __name__)
    with pytest.raises(TopologyError, match=r"Basket has a field of the type Later, .* define or import it above"):
        Json(basket)
    later = dataclasses.make_dataclass("Later", [("n", int)], frozen=True)
    monkeypatch.setitem(globals(), "Later", later)
    assert row_type_of(basket, "").columns == {"items": pl.List(pl.Struct({"n": pl.Int64}))}


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize("far", [300_000_000_000_000_000, 2**63 - 1, -(2**62)])
def test_times_stay_in_range_at_any_depth(far, unit):
    last = (datetime.min if far < 0 else datetime.max).replace(tzinfo=UTC)
    far = pl.DataFrame({"at": [far]}).cast(pl.Datetime(unit, "UTC"))
    nested = far.select(pl.struct("at").alias("window"), pl.concat_list("at").alias("all"))

    @dataclass(frozen=True)
    class Window:
        at: datetime

    @dataclass(frozen=True)
    class Row:
        window: Window
        all: list[datetime]

    assert row_type_of(Row, "").to_objects(nested) == [Row(Window(last), [last])]
