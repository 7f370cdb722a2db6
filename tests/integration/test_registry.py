"""A run whose workers read Avro with a schema registry, on a real broker and real Spark."""

import io
import json

import fastavro
import pytest
from confluent_kafka import Producer

from tests.integration.registry_orders import TOPIC, app
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
    kafka_admin.create_topic(TOPIC, 2)
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
    rows = read_table(settings.warehouse / app.id / "totals").select("user", "total").rows()
    assert sorted(rows) == [(f"user-{user}", sum(range(user, 100, 3))) for user in range(3)]
