"""A real Kafka Streams application stops half-way, Weir continues it, and the result is that of an undisturbed run."""

from __future__ import annotations

import random
import subprocess
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Producer

from bench.events import PARTITIONS as OUTPUT_PARTITIONS
from bench.peers.runs import read_output
from tests.integration.kafka_topics import KafkaTopics
from tests.pipelines.spark.inline import Place
from weir import Application, BufferConfig, StreamsBuilder, String, Suppressed, TimeWindows
from weir.infra.jars import JarsError, fetch
from weir.infra.java import java_executable
from weir.pipelines.migrate import KafkaStreamsApp, MigrationError, StoreSerdes
from weir.pipelines.serdes.scalar import Int64
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.timed]
SOURCE = Path(__file__).parent / "java" / "CountsToMigrate.java"
PARTITIONS = 2
RECORDS = 4_000
LIMIT_S = 50


def program(topic: str, id: str) -> Application:
    """What the Java program computes."""
    builder = StreamsBuilder()
    visits = builder.stream(topic, key=String("user"), value=String("country"))
    by_user = visits.group_by_key()
    by_user.count("by_user").to_delta("by_user")
    (
        by_user.windowed_by(TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(seconds=10)))
        .count("by_minute")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("by_minute")
    )
    visits.group_by("country").count("by_country").to_delta("by_country")
    return Application(id, builder)


def produce(bootstrap_servers: str, topic: str, first: int, count: int) -> None:
    """Visits of 300 users, 300 ms apart, out of order by up to 40 s: some are late."""
    random_times, producer = random.Random(first), Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(first, first + count):
        time_ms = 1_700_000_000_000 + number * 300 - random_times.choice((0, 0, 5_000, 40_000))
        producer.produce(
            topic,
            key=b"user-%d" % (number % 300),
            value=b"country-%d" % (number % 7),
            partition=number % PARTITIONS,
            timestamp=time_ms,
        )
    assert producer.flush(30) == 0


def run_kafka_streams(folder: Path, *arguments: str) -> None:
    try:
        class_path = ":".join(map(str, (*fetch("streams"), folder)))
    except JarsError as error:
        pytest.skip(f"Kafka Streams' jars cannot be fetched: {error}")
    subprocess.run(
        [java_executable("javac"), "-d", str(folder), "-cp", class_path, str(SOURCE)],
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    done = subprocess.run(
        [
            java_executable(),
            "-Xmx256m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            f"-Djava.io.tmpdir={folder}",
            "-cp",
            class_path,
            SOURCE.stem,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr


def outcome(place: Place) -> dict[str, pl.DataFrame]:
    """The counts of each table, sorted."""
    folder = place.warehouse / place.application.id
    keys = {"by_user": ["user"], "by_country": ["country"], "by_minute": ["user", "window_start"]}
    return {table: read_table(folder / table).select(*key, "count").sort(key) for table, key in keys.items()}


def windows(finals: pl.DataFrame) -> dict[str, int]:
    """As Kafka Streams writes them: ``user@start`` and the count."""
    named = finals.select(pl.concat_str("user", pl.lit("@"), pl.col("window_start").dt.epoch("ms")), "count")
    return dict(named.rows())


def test_a_kafka_streams_application_is_migrated_with_nothing_lost_and_nothing_counted_twice(
    broker, kafka_admin, topic, tmp_path
):
    visits, id = topic(partitions=PARTITIONS), f"counts-{tmp_path.name}"
    out = topic(partitions=OUTPUT_PARTITIONS)
    produce(broker, visits, 0, RECORDS // 2)
    run_kafka_streams(tmp_path, broker, visits, out, id, str(tmp_path / "kafka-streams"), str(RECORDS // 2))

    topics = KafkaTopics(kafka_admin, (visits,))
    moved = Place(program(visits, "moved"), topics, tmp_path / "moved", max_records=500)
    app = KafkaStreamsApp(
        id=id,
        application=moved.application,
        cluster=kafka_admin,
        reader=topics.new_reader,
        topic_counts=topics.partition_counts(),
    )
    migration = app.migration()
    assert migration.positions == {(visits, 0): RECORDS // 4, (visits, 1): RECORDS // 4}
    assert migration.write(moved.warehouse)
    assert not app.migration().write(moved.warehouse), "writing the same again changes nothing"

    produce(broker, visits, RECORDS // 2, RECORDS // 2)
    assert moved.run().records_in == RECORDS // 2
    whole = Place(program(visits, "whole"), topics, tmp_path / "whole", max_records=500)
    assert whole.run().records_in == RECORDS
    found, wanted = outcome(moved), outcome(whole)
    assert found["by_user"].equals(wanted["by_user"])
    assert found["by_country"].equals(wanted["by_country"])
    before, after = dict(read_output({"bootstrap.servers": broker}, out).rows()), windows(found["by_minute"])
    assert before.keys().isdisjoint(after), "a window that Kafka Streams has closed is not closed again"
    assert before | after == windows(wanted["by_minute"])
    assert len(before) > 100
    assert len(after) > 100

    wrong = KafkaStreamsApp(
        id=id,
        application=moved.application,
        cluster=kafka_admin,
        reader=topics.new_reader,
        topic_counts=topics.partition_counts(),
        serdes={"by_user": StoreSerdes(key=Int64("user"), value=Int64())},
    )
    with pytest.raises(MigrationError, match=r"by_user.*give serdes"):
        wrong.migration()
