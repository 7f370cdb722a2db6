"""Windows, a rate limit, idle input, serdes, branches and sketches on a broker and Spark: rows of the test driver."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.integration import mixed
from tests.integration.windows import PARTITIONS, RECORDS, TABLES, TOPIC, app, records
from tests.pipelines.serdes.registry_server import schema_registry
from tests.waiting import wait_for
from weir import Query, StateReader
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.spark.progress import RunSummary
from weir.pipelines.spark.runner import run
from weir.testing import TopologyTestDriver

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(dir=tmp_path_factory.mktemp("windows"), slots=2, max_epoch_records=25)


@pytest.fixture(scope="module")
def ran(broker: str, place: Settings, spark) -> tuple[RunSummary, int]:
    """A run, and how many jobs of Spark it took."""
    producer = Producer({"bootstrap.servers": broker})
    KafkaAdmin(broker).create_topic(TOPIC, PARTITIONS)
    for partition, key, value, timestamp_ms in records():
        producer.produce(TOPIC, value, key, partition=partition, timestamp=timestamp_ms)
    producer.flush()
    before = jobs_of(spark)
    summary = run("tests.integration.windows:app", place, bootstrap_servers=broker, until_caught_up=True, spark=spark)
    return summary, jobs_of(spark) - before


def jobs_of(spark) -> int:
    """How many it has had so far."""
    return spark._jsc.sc().dagScheduler().numTotalJobs()


@pytest.fixture(scope="module")
def summary(ran: tuple[RunSummary, int]) -> RunSummary:
    return ran[0]


@pytest.fixture(scope="module")
def expected() -> dict[str, Counter[str]]:
    """By table, all rows with their time, from one test driver per partition."""
    found: dict[str, Counter[str]] = {table: Counter() for table in TABLES}
    for partition in range(PARTITIONS):
        with TopologyTestDriver(app) as driver:
            topic = driver.create_input_topic(TOPIC)
            for _, key, value, timestamp_ms in (row for row in records() if row[0] == partition):
                topic.pipe_input(key, value, timestamp_ms=timestamp_ms)
            for table, rows in found.items():
                rows.update(
                    shown({**record.row, "_ts": record.timestamp, "_deleted": record.is_deleted})
                    for record in driver.create_output_table(table).read_records()
                )
    return found


def shown(row: dict[str, Any]) -> str:
    return repr(
        sorted((name, value.timestamp() if hasattr(value, "timestamp") else value) for name, value in row.items())
    )


@pytest.mark.parametrize("table", TABLES)
def test_rows_equal_those_of_the_test_driver(summary, place, expected, table):
    assert (summary.records_in, summary.epoch > 3) == (RECORDS, True)
    found = pl.read_delta(str(place.warehouse / "windows" / table)).drop("_epoch", "_seq")
    assert Counter(map(shown, found.to_dicts())) == expected[table]
    assert found.height > 10


def test_epochs_and_commits_take_no_jobs_of_spark_but_one_for_each_slot(ran, place):
    summary, jobs = ran
    assert jobs == place.slots < summary.epoch


def mixed_rows() -> dict[str, Counter[str]]:
    """All rows by table, from one test driver per partition, after an hour of idle input."""
    found: dict[str, Counter[str]] = {table: Counter() for table in mixed.TABLES}
    for partition in range(mixed.PARTITIONS):
        queues = {topic: [row for row in mixed.records(topic) if row[0] == partition] for topic in mixed.TOPICS}
        with TopologyTestDriver(mixed.program()) as driver:
            pages = driver.create_input_topic("mixed-pages")
            for page, section in mixed.PAGES.items():
                pages.pipe_input(page, mixed.Page(section))
            inputs = {topic: driver.create_input_topic(topic) for topic in mixed.TOPICS}
            while waiting := [topic for topic in mixed.TOPICS if queues[topic]]:
                topic = min(waiting, key=lambda topic: queues[topic][0][3])
                _, key, value, timestamp_ms = queues[topic].pop(0)
                inputs[topic].pipe_input(key, value, timestamp_ms=timestamp_ms)
            driver.advance_wall_clock_time(timedelta(hours=1))
            for table, rows in found.items():
                rows.update(
                    shown({**record.row, "_ts": record.timestamp, "_deleted": record.is_deleted})
                    for record in driver.create_output_table(table).read_records()
                )
    return found


def test_a_live_run_and_then_idle_input_write_the_rows_of_the_test_driver(broker, place, spark):
    """With msgpack and times from a column, Protobuf, branches, sketches, a global table, and windows and a join that
    only idle input closes."""
    expected = mixed_rows()
    admin, producer = KafkaAdmin(broker), Producer({"bootstrap.servers": broker})
    admin.create_topic("mixed-pages", 1)
    for page, section in mixed.PAGES.items():
        producer.produce("mixed-pages", json.dumps({"section": section}), page)
    with schema_registry() as server:
        writer = mixed.program().topology.source("mixed-amounts").value_serde
        connect_serdes([writer], {"url": server.url})
        for topic in mixed.TOPICS:
            admin.create_topic(topic, mixed.PARTITIONS)
            for partition, key, value, timestamp_ms in mixed.records(topic):
                encoded = value if isinstance(value, bytes) else writer.encode(value)
                producer.produce(
                    topic, encoded, key, partition=partition, timestamp=timestamp_ms if topic == "mixed-amounts" else 1
                )
        producer.flush()
        come = []
        """What is answered of a page that no visit has asked for."""
        stop, settings = (
            Event(),
            place.model_copy(update={"schema_registry": {"url": server.url}, "max_epoch_records": 60}),
        )

        def watched() -> None:
            tables = [place.warehouse / "mixed" / table for table in mixed.TABLES]
            try:
                wait_for(
                    lambda: all(
                        DeltaTable.is_deltatable(table)
                        and pl.read_delta(str(table)).height >= expected[table.name].total()
                        for table in tables
                    ),
                    "all rows are written",
                    every_s=0.3,
                )
                producer.produce("mixed-pages", json.dumps({"section": "new"}), "d")
                producer.flush()
                query = Query(at_least={"mixed-pages": {0: len(mixed.PAGES) + 1}}, timeout=timedelta(seconds=30))
                come.append(StateReader(place.dir, mixed.program()).get("pages", "d", query=query))
            finally:
                stop.set()

        watch = Thread(target=watched)
        watch.start()
        run("tests.integration.mixed:app", settings, bootstrap_servers=broker, stop=stop, spark=spark)
        watch.join()
    for table in mixed.TABLES:
        rows = pl.read_delta(str(place.warehouse / "mixed" / table)).drop("_epoch", "_seq")
        assert Counter(map(shown, rows.to_dicts())) == expected[table], table
        assert rows.height > 20
    pages = StateReader(place.dir, mixed.program()).range("pages")
    assert dict(pages.rows.select("page", "section").rows()) == {**mixed.PAGES, "d": "new"}
    assert pages.position == {"mixed-pages": {0: len(mixed.PAGES) + 1}}
    assert [answer.rows["section"].to_list() for answer in come] == [["new"]]
