"""Joins and cogroups on a real broker and Spark give, per partition, what the test driver gives record by record."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer

from tests.integration.joins import PARTITIONS, REBATES_PARTITIONS, TOPICS, app, records
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings
from weir.pipelines.spark.progress import RunSummary
from weir.pipelines.spark.runner import run
from weir.state.commit.tables import read_table
from weir.testing import TopologyTestDriver

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FACTS = ("priced", "priced_then", "priced_in_order", "settled", "amounts", "balances", "spans", "views")
UPDATES = ("profiles",)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(dir=tmp_path_factory.mktemp("joins"), slots=2, max_epoch_records=32)


@pytest.fixture(scope="module")
def summary(broker: str, place: Settings, spark) -> RunSummary:
    admin, producer = KafkaAdmin(broker), Producer({"bootstrap.servers": broker})
    for topic in TOPICS:
        admin.create_topic(topic, REBATES_PARTITIONS if topic == "joins-rebates" else PARTITIONS)
        for partition, key, value, timestamp_ms in records(topic):
            producer.produce(topic, value, key, partition=partition, timestamp=timestamp_ms)
    producer.flush()
    return run("tests.integration.joins:app", place, bootstrap_servers=broker, until_caught_up=True, spark=spark)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[dict[str, Any]]]:
    """By table, all rows with their times, from one test driver per partition."""
    found: dict[str, list[dict[str, Any]]] = {table: [] for table in (*FACTS, *UPDATES, "tiers")}
    order = [name for sub_topology in app.topology.sub_topologies for name in sub_topology.inputs if name in TOPICS]
    for partition in range(PARTITIONS):
        queues = {topic: [row for row in records(topic) if row[0] == partition] for topic in order}
        with TopologyTestDriver(app) as driver:
            inputs = {topic: driver.create_input_topic(topic) for topic in order}
            while waiting := [topic for topic in order if queues[topic]]:
                topic = min(waiting, key=lambda topic: queues[topic][0][3])
                _, key, value, timestamp_ms = queues[topic].pop(0)
                inputs[topic].pipe_input(key, value, timestamp_ms=timestamp_ms)
            for table, rows in found.items():
                rows += [
                    {**record.row, "_ts": record.timestamp, "_deleted": record.is_deleted, "_part": partition}
                    for record in driver.create_output_table(table).read_records()
                ]
    return found


def written(place: Settings, table: str) -> pl.DataFrame:
    return pl.read_delta(str(place.warehouse / "joins" / table))


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(item for item in row.items() if item[0] != "_part")) for row in rows)


def test_everything_is_read(summary):
    assert summary.records_in == sum(len(list(records(topic))) for topic in TOPICS)
    assert summary.epoch > 5


@pytest.mark.parametrize("table", FACTS)
def test_facts_of_joins_equal_those_of_the_test_driver(summary, place, expected, table):
    found = written(place, table).drop("_epoch", "_seq").with_columns(pl.col("_ts").cast(pl.Datetime("us", "UTC")))
    assert counted(found.to_dicts()) == counted(expected[table])
    assert found.height > 100


@pytest.mark.parametrize("table", UPDATES)
def test_rows_of_joined_tables_equal_those_of_the_test_driver(summary, place, expected, table):
    newest = {row["user"]: row for row in expected[table]}
    wanted = [
        {name: value for name, value in row.items() if not name.startswith("_")}
        for row in newest.values()
        if not row["_deleted"]
    ]
    found = read_table(place.warehouse / "joins" / table).select(pl.exclude("^_.*$")).to_dicts()
    assert counted(found) == counted(wanted)


def test_counts_of_a_grouped_table_are_the_sums_over_the_test_drivers(summary, place, expected):
    newest = {(row["_part"], row["tier"]): row["count"] for row in expected["tiers"]}
    totals: Counter[str] = Counter()
    for (_, tier), count in newest.items():
        totals[tier] += count
    found = {row["tier"]: row["count"] for row in read_table(place.warehouse / "joins" / "tiers").to_dicts()}
    assert found == totals


def test_a_join_by_foreign_key_joins_the_newest_rows(summary, place):
    customers, rebates = (
        {key.decode(): value and json.loads(value) for _, key, value, _ in records(topic)}
        for topic in ("joins-customers", "joins-rebates")
    )
    wanted = {
        user: (customer["tier"], rebate["rebate"])
        for user, customer in customers.items()
        if customer and (rebate := rebates[customer["tier"]])
    }
    found = read_table(place.warehouse / "joins" / "rebated").to_dicts()
    assert {row["user"]: (row["tier"], row["rebate"]) for row in found} == wanted
    assert 5 < len(wanted) < len(customers)
