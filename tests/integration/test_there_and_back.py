"""An application with every kind of store goes from Kafka Streams to Weir and back, and its results are those of plain
rules over all records."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.integration.kafka_topics import KafkaTopics
from tests.pipelines.migrate.every_store import TOPICS, program
from tests.pipelines.spark.inline import Place
from weir.infra.jars import JarsError, fetch
from weir.infra.java import java_executable
from weir.infra.kafka.writer import RecordWriter
from weir.pipelines.migrate import KafkaStreamsApp
from weir.pipelines.migrate.kafka_streams_return import KafkaStreamsReturn
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

pytestmark = [pytest.mark.broker, pytest.mark.timed]
SOURCE = Path(__file__).parent / "java" / "StateToMigrate.java"
PARTITIONS = 2
STEPS = 400
"""Points in time of each of the three phases."""
START_MS = (int(time.time()) - 3_600) // 10 * 10_000
"""So near that the brokers remove no expired records of the stores' topics."""
LIMIT_S = 90


def records():
    """``(topic, key, value, time)`` of three phases, each topic in the order of time."""
    chance, now = random.Random(7), START_MS
    phases = []
    for _ in range(3):
        found = []
        for _ in range(STEPS):
            now += chance.randrange(100, 900)
            user, order = f"u{chance.randrange(12)}", f"o{chance.randrange(40)}"
            found.append(("clicks", user, f"p{chance.randrange(5)}", now))
            if chance.random() < 0.3:
                found.append(("buys", user, f"i{chance.randrange(5)}", now + 20))
            if chance.random() < 0.1:
                found.append(("tiers", user, chance.choice(("gold", "tin", None)), now + 40))
            if chance.random() < 0.4:
                found.append(("orders", order, chance.choice((user, user, user, None)), now + 60))
            if chance.random() < 0.2:
                found.append(("users", user, chance.choice(("nz", "at", "fr", None)), now + 80))
        phases.append(found)
    return phases


class Model:
    """The results of plain rules; stream time is that of a partition."""

    def __init__(self, every, partition_of):
        clicks = [record for record in every if record[0] == "clicks"]
        buys = [record for record in every if record[0] == "buys"]
        self.visits = self._visits(clicks)
        ends = [max(time for _, key, _, time in clicks if partition_of(key) == number) for number in range(PARTITIONS)]
        windows = Counter((key, time // 10_000 * 10_000) for _, key, _, time in clicks)
        self.finals = {
            f"{key} {start}": str(count)
            for (key, start), count in windows.items()
            if start + 12_000 <= ends[partition_of(key)]
        }
        self.slow = self._slow(clicks, partition_of)
        self.tiered = Counter()
        for _, key, page, time_ms in clicks:
            known = [record for record in every if record[:2] == ("tiers", key) and record[3] <= time_ms]
            if known and known[-1][2]:
                self.tiered[f"{key} = {page}+{known[-1][2]}"] += 1
        tables = {name: {key: value for topic, key, value, _ in every if topic == name} for name in ("orders", "users")}
        self.buyers = {
            order: f"{buyer}+{tables['users'][buyer]}"
            for order, buyer in tables["orders"].items()
            if buyer and tables["users"].get(buyer)
        }
        self.near = Counter()
        both = [
            max(time for _, key, _, time in clicks + buys if partition_of(key) == number)
            for number in range(PARTITIONS)
        ]
        for _, key, page, time_ms in clicks:
            met = [item for _, other, item, at in buys if other == key and abs(at - time_ms) <= 3_000]
            self.near.update(f"{key} = {page}+{item}" for item in met)
            if not met and time_ms + 4_000 < both[partition_of(key)]:
                self.near[f"{key} = {page}+null"] += 1

    @staticmethod
    def _visits(clicks):
        sessions = {}
        for _, key, _, time_ms in clicks:
            known = sessions.setdefault(key, [])
            if known and time_ms - known[-1][1] <= 5_000:
                known[-1] = (known[-1][0], time_ms, known[-1][2] + 1)
            else:
                known.append((time_ms, time_ms, 1))
        return {f"{key} {start} {end}": str(count) for key, found in sessions.items() for start, end, count in found}

    @staticmethod
    def _slow(clicks, partition_of):
        totals, found = Counter(), Counter()
        held = [{} for _ in range(PARTITIONS)]
        for _, key, _, time_ms in clicks:
            totals[key] += 1
            buffer = held[partition_of(key)]
            buffer[key] = (buffer.get(key, (time_ms,))[0], totals[key])
            for due in [name for name, (since, _) in buffer.items() if since + 20_000 <= time_ms]:
                found[f"{due} = {buffer.pop(due)[1]}"] += 1
        return found


def produce(servers, prefix, found):
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random", "enable.idempotence": True})
    for topic, key, value, time_ms in found:
        producer.produce(f"{prefix}{topic}", value, key, timestamp=time_ms)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def class_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classes")
    try:
        found = ":".join(map(str, (*fetch("streams"), folder)))
    except JarsError as error:
        pytest.skip(f"Kafka Streams' jars cannot be fetched: {error}")
    subprocess.run(
        [java_executable("javac"), "-d", str(folder), "-cp", found, str(SOURCE)],
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    return found


@contextmanager
def kafka_streams(class_path, folder, *arguments):
    """Runs inside the block and closes cleanly at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [
                java_executable(),
                "-Xmx256m",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                f"-Djava.io.tmpdir={folder}",
                "-cp",
                class_path,
                SOURCE.stem,
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stderr=errors,
        )
        try:
            yield process
            process.stdin.close()
            code = process.wait(LIMIT_S)
            assert code == 0, (folder / "errors").read_text()
        finally:
            process.kill()


def wait_until_read(admin, id, topics, process, internal):
    partitions = [(topic, number) for topic in topics for number in range(PARTITIONS)]
    until = time.monotonic() + LIMIT_S
    ends = admin.end_offsets(partitions)
    while True:
        held = admin.group_offsets(id)
        if all(held.get(partition, 0) == end for partition, end in ends.items()):
            inner = [(topic, number) for topic in internal for number in range(PARTITIONS)]
            if all(held.get(partition, 0) >= end - 1 for partition, end in admin.end_offsets(inner).items()):
                return
        assert process.poll() is None, "Kafka Streams ended"
        assert time.monotonic() < until, (ends, held)
        time.sleep(0.2)


def read_out(servers, topic):
    """``(operator, key, value)`` in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "there-and-back",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found = []
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while True:
            for message in consumer.consume(1_000, timeout=1.0):
                if message.error() is None:
                    operator, _, key = message.key().decode().partition(" ")
                    found.append((operator, key, message.value().decode()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
    finally:
        consumer.close()


def read_weir(place):
    """What Weir wrote, as the Java program writes it."""
    folder = place.warehouse / place.application.id
    found = []
    after = {1}  # what the migration itself wrote

    def rows(table):
        frame = read_rows(folder / table)
        return [row for row in frame.sort("_epoch", "_seq").iter_rows(named=True) if row["_epoch"] not in after]

    def ms(moment):
        return int(moment.timestamp() * 1000 + 0.5)

    for row in rows("visits"):
        key = f"{row['user']} {ms(row['window_start'])} {ms(row['window_end'])}"
        found.append(("visits", key, "null" if row["_deleted"] else str(row["count"])))
    found += [("finals", f"{row['user']} {ms(row['window_start'])}", str(row["count"])) for row in rows("finals")]
    found += [("slow", row["user"], str(row["count"])) for row in rows("slow")]
    found += [("tiered", row["user"], f"{row['page']}+{row['tier']}") for row in rows("tiered")]
    found += [
        ("buyers", row["id"], "gone" if row["_deleted"] else f"{row['buyer']}+{row['country']}")
        for row in rows("buyers")
    ]
    found += [("near", row["user"], f"{row['page']}+{row['item'] or 'null'}") for row in rows("near")]
    return found


def newest(found, operator):
    last = {key: value for name, key, value in found if name == operator}
    return {key: value for key, value in last.items() if value not in ("null", "gone")}


def facts(found, operator):
    return Counter(f"{key} = {value}" for name, key, value in found if name == operator)


def test_every_store_goes_there_and_back_and_no_result_is_lost_or_repeated(broker, kafka_admin, class_path, tmp_path):
    prefix, id = f"{tmp_path.name}-", f"app-{tmp_path.name}"
    names = tuple(f"{prefix}{topic}" for topic in TOPICS)
    for name in names:
        kafka_admin.create_topic(name, PARTITIONS)
    kafka_admin.create_topic(f"{prefix}out", 1)
    internal = [f"{id}-buyers-subscription-{what}-topic" for what in ("registration", "response")]
    phases = records()

    produce(broker, prefix, phases[0])
    arguments = (broker, prefix, id)
    with kafka_streams(class_path, tmp_path / "first", *arguments, str(tmp_path / "first" / "state")) as process:
        wait_until_read(kafka_admin, id, names, process, internal)
    first = read_out(broker, f"{prefix}out")

    topics = KafkaTopics(kafka_admin, names)
    place = Place(program("moved", prefix), topics, tmp_path / "moved", max_records=200)
    app = KafkaStreamsApp(
        id=id,
        application=place.application,
        cluster=kafka_admin,
        reader=topics.new_reader,
        topic_counts=topics.partition_counts(),
    )
    migration = app.migration()
    assert not migration.left_out
    assert migration.write(place.warehouse)
    produce(broker, prefix, phases[1])
    assert place.run().records_in == len(phases[1])
    second = read_weir(place)

    back = KafkaStreamsReturn(
        id=id,
        application=place.application,
        commit=newest_commit(place.warehouse, "moved"),
        app_folder=place.warehouse / "moved",
        cluster=kafka_admin,
        reader=topics.new_reader,
        topic_counts=topics.partition_counts(),
        state_dir=tmp_path / "third" / "state" / id,
    )
    found = back.plan(replace=True)
    assert not found.left_out
    back.write(found, RecordWriter({"bootstrap.servers": broker}))
    assert back.plan().is_done
    produce(broker, prefix, phases[2])
    with kafka_streams(class_path, tmp_path / "third", *arguments, str(tmp_path / "third" / "state")) as process:
        wait_until_read(kafka_admin, id, names, process, internal)
    third = read_out(broker, f"{prefix}out")[len(first) :]

    homes = {key: number for number in range(PARTITIONS) for key in keys_of(broker, names, number)}
    wanted = Model([record for phase in phases for record in phase], homes.__getitem__)
    every = first + second + third
    for part in (first, second, third):
        assert {name for name, _, _ in part} == {"visits", "finals", "slow", "tiered", "buyers", "near"}
    assert newest(every, "visits") == wanted.visits
    assert facts(every, "finals") == Counter(f"{key} = {count}" for key, count in wanted.finals.items())
    assert facts(every, "slow") == wanted.slow
    assert facts(every, "tiered") == wanted.tiered
    assert newest(every, "buyers") == wanted.buyers
    assert facts(every, "near") == wanted.near


def keys_of(servers, names, partition):
    """The keys in one partition of the topics."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "keys", "enable.partition.eof": True})
    consumer.assign([TopicPartition(name, partition, 0) for name in names])
    found, at_end = set(), 0
    try:
        while at_end < len(names):
            for message in consumer.consume(1_000, timeout=1.0):
                if message.error() is None:
                    found.add(message.key().decode())
                else:
                    at_end += 1
        return found
    finally:
        consumer.close()
