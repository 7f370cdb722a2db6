"""A Kafka sink puts each key where Kafka's own Java producer does, which is asked; or where the program says."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.pipelines.publishing.outboxes import APP, drain
from weir import Application, Bytes, Int64, Json, StreamsBuilder, String
from weir.infra.jars import jars
from weir.infra.java import java_executable
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox
from weir.state.commit.tables import AppendTable

pytestmark = pytest.mark.broker

PARTITIONS = 7
TEXTS = ["", "a", "ab", "abc", "abcd", "abcde", "ąę", "日本語", "🛒", "x" * 1_000, "user-17", "\x00"]
BINARY = [b"", b"\x00", b"\xff\xfe\xfd", b"\x80" * 4, bytes(range(256))]
NUMBERS = [0, 1, -1, 2**63 - 1, -(2**63)]
NESTED = [{"city": "Łódź", "shop": 3}, {"city": "", "shop": -1}]


@dataclass(frozen=True)
class Place:
    city: str
    shop: int


def java_places(keys):
    class_path = ":".join(map(str, jars("kafka")))
    java = Path(__file__).with_name("PartitionOfKeys.java")
    hexadecimal = [key.hex() for key in keys]
    told = subprocess.run(
        [java_executable(), "-cp", class_path, str(java), str(PARTITIONS), *hexadecimal],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return list(map(int, told.stdout.split()))


def published(folder, broker, topic, key, keys, partition=None):
    """Partition and key of each record, in the order of ``keys``, as a consumer finds them."""
    builder = StreamsBuilder()
    builder.stream("in", key=key, value=Int64("number")).to(topic, name="out", partition=partition)
    (node,) = Application(APP, builder).topology.sinks
    spec = table_spec(node)
    rows = pl.DataFrame(
        {**keys, "number": range(len(next(iter(keys.values()))))}, schema_overrides=node.record.key.columns
    )
    outgoing = node.sink.outgoing(rows.with_columns(_ts=pl.lit(1_000), _deleted=False))
    AppendTable.create(folder, spec, APP).append(
        1, [write_file(folder, spec, outgoing.with_columns(_epoch=pl.lit(1, pl.Int64)))]
    )
    connect = lambda: KafkaConnection(APP, node.sink, {"bootstrap.servers": broker})
    drain(Publisher(Outbox(folder, "out", APP), "out", connect, application=APP))
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": f"{topic}-reader", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found = {}
    while len(found) < rows.height:
        (message,) = consumer.consume(1, timeout=30.0)
        assert message.error() is None
        found[int.from_bytes(message.value(), "big")] = message.partition(), message.key()
    consumer.close()
    return [found[number] for number in range(rows.height)]


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        (String("user"), {"user": TEXTS}),
        (Bytes("raw"), {"raw": BINARY}),
        (Int64("id"), {"id": NUMBERS}),
        (Json(Place), {name: [each[name] for each in NESTED] for name in ("city", "shop")}),
    ],
    ids=["text", "bytes", "numbers", "json"],
)
def test_each_key_is_where_javas_producer_puts_it(tmp_path, broker, topic, key, keys):
    found = published(tmp_path, broker, topic(PARTITIONS), key, keys)
    assert [place for place, _ in found] == java_places([key for _, key in found])


def test_an_expression_decides_and_where_it_is_null_the_key_does(tmp_path, broker, topic):
    users = ["ann", "bob", "", "cy", "dee", "eve"]
    partition = pl.when(pl.col("number") % 2 == 0).then(PARTITIONS - 1 - pl.col("number"))
    found = published(tmp_path, broker, topic(PARTITIONS), String("user"), {"user": users}, partition)
    by_key = java_places([user.encode() for user in users])
    assert [place for place, _ in found] == [6, by_key[1], 4, by_key[3], 2, by_key[5]]
    assert [key for _, key in found] == [user.encode() for user in users]


def test_a_record_without_a_key_arrives_without_one(tmp_path, broker, topic):
    found = published(tmp_path, broker, topic(PARTITIONS), String("user"), {"user": [None, "", None]})
    assert [key for _, key in found] == [None, b"", None]
    assert found[1][0] == java_places([b""])[0]
