"""Avro and Protobuf through a schema registry: schema evolution, bad input, and a registry that is not there."""

import dataclasses
import io
import json
import pickle
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum

import fastavro
import polars as pl
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from tests.pipelines.serdes.registry_server import schema_registry
from weir import Application, Avro, Json, Protobuf, SchemaRegistryError, StreamsBuilder, String, TopologyError
from weir.pipelines.serdes.registry import SchemaRegistry, connect_serdes, header
from weir.testing import TopologyTestDriver

NOON = datetime(2024, 5, 1, 12, 30, 1, 250_000, tzinfo=UTC)
TIME = {"type": "long", "logicalType": "timestamp-millis"}
CONTEXT = SerializationContext("orders", MessageField.VALUE)


@dataclass(frozen=True)
class Order:
    item: str
    amount: int
    price: float | None = None
    at: datetime | None = None
    day: date | None = None
    tags: list[str] | None = None
    raw: bytes | None = None
    paid: bool | None = None


@dataclass(frozen=True)
class Priced:
    item: str
    amount: int
    price: float | None


class Color(Enum):
    RED = "red"


ORDER = Order("tea", 3, 2.5, NOON, date(2024, 5, 1), ["a", "b"], b"\xff", True)


@pytest.fixture
def server():
    with schema_registry() as server:
        yield server


def connected(serde, server):
    connect_serdes([serde], {"url": server.url})
    return serde


def decoded(serde, items):
    columns = serde.decode(pl.Series(items, dtype=pl.Binary()), serde.row_type("value"))
    return list(zip(*[column.to_list() for column in columns.columns], strict=True)), columns.absent, columns.bad


def written(server, schema, record):
    """A record as another producer wrote it, with its schema registered."""
    number = SchemaRegistry({"url": server.url}).register("orders-value", json.dumps(schema), "AVRO")
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(schema), record)
    return header(number) + encoded.getvalue()


def record(*fields):
    return {
        "type": "record",
        "name": "shop.OrderV2",
        "fields": [dict(zip(("name", "type"), field, strict=True)) for field in fields],
    }


def test_avro_objects_are_read_as_they_were_written_and_the_registry_is_asked_once(server):
    serde = connected(Avro(Order), server)
    encoded = [serde.encode(ORDER), None, serde.encode(Order("x", 1))]
    rows, absent, bad = decoded(serde, encoded * 50)
    assert rows[0] == ("tea", 3, 2.5, NOON, date(2024, 5, 1), ["a", "b"], b"\xff", True)
    assert (rows[2], absent[:2], bad) == (("x", 1, *[None] * 6), [1, 4], {})
    assert server.asked == [1]
    assert pickle.loads(pickle.dumps(serde)).subject == "Order"


def test_avro_written_by_confluents_serializer_is_read():
    client = SchemaRegistryClient.new_client({"url": "mock://shared"})
    schema = record(("item", "string"), ("amount", "int"))
    item = AvroSerializer(client, json.dumps(schema))({"item": "tea", "amount": 3}, CONTEXT)
    serde = Avro(Order)
    registry = SchemaRegistry({"url": "mock://shared"})
    registry._client = client
    serde.connect(registry)
    assert decoded(serde, [item])[0][0][:3] == ("tea", 3, None)


@pytest.mark.slow
def test_avro_schemas_are_resolved_by_field(server):
    serde = connected(Avro(Order), server)
    older = written(server, record(("item", "string"), ("amount", "int")), {"item": "a", "amount": 1})
    newer = written(
        server,
        record(
            ("extra", {"type": "map", "values": "long"}),
            ("amount", "long"),
            ("price", "float"),
            ("at", {"type": "long", "logicalType": "timestamp-micros"}),
            ("item", "string"),
        ),
        {"extra": {"k": 1}, "amount": 2, "price": 0.5, "at": NOON, "item": "b"},
    )
    rows, _, bad = decoded(serde, [older, newer])
    assert [row[:4] for row in rows] == [("a", 1, None, None), ("b", 2, 0.5, NOON)]
    assert bad == {}


@dataclass(frozen=True)
class Place:
    zip: int


@dataclass(frozen=True)
class Trip:
    item: str
    start: Place | None = None
    end: Place | None = None
    first: Color | None = None
    colors: list[Color] | None = None


def test_one_class_may_be_that_of_several_fields_which_the_writer_did_not_have(server):
    serde = connected(Avro(Trip), server)
    older = written(server, record(("item", "string")), {"item": "a"})
    assert decoded(serde, [older]) == ([("a", None, None, None, None)], [], {})


def test_avro_records_within_each_other_are_read_and_bad_where_they_are_nested_too_deeply(server):
    """fastavro's compiled reader would end the process with a segmentation fault."""
    serde = connected(Avro(Trip), server)
    schema = record(("next", ["null", record(("label", "string"), ("next", ["null", "shop.OrderV2"]))]))
    schema["fields"][0]["type"][1]["name"] = "shop.Node"
    schema["fields"][0]["type"][1]["fields"][1]["type"][1] = "shop.Node"
    schema["fields"].append({"name": "item", "type": "string"})
    shallow = written(server, schema, {"item": "a", "next": {"label": "x", "next": {"label": "y", "next": None}}})
    deep = header(1) + b"\x02\x00" * 100_000 + b"\x00\x02a"
    rows, _, bad = decoded(serde, [shallow, deep, shallow])
    assert [row[0] for row in rows] == ["a", None, "a"]
    assert "RecursionError" in bad[1]


@pytest.mark.parametrize("items", ["null", {"type": "fixed", "name": "None", "size": 0}, record(("a", "null"))])
def test_avro_schemas_by_which_few_bytes_are_any_number_of_items_are_refused(server, items):
    serde = connected(Avro(Trip), server)
    items = {**items, "name": "Items"} if isinstance(items, dict) else items
    schema = record(("many", {"type": "array", "items": items}), ("item", "string"))
    written(server, schema, {"item": "a", "many": []})
    endless = header(1) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\x00\x02a"
    _, _, bad = decoded(serde, [endless])
    assert "schema 1 has an array whose items take no bytes" in bad[0]


def test_bad_avro_spoils_no_other_record(server):
    serde = connected(Avro(Order), server)
    good = serde.encode(ORDER)
    items = [
        good,
        b"",
        b"\x01" + good[1:],
        good[:9],
        header(99),
        good,
        written(server, record(("item", "string")), {"item": "a"}),
        written(server, record(("item", "string"), ("amount", "string")), {"item": "a", "amount": "1"}),
        written(server, {"type": "string"}, "text"),
        written(server, record(("item", "string"), ("amount", TIME)), {"item": "a", "amount": NOON}),
    ]
    rows, _, bad = decoded(serde, items)
    assert [index for index, row in enumerate(rows) if row[0] == "tea"] == [0, 5]
    assert sorted(bad) == [1, 2, 3, 4, 6, 7, 8, 9]
    for index, reason in ((1, "expected a zero byte"), (4, "no schema 99"), (6, "amount"), (8, "not a record schema")):
        assert reason in bad[index]


def test_a_registry_that_cannot_be_asked_is_not_bad_input():
    with schema_registry() as server:
        item = connected(Avro(Order), server).encode(ORDER)
        url = server.url
    serde = Avro(Order)
    connect_serdes([serde], {"url": url, "max.retries": "0", "timeout": "1"})
    with pytest.raises(SchemaRegistryError, match=rf"{url} failed: .* check .* schema_registry\.\*"):
        serde.decode(pl.Series([item]), serde.row_type("value"))
    with pytest.raises(SchemaRegistryError, match=r"max\.retries must be a number"):
        connect_serdes([serde], {"url": url, "max.retries": "many"})
    with pytest.raises(SchemaRegistryError, match=r"are invalid: .* host") as refused:
        connect_serdes([serde], {"url": "ann:hunter2@host"})
    assert "hunter2" not in str(refused.value)
    connect_serdes([serde], {"url": url.replace("//", "//ann:hunter2@"), "max.retries": "0", "timeout": "1"})
    with pytest.raises(SchemaRegistryError, match=rf"{url} failed") as refused:
        serde.decode(pl.Series([item]), serde.row_type("value"))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(SchemaRegistryError, match=r"--set schema_registry.url"):
        connect_serdes([serde], {})
    with pytest.raises(SchemaRegistryError, match="not connected"):
        Avro(Order).encode(ORDER)


def test_without_the_registrys_client_the_extra_that_provides_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(SchemaRegistryError, match=r'confluent_kafka.*pip install "weir-streams\[registry\]"'):
        connect_serdes([Avro(Order)], {"url": "http://localhost:1"})


def message_class(*fields, name="Order"):
    """A message class as ``protoc`` would generate it; fields are name, type and label or ``optional``."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}{len(fields)}.proto",
        package=f"shop{len(fields)}",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    file.message_type.add(name="Other").field.add(name="x", number=1, type=5, label=1)
    message = file.message_type.add(name=name)
    file.enum_type.add(name="Color").value.add(name="RED", number=0)
    file.enum_type[0].value.add(name="BLUE", number=1)
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (field, kind, *rest) in enumerate(fields, 1):
        added = message.field.add(name=field, number=number, label=3 if "repeated" in rest else 1)
        if kind == "enum":
            added.type, added.type_name = kinds.TYPE_ENUM, f".{file.package}.Color"
        elif kind.startswith("."):
            added.type, added.type_name = kinds.TYPE_MESSAGE, kind
        else:
            added.type = getattr(kinds, f"TYPE_{kind.upper()}")
        if "optional" in rest:
            added.proto3_optional, added.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field}")
    pool = descriptor_pool.DescriptorPool()
    for needed in (descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), file):
        pool.Add(needed)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


FIELDS = [
    ("item", "string"),
    ("amount", "int64"),
    ("price", "double", "optional"),
    ("at", ".google.protobuf.Timestamp"),
    ("tags", "string", "repeated"),
    ("raw", "bytes"),
    ("big", "uint64"),
]


def test_absent_fields_of_protobuf_messages_are_null_and_others_have_their_defaults(server):
    cls = message_class(*FIELDS)
    serde = connected(Protobuf(cls), server)
    full = cls(item="tea", amount=3, price=2.5, tags=["a", "b"], raw=b"\xff", big=7)
    full.at.FromDatetime(NOON)
    encoded = [serde.encode(full), None, serde.encode(cls()), serde.encode(cls(price=0.0))]
    assert encoded[0][:7] == header(1) + b"\x02\x02", "the second message of its file: one place, zigzag"
    rows, absent, bad = decoded(serde, encoded)
    assert rows == [
        ("tea", 3, 2.5, NOON, ["a", "b"], b"\xff", 7),
        (None,) * 7,
        ("", 0, None, None, [], b"", 0),
        ("", 0, 0.0, None, [], b"", 0),
    ]
    assert (absent, bad) == ([1], {})
    assert server.schemas[0]["schemaType"] == "PROTOBUF"


def test_protobuf_of_another_version_is_read_and_bad_bytes_spoil_no_other_record(server):
    newer = connected(Protobuf(message_class(*FIELDS)), server)
    older = connected(Protobuf(message_class(*FIELDS[:2])), server)
    items = [
        newer.encode(newer.message(item="a", amount=1, price=1.0)),
        b"",
        header(1) + b"\x00",
        header(1) + b"\x02\x02\xff",
        newer.encode(newer.message(item="b")),
    ]
    rows, _, bad = decoded(older, items)
    assert rows == [("a", 1), (None, None), (None, None), (None, None), ("b", 0)]
    assert [(index, reason.split(":")[0]) for index, reason in bad.items()] == [
        (1, "expected a zero byte and a schema id of four bytes, found b''"),
        (2, "not Order, but another message of its file"),
        (3, "cannot be read as Order"),
    ]
    beyond = newer.encode(newer.message(big=1 << 63))
    assert "big does not fit" in decoded(newer, [beyond])[2][0]
    with pytest.raises(TopologyError, match=r"\.other is a nested message.*flatten it"):
        Protobuf(message_class(("other", ".shop1.Other")))


def test_an_enums_value_is_its_name_or_its_number_if_the_name_is_unknown(server):
    cls = message_class(
        ("color", "enum"), ("colors", "enum", "repeated"), ("maybe", "enum", "optional"), ("n", "uint64", "repeated")
    )
    serde = connected(Protobuf(cls), server)
    rows, *_ = decoded(serde, [serde.encode(cls(color=1, colors=[0, 1], maybe=0, n=[1])), serde.encode(cls(color=7))])
    assert rows == [("BLUE", ["RED", "BLUE"], "RED", [1]), ("7", [], None, [])]
    row_type = serde.row_type("value")
    newer = [serde.encode(cls(color=7, colors=[1, 7], maybe=9)), serde.encode(cls(color=1))]
    read = row_type.to_objects(pl.DataFrame(serde.decode(pl.Series(newer), row_type).columns))
    assert [serde.encode(each) for each in read] == newer
    with pytest.raises(ValueError, match="GREEN"):
        serde.encode(dataclasses.replace(read[0], color="GREEN"))


@pytest.mark.parametrize("make", [Avro, lambda cls: Protobuf(message_class(*FIELDS[:3]))])
def test_an_object_with_a_field_of_another_type_is_refused_naming_the_expected_type(make, server):
    serde = connected(make(Order), server)
    with pytest.raises(TypeError, match=r"takes int for amount, found 'three' \(str\)"):
        serde.encode(Order("tea", "three", None))
    with pytest.raises(TypeError, match=r"takes objects with item, amount, price.*; 'tea' \(str\) has no item"):
        serde.encode("tea")


def total(order: Order) -> float:
    return order.amount * (order.price or 0.0)


@pytest.mark.parametrize("serde", [Avro(Order), Protobuf(message_class(*FIELDS[:3]))])
def test_a_program_over_registry_serdes_runs_under_the_test_driver(serde):
    builder = StreamsBuilder()
    builder.stream("orders", key=String("user"), value=serde).map_values(total).to_delta("totals")
    with TopologyTestDriver(Application("test", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", Order("tea", 3, 2.5), timestamp_ms=1)
        assert driver.create_output_table("totals").read_key_value() == ("ann", 7.5)


@pytest.mark.parametrize("make", [Avro, lambda cls: Protobuf(message_class(*FIELDS[:3]))])
def test_what_a_sink_writes_is_read_by_the_deserializers_of_confluent_and_google(make, server):
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Json(Order))
    orders.map_values(item="item", amount="amount", price="price").to("written", value=make(Priced))
    (node,) = builder.build().sinks
    connect_serdes(node.sink.serdes, {"url": server.url})
    rows = {"user": ["ann", "bob"], "item": ["tea", "pen"], "amount": [3, 4], "price": [2.5, None]}
    places = {"_ts": [1, 2], "_deleted": [False] * 2, "_partition": [0] * 2, "_offset": [0, 1]}
    written = node.sink.outgoing(pl.DataFrame({**rows, **places}))["value"].to_list()
    if make is Avro:
        read = AvroDeserializer(SchemaRegistryClient.new_client({"url": server.url}))
        found = [read(each, CONTEXT) for each in written]
    else:
        assert {each[:7] for each in written} == {header(1) + b"\x02\x02"}
        messages = [message_class(*FIELDS[:3]).FromString(each[7:]) for each in written]
        found = [
            {"item": each.item, "amount": each.amount, "price": each.price if each.HasField("price") else None}
            for each in messages
        ]
    assert found == [{"item": "tea", "amount": 3, "price": 2.5}, {"item": "pen", "amount": 4, "price": None}]
