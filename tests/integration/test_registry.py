"""A run whose workers read and write Avro with a schema registry, on a real broker and real Spark."""

import io
import json

import fastavro
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.integration.registry_orders import COPIES, TOPIC, app
from tests.pipelines.serdes.registry_server import schema_registry
from weir import SchemaRegistryError
from weir.pipelines.serdes.registry import SchemaRegistry, header
from weir.pipelines.spark.runner import run
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SCHEMA = {
    "type": "record",
    "name": "OrderPlaced",
    "fields": [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int"}],
}


def test_workers_ask_the_configured_registry_for_the_schemas_that_they_meet(broker, kafka_admin, settings, spark):
    for topic in (TOPIC, COPIES):
        kafka_admin.create_topic(topic, 2)
    reference = "tests.integration.registry_orders:app"
    with schema_registry() as server:
        number = SchemaRegistry({"url": server.url}).register(f"{TOPIC}-value", json.dumps(SCHEMA), "AVRO")
        producer = Producer({"bootstrap.servers": broker})
        for amount in range(100):
            encoded = io.BytesIO()
            fastavro.schemaless_writer(encoded, SCHEMA, {"shop": "x", "amount": amount})
            producer.produce(
                TOPIC,
                header(number) + encoded.getvalue(),
                f"user-{amount % 3}",
                partition=amount % 3 % 2,
                timestamp=1_000 + amount,
            )
        producer.flush()
        with pytest.raises(SchemaRegistryError, match=r"--set schema_registry\.url"):
            run(reference, settings, bootstrap_servers=broker, until_caught_up=True, spark=spark)
        run(
            reference,
            settings.model_copy(update={"schema_registry": {"url": server.url}}),
            bootstrap_servers=broker,
            until_caught_up=True,
            spark=spark,
        )
        assert set(server.asked) == {number}
        assert copies(broker, server.url) == {f"user-{user}": list(range(user, 100, 3)) for user in range(3)}
    rows = read_table(settings.warehouse / app.id / "totals").select("user", "total").rows()
    assert sorted(rows) == [(f"user-{user}", sum(range(user, 100, 3))) for user in range(3)]


def copies(broker, registry):
    """By user, the amounts that a consumer of committed records reads with Confluent's deserializer."""
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "reader", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(COPIES, partition, 0) for partition in range(2)])
    read, found = AvroDeserializer(SchemaRegistryClient({"url": registry})), {}
    while sum(map(len, found.values())) < 100:
        (message,) = consumer.consume(1, timeout=30.0)
        order = read(message.value(), SerializationContext(COPIES, MessageField.VALUE))
        found.setdefault(message.key().decode(), []).append(order["amount"])
    consumer.close()
    return found
