"""Topic partitions that are read through one client: a real broker against a plain model."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import psutil
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.waiting import wait_for
from weir.infra.kafka import consumer, shared_clients
from weir.infra.kafka.raw_records import OffsetGoneError
from weir.infra.kafka.reader import PartitionReader
from weir.infra.kafka.shared_clients import CROWDS, Crowd

pytestmark = pytest.mark.broker

PARTITIONS, LIMIT_S = 6, 20.0
SMALL = (Crowd(2, 2), Crowd(1_000, 2, {"queued.min.messages": 3, "fetch.wait.max.ms": 2}))
"""Partitions take turns, and queues are full early."""


@pytest.fixture
def opened(broker):
    """``opened(topic, partition)`` makes a reader that is closed at the end, if it is open then."""
    readers: list[PartitionReader] = []

    def open_reader(topic: str, partition: int = 0, **properties: object) -> PartitionReader:
        given = {"bootstrap.servers": broker, "topic.metadata.propagation.max.ms": 0, **properties}
        readers.append(PartitionReader(given, topic, partition))
        return readers[-1]

    yield open_reader
    for reader in readers:
        reader.close()


@pytest.fixture
def small_crowds(monkeypatch):
    monkeypatch.setattr(shared_clients, "CROWDS", SMALL)


def produce(broker: str, topic: str, partition: int, values: range) -> None:
    producer = Producer({"bootstrap.servers": broker, "batch.num.messages": 20})
    for value in values:
        producer.produce(topic, b"%d" % value, partition=partition)
    producer.flush()


def produce_in_transactions(broker: str, topic: str, rng: Random) -> tuple[list[dict[int, bytes]], list[int]]:
    """By partition, the values by offset that readers of committed records see, and the end; control records and
    records that were aborted may be the last ones."""
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    producer.init_transactions()
    seen: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
    ends = [0] * PARTITIONS
    for turn in range(25):
        is_kept = rng.random() < 0.6
        producer.begin_transaction()
        for partition in (written := rng.sample(range(PARTITIONS), rng.randint(1, 4))):
            for number in range(rng.randint(1, 12)):
                value = b"%d of %d" % (number, turn)
                producer.produce(topic, value, partition=partition)
                if is_kept:
                    seen[partition][ends[partition]] = value
                ends[partition] += 1
        producer.flush()
        (producer.commit_transaction if is_kept else producer.abort_transaction)()
        for partition in written:
            ends[partition] += 1
    return seen, ends


def values_of(reader: PartitionReader, start: int, end: int) -> dict[int, bytes]:
    """All records of the range, by offset."""
    found, until = dict[int, bytes](), time.monotonic() + LIMIT_S
    while start < end:
        assert time.monotonic() < until
        read = reader.read(start, end)
        assert start <= read.next_offset <= end
        found.update(zip(read.frame["offset"], read.frame["value"], strict=True))
        start = read.next_offset
    return found


@pytest.mark.parametrize("crowds", [CROWDS, SMALL])
@pytest.mark.parametrize("seed", [1, 2])
def test_any_turns_of_several_partitions_give_exactly_the_records_that_are_there(
    opened, broker, topic, monkeypatch, crowds, seed
):
    """Reads, seeks back as after a rollback, records taken back, rests, closes, and fetching ahead."""
    monkeypatch.setattr(shared_clients, "CROWDS", crowds)
    rng, name = Random(seed), topic(PARTITIONS)
    model, ends = produce_in_transactions(broker, name, rng)
    readers = {partition: opened(name, partition) for partition in range(PARTITIONS)}
    positions = [0] * PARTITIONS
    for _ in range(120):
        partition = rng.randrange(PARTITIONS)
        reader, position, end = readers[partition], positions[partition], ends[partition]
        step = rng.random()
        if step < 0.15:
            positions[partition] = rng.randint(0, position)
        elif step < 0.25:
            reader.close()
            readers[partition] = opened(name, partition)
        elif step < 0.35:
            reader.rest()
        elif step < 0.5:
            reader.fetch_ahead(position)
        elif position < end:
            wanted = rng.randint(position + 1, end)
            read = reader.read(position, wanted, max_bytes=rng.choice([1, 50, 1 << 20]))
            assert position <= read.next_offset <= wanted
            rows = {at: value for at, value in model[partition].items() if position <= at < read.next_offset}
            assert dict(zip(read.frame["offset"], read.frame["value"], strict=True)) == rows
            positions[partition] = read.next_offset
            if rows and rng.random() < 0.3:
                positions[partition] = rng.choice(list(rows))
                reader.take_back(read, positions[partition])
    for partition, reader in readers.items():
        rest = {at: value for at, value in model[partition].items() if at >= positions[partition]}
        assert values_of(reader, positions[partition], ends[partition]) == rest


def test_many_partitions_share_clients_which_end_with_the_last_of_them(broker, topic):
    """Nor do its threads."""
    name = topic(40)
    threads = psutil.Process().num_threads
    before, clients_before = threads(), len(consumer._clients._clients)
    readers = [PartitionReader({"bootstrap.servers": broker}, name, partition) for partition in range(40)]
    for reader in readers:
        reader.read(0, 1, patience_s=0)
    assert threads() - before < 10
    assert len(consumer._clients._clients) <= clients_before + 3
    for reader in readers[1:]:
        reader.close()
    produce(broker, name, 0, range(3))
    assert values_of(readers[0], 0, 3) == {0: b"0", 1: b"1", 2: b"2"}
    readers[0].close()
    assert len(consumer._clients._clients) == clients_before
    wait_for(lambda: threads() <= before + 1, "the client's threads end", LIMIT_S)  # polars may have begun one


def test_two_readers_of_one_partition_do_not_disturb_each_other(opened, broker, topic):
    name = topic()
    produce(broker, name, 0, range(50))
    first, second = opened(name), opened(name)
    for start in range(0, 50, 10):
        assert list(values_of(first, start, start + 10)) == list(range(start, start + 10))
        assert list(values_of(second, 40 - start, 50 - start)) == list(range(40 - start, 50 - start))


def test_threads_that_read_different_partitions_do_not_disturb_each_other(opened, broker, topic, small_crowds):
    name, count = topic(4), 300
    for partition in range(4):
        produce(broker, name, partition, range(count))
    readers = [opened(name, partition) for partition in range(4)]

    def read_in_turns(of: list[PartitionReader]) -> list[dict[int, bytes]]:
        found: list[dict[int, bytes]] = [{} for _ in of]
        for start in range(0, count, 5):
            for each, reader in zip(found, of, strict=True):
                each.update(values_of(reader, start, start + 5))
        return found

    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(read_in_turns, [readers[:2], readers[2:]]))
    assert halves == [[{number: b"%d" % number for number in range(count)}] * 2] * 2


def test_only_so_many_fetch_however_many_wait(opened, broker, topic, small_crowds):
    name = topic(12)
    for partition in range(12):
        produce(broker, name, partition, range(60))
    readers = [opened(name, partition) for partition in range(12)]
    for start in range(0, 60, 20):
        for reader in readers:
            assert list(values_of(reader, start, start + 20)) == list(range(start, start + 20))
            assert len(consumer._fetching._since) <= 2


def test_retention_that_overtakes_a_partition_stops_its_reader_alone(opened, broker, topic):
    name = topic(3)
    for partition in range(3):
        produce(broker, name, partition, range(100))
    readers = [opened(name, partition) for partition in range(3)]
    for reader in readers:
        assert len(values_of(reader, 0, 10)) == 10
        reader.stop()
    admin = AdminClient({"bootstrap.servers": broker})
    for deleted in admin.delete_records([TopicPartition(name, 1, 50)]).values():
        deleted.result(LIMIT_S)
    for reader, position in zip(readers, (10, 10, 10), strict=True):
        if reader is readers[1]:
            with pytest.raises(OffsetGoneError, match="partition 1: offset 10 "):
                reader.read(position, 100)
        else:
            assert list(values_of(reader, position, 100)) == list(range(10, 100))
    assert list(values_of(readers[1], 50, 100)) == list(range(50, 100))


def test_a_deleted_topic_stops_its_readers_alone_and_one_made_anew_is_read(opened, broker, kafka_admin, topic):
    doomed, other = topic(2), topic()
    for partition in range(2):
        produce(broker, doomed, partition, range(10))
    produce(broker, other, 0, range(1_000))
    readers, beside = [opened(doomed, partition) for partition in range(2)], opened(other)
    for reader in readers:
        assert len(values_of(reader, 0, 10)) == 10
    assert list(values_of(beside, 0, 10)) == list(range(10))
    kafka_admin.delete_topic(doomed)
    for reader in readers:
        with pytest.raises(KafkaException, match=r"[Uu]nknown topic|does not exist"):
            values_of(reader, 10, 11)
    assert list(values_of(beside, 10, 1_000)) == list(range(10, 1_000))
    kafka_admin.create_topic(doomed, 2)
    for partition, reader in enumerate(readers):
        produce(broker, doomed, partition, range(100, 105))
        reader.close()
        anew, until = opened(doomed, partition), time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            try:
                found = values_of(anew, 0, 5)
                break
            except KafkaException:  # the client has not heard of it yet
                time.sleep(0.1)
        assert found == {number: b"%d" % (100 + number) for number in range(5)}


def test_a_topic_that_does_not_exist_stops_its_reader_alone(opened, broker, topic):
    name = topic()
    produce(broker, name, 0, range(10))
    good, none, beyond = opened(name), opened(f"not-{name}"), opened(name, 7)
    assert list(values_of(good, 0, 5)) == list(range(5))
    with pytest.raises(KafkaException, match="does not exist"):
        none.read(0, 1, patience_s=LIMIT_S)
    assert beyond.read(0, 1, patience_s=0.2).next_offset == 0, "a lagging broker may not know it yet"
    assert list(values_of(good, 5, 10)) == list(range(5, 10))


def test_the_more_partitions_are_read_the_less_is_fetched_ahead_of_each(broker, monkeypatch):
    """And what a program asks for is lowered, never raised."""
    made = []
    monkeypatch.setattr(shared_clients, "new_conf", lambda properties: made.append(dict(properties)))
    monkeypatch.setattr(shared_clients, "new_client", lambda kind, conf: 1)
    clients = shared_clients.SharedClients()
    given = {"queued.min.messages": 50_000, "max.partition.fetch.bytes": "1000", "fetch.wait.max.ms": 10}
    for partition in range(70):
        clients.join(given, "events", partition)
    assert made == [
        given,
        given
        | {"queued.min.messages": 4_000, "queued.max.messages.kbytes": 512, "fetch.max.bytes": 4_000_000}
        | {"max.partition.fetch.bytes": 1_000},
        given
        | {"queued.min.messages": 2_000, "queued.max.messages.kbytes": 128, "fetch.max.bytes": 1_000_000}
        | {"max.partition.fetch.bytes": 1_000, "fetch.wait.max.ms": 2},
    ]


def test_partitions_move_to_the_client_of_their_crowd_when_they_begin_to_fetch(opened, broker, topic, small_crowds):
    name = topic(3)
    for partition in range(3):
        produce(broker, name, partition, range(20))
    readers = [opened(name, 0), opened(name, 1)]
    for reader in readers:
        assert len(values_of(reader, 0, 10)) == 10
    readers.append(opened(name, 2))
    before, clients = len(consumer._clients._clients), list[int]()
    for reader in readers:
        reader.stop()
        assert list(values_of(reader, 10, 20)) == list(range(10, 20))
        clients.append(len(consumer._clients._clients))
    assert clients == [before, before - 1, before - 1]
