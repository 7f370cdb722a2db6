"""Reading by offsets from a real broker: bounds, cuts, gaps, and records that are gone."""

from __future__ import annotations

import contextlib
import socket
import time
from random import Random
from threading import Thread

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.pipelines.spark.log_consumer import log_reader
from tests.waiting import wait_for
from weir.infra.kafka.raw_records import OffsetGoneError, RawRecords
from weir.infra.kafka.reader import PartitionReader

pytestmark = pytest.mark.broker


@pytest.fixture
def reading(broker):
    readers = []

    def open_reader(topic: str) -> PartitionReader:
        readers.append(PartitionReader({"bootstrap.servers": broker}, topic, 0))
        return readers[-1]

    yield open_reader
    for reader in readers:
        reader.close()


@pytest.fixture
def numbered(broker, topic):
    """A topic with the records 0 to 99, each with the timestamp 1000 ms times its number."""
    name = topic()
    producer = Producer({"bootstrap.servers": broker})
    for number in range(100):
        producer.produce(name, b"v%d" % number, b"k%d" % number, timestamp=1_000_000 + number * 1_000)
    producer.flush()
    return name


def offsets(found: RawRecords) -> list[int]:
    return found.frame["offset"].to_list()


def delete_records_before(broker: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker})
    for deleted in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        deleted.result(10)


def assert_reaches(reader: PartitionReader, position: int, end: int) -> None:
    """Reading on reaches ``end`` without a record; a marker may arrive a moment after its transaction."""
    until = time.monotonic() + 10
    while position < end and time.monotonic() < until:
        found = reader.read(position, end)
        assert found.frame.height == 0
        position = found.next_offset
    assert position == end


def test_a_range_is_read_to_its_end_and_no_further(reading, numbered):
    found = reading(numbered).read(10, 25)
    assert found.frame.rows() == [
        (b"k%d" % number, b"v%d" % number, 1_000_000 + number * 1_000, number) for number in range(10, 25)
    ]
    assert found.next_offset == 25


def test_reading_continues_where_it_stopped_and_seeks_elsewhere(reading, numbered):
    reader = reading(numbered)
    assert offsets(reader.read(0, 10)) == list(range(10))
    assert offsets(reader.read(10, 20)) == list(range(10, 20))
    assert offsets(reader.read(5, 8)) == [5, 6, 7], "back"
    assert offsets(reader.read(90, 100)) == list(range(90, 100)), "ahead"


def test_records_that_were_taken_back_are_read_again_without_a_seek(reading, numbered, monkeypatch):
    reader = reading(numbered)
    taken = reader.read(0, 40)
    reader.take_back(taken, 25)
    monkeypatch.setattr(reader, "_seek", lambda offset: pytest.fail(f"sought {offset}"))
    again = reader.read(25, 60)
    assert offsets(again) == list(range(25, 60))
    assert again.frame["value"].to_list() == [b"v%d" % number for number in range(25, 60)]


def test_records_that_are_taken_back_again_from_an_earlier_one_are_read_once(reading, numbered, monkeypatch):
    reader = reading(numbered)
    taken = reader.read(0, 40, until_time_ms=1_000_000 + 30_500)
    reader.take_back(taken, 25)
    reader.take_back(taken, 10)
    monkeypatch.setattr(reader, "_seek", lambda offset: pytest.fail(f"sought {offset}"))
    assert offsets(reader.read(10, 60)) == list(range(10, 60))


def test_a_reader_that_rests_now_and_then_reads_every_record_once(reading, broker, topic):
    """Also records that come between a read and the rest after it, and those that a read had to leave."""
    name, rng = topic(), Random(15)
    reader, producer = reading(name), Producer({"bootstrap.servers": broker, "linger.ms": 0})
    produced, position, rests = 0, 0, set()
    found = list[int]()
    for _ in range(60):
        if rng.random() < 0.5:
            for _ in range(more := rng.randint(1, 20)):
                producer.produce(name, b"v")
            producer.flush()
            produced += more
        if rng.random() < 0.6 and position < produced:
            read = reader.read(position, rng.randint(position + 1, produced))
            found += offsets(read)
            position = read.next_offset
        if rng.random() < 0.5:
            rests.add(reader.rest())
    while position < produced:
        read = reader.read(position, produced)
        found += offsets(read)
        position = read.next_offset
    assert found == list(range(produced))
    assert rests == {True, False}


def test_a_time_bound_cuts_before_the_first_later_record_but_always_gives_one(reading, numbered):
    reader = reading(numbered)
    found = reader.read(0, 100, until_time_ms=1_000_000 + 7_500)
    assert (offsets(found), found.next_offset) == (list(range(8)), 8)
    assert offsets(reader.read(8, 100, until_time_ms=0)) == [8], "what was fetched beyond is not lost"
    assert offsets(reader.read(9, 100)) == list(range(9, 100))


def test_a_bound_of_bytes_stops_reading_early(reading, broker, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "batch.num.messages": 100})
    for _ in range(40_000):
        producer.produce(name, b"x" * 100)
        producer.poll(0)
    producer.flush()
    found = reading(name).read(0, 40_000, max_bytes=1_000_000)
    assert found.next_offset == found.frame.height == 10_000, "the record that passes the bound is the last one"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_random_ranges_hold_what_was_produced(reading, broker, topic, compression):
    lot = Random(compression)
    name = topic()
    parts = [None, b"", b"k", b"of twelve by", b"longer than twelve bytes", bytes(range(256)) * 20]
    rows = [(lot.choice(parts), lot.choice(parts), lot.randrange(2**45), offset) for offset in range(3_000)]
    producer = Producer({"bootstrap.servers": broker, "compression.type": compression, "batch.num.messages": 100})
    for key, value, timestamp_ms, _ in rows:
        producer.produce(name, value, key, timestamp=timestamp_ms)
    producer.flush()
    reader, position = reading(name), 0
    for _ in range(40):
        position = position if position < 3_000 and lot.random() < 0.7 else lot.randrange(3_000)
        end = lot.randint(position + 1, 3_000)
        until_ms, max_bytes = lot.choice([None, 2**44, 2**45]), lot.choice([1, 1_000, 100_000, 64 << 20])
        found = reader.read(position, end, until_time_ms=until_ms, max_bytes=max_bytes)
        assert found.frame.rows() == rows[position : found.next_offset]
        assert position < found.next_offset <= end
        if max_bytes == 64 << 20:
            late = next((row[3] for row in rows[position:end] if until_ms is not None and row[2] > until_ms), end)
            assert found.next_offset == max(late, position + 1)
        position = found.next_offset
        if lot.random() < 0.3 and found.frame.height > 1:
            for _ in range(lot.choice([1, 1, 2, 3])):
                position = lot.randint(int(found.frame["offset"][0]), position)
                reader.take_back(found, position)


def test_reading_continues_after_an_error(reading, broker, numbered):
    reader = reading(numbered)
    assert offsets(reader.read(50, 60)) == list(range(50, 60))
    delete_records_before(broker, numbered, 50)
    for _ in range(2):
        with pytest.raises(OffsetGoneError, match=r"partition 0: offset 10 .*retention.*how to read on"):
            reader.read(10, 60)
    assert offsets(reader.read(60, 70)) == list(range(60, 70))


def test_errors_that_waiting_cannot_resolve_are_raised(broker):
    reader = PartitionReader({"bootstrap.servers": broker, "topic.metadata.propagation.max.ms": 0}, "nowhere", 0)
    with pytest.raises(KafkaException, match="topic does not exist"):
        reader.read(0, 1, patience_s=10)
    reader.close()
    with pytest.raises(KafkaException, match='No such configuration property: "fetch"'):
        PartitionReader({"fetch": "1"}, "events", 0)
    with pytest.raises(KafkaException, match=r"topic 'xxx.*cannot be read"):
        PartitionReader({"bootstrap.servers": broker}, "x" * 600, 0)
    with pytest.raises(KafkaException, match="ssl"):
        PartitionReader({"security.protocol": "ssl", "ssl.ca.location": "/nowhere.pem"}, "events", 0)


def test_records_that_arrived_one_by_one_are_read_at_once(reading, broker, topic):
    """For a moment each was the last before the partition's end, which the consumer reached."""
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    producer.produce(name, b"0")
    producer.flush()
    reader = reading(name)
    assert reader.read(0, 1).next_offset == 1
    for number in range(1, 30):
        producer.produce(name, b"%d" % number)
        producer.flush()
        time.sleep(0.02)
    time.sleep(0.3)
    assert offsets(reader.read(1, 30)) == list(range(1, 30))


def test_a_broker_that_sends_garbage_does_not_stop_one_that_serves(broker, numbered):
    def answer(connections: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = connections.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as connections:
        thread = Thread(target=answer, args=[connections])
        thread.start()
        for _ in range(4):
            servers = f"127.0.0.1:{connections.getsockname()[1]},{broker}"
            reader = PartitionReader({"bootstrap.servers": servers, "log_level": 0}, numbered, 0)
            assert offsets(reader.read(0, 100, patience_s=10)) == list(range(100))
            reader.close()
        connections.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_aborted_transactions_and_markers_are_passed_over(reading, broker, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions()
    for value, is_kept in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush()
        (producer.commit_transaction if is_kept else producer.abort_transaction)()
    reader = reading(name)
    found = reader.read(0, 6)
    assert (found.frame["value"].to_list(), offsets(found)) == ([b"a", b"c"], [0, 4])
    assert_reaches(reader, found.next_offset, 6)


def test_what_is_taken_back_before_a_marker_at_the_end_is_read_to_the_end_again(reading, broker, kafka_admin, topic):
    """librdkafka tells only once that the partition ends."""
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"a")
    producer.commit_transaction()
    wait_for(lambda: kafka_admin.end_offsets([(name, 0)]) == {(name, 0): 2}, "the marker is there", 10)
    reader = reading(name)
    for _ in range(3):
        found = reader.read(0, 2)
        assert (offsets(found), found.next_offset) == ([0], 2)
        reader.take_back(found, 0)


def test_a_range_without_records_moves_the_position_to_its_end(reading, broker, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"a")
    producer.commit_transaction()
    reader = reading(name)
    assert reader.read(0, 1).next_offset == 1
    assert_reaches(reader, 1, 2)


def test_an_offset_removed_by_retention_is_named(reading, broker, numbered):
    delete_records_before(broker, numbered, 50)
    with pytest.raises(OffsetGoneError, match=r"partition 0: offset 10 .*retention.*how to read on"):
        reading(numbered).read(10, 60)


def test_with_the_broker_unreachable_a_read_returns_what_there_is(topic):
    reader = PartitionReader({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "nowhere", 0)
    found = reader.read(3, 9, patience_s=0.2)
    assert (found.frame.height, found.next_offset) == (0, 3)
    reader.close()


HEADERS = [
    [],
    [("trace", b"\x00\xff\xfe"), ("trace", None), ("tenant", b""), ("", b"no name"), ("ąę", b"a" * 70_000)],
    [],
    [("trace", b"one more")],
]


def test_headers_are_read_in_order_with_duplicates_nulls_and_any_bytes(broker, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": broker})
    for number, headers in enumerate(HEADERS * 300):
        producer.produce(name, b"v%d" % number, headers=headers)
    producer.flush()
    reader = PartitionReader({"bootstrap.servers": broker}, name, 0, with_headers=True)
    try:
        found = reader.read(0, 1_000).frame
        frames = [found, reader.read(1_000, 1_190).frame, reader.read(1_190, 1_200).frame]
    finally:
        reader.close()
    assert [frame.height for frame in frames] == [1_000, 190, 10], "the last rows are copied and read on"
    rows = [headers for frame in frames for headers in frame["headers"].to_list()]
    assert [[(each["key"], each["value"]) for each in headers] for headers in rows] == HEADERS * 300


def test_headers_of_single_records_are_read_beside_what_the_reader_reads(reading, broker, topic, monkeypatch):
    name, sent = topic(), 4_000
    producer = Producer({"bootstrap.servers": broker})
    for number in range(sent):
        producer.produce(name, b"v", b"k", headers=[("n", b"%d" % number)])
    producer.flush()
    reader = reading(name)
    assert offsets(reader.read(0, 10)) == list(range(10))
    wanted = [0, 1, 17, 1_500, 1_501, 3_999]
    for _ in range(2):
        assert reader.headers(wanted).rows() == [(at, [{"key": "n", "value": b"%d" % at}]) for at in wanted]
        assert reader.headers([]).height == 0
    assert offsets(reader.read(10, 20)) == list(range(10, 20)), "where it was"
    delete_records_before(broker, name, 100)
    assert reader.headers([0, 17, 150, 2_500])["offset"].to_list() == [150, 2_500]
    reads = []
    monkeypatch.setattr(
        PartitionReader,
        "read",
        lambda *given, read=PartitionReader.read, **more: reads.append(given[1:]) or read(*given, **more),
    )
    for number in range(2_600, 3_500):  # as a function decides about one record after another
        assert reader.headers([number])["headers"].to_list() == [[{"key": "n", "value": b"%d" % number}]]
    assert len(reads) < 5


def test_without_an_answer_headers_are_left_out_at_once_and_later_read_again(caplog):
    """However many records are asked for that are far from each other."""
    log = []
    rows = [(b"k", b"v", number, [("n", b"%d" % number)]) for number in range(20_000)]
    reader = log_reader("topic", 0, lambda: log)
    began = time.monotonic()
    with caplog.at_level("WARNING"):
        assert reader.headers(range(0, 20_000, 1_500)).height == 0
    assert time.monotonic() - began < 5
    assert [record.getMessage() for record in caplog.records] == [
        "dead letters get no headers: topic-0: nothing comes from offset 0 on"
    ]
    log += rows
    assert reader.headers([0, 1_500])["headers"].to_list() == [
        [{"key": "n", "value": b"%d" % number}] for number in (0, 1_500)
    ]


def test_a_batch_without_headers_has_empty_lists(broker, numbered):
    reader = PartitionReader({"bootstrap.servers": broker}, numbered, 0, with_headers=True)
    try:
        found = reader.read(0, 100).frame
    finally:
        reader.close()
    assert found["headers"].to_list() == [[]] * 100


def test_headers_are_not_read_unless_they_are_asked_for(broker, topic, reading):
    name = topic()
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(name, b"value", headers=[("trace", b"1")])
    producer.flush()
    assert "headers" not in reading(name).read(0, 1).frame.columns
