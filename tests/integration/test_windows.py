"""Sessions, sliding and hopping windows and a rate limit on a real broker and Spark: the rows of the test driver."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer

from infra.kafka.admin import KafkaAdmin
from infra.settings import Settings
from pipelines.spark.progress import RunSummary
from pipelines.spark.runner import run
from pipelines.testing import TopologyTestDriver
from tests.integration.windows import PARTITIONS, RECORDS, TABLES, TOPIC, app, records

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(dir=tmp_path_factory.mktemp("windows"), slots=2, max_epoch_records=25)


@pytest.fixture(scope="module")
def summary(broker: str, place: Settings, spark) -> RunSummary:
    producer = Producer({"bootstrap.servers": broker})
    KafkaAdmin(broker).create_topic(TOPIC, PARTITIONS)
    for partition, key, value, timestamp_ms in records():
        producer.produce(TOPIC, value, key, partition=partition, timestamp=timestamp_ms)
    producer.flush()
    return run("tests.integration.windows:app", place, bootstrap_servers=broker, until_caught_up=True, spark=spark)


@pytest.fixture(scope="module")
def expected() -> dict[str, Counter[str]]:
    """By table, all rows with their time, of one test driver a partition."""
    found: dict[str, Counter[str]] = {table: Counter() for table in TABLES}
    for partition in range(PARTITIONS):
        with TopologyTestDriver(app) as driver:
            topic = driver.create_input_topic(TOPIC)
            for _, key, value, timestamp_ms in (row for row in records() if row[0] == partition):
                topic.pipe_input(key, value, timestamp_ms=timestamp_ms)
            for table, rows in found.items():
                rows.update(shown({**record.row, "_ts": record.timestamp, "_deleted": record.is_deleted})
                            for record in driver.create_output_table(table).read_records())
    return found


def shown(row: dict[str, Any]) -> str:
    return repr(sorted((name, value.timestamp() if hasattr(value, "timestamp") else value)
                       for name, value in row.items()))


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_those_of_the_test_driver(summary, place, expected, table):
    assert (summary.records_in, summary.epoch > 3) == (RECORDS, True)
    found = pl.read_delta(str(place.warehouse / "windows" / table)).drop("_epoch", "_seq")
    assert Counter(map(shown, found.to_dicts())) == expected[table]
    assert found.height > 10
