"""Reading by offsets from a real broker: bounds, cuts, gaps, and what is gone."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.kafka.reader import OffsetGoneError, PartitionReader

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
    """A topic with the records 0 to 99, each at 1000 ms times its number."""
    name = topic()
    producer = Producer({"bootstrap.servers": broker})
    for number in range(100):
        producer.produce(name, b"v%d" % number, b"k%d" % number, timestamp=1_000_000 + number * 1_000)
    producer.flush()
    return name


def assert_reaches(reader: PartitionReader, position: int, end: int) -> None:
    """Reading on comes to ``end`` without a record; a marker may land a moment after its transaction."""
    until = time.monotonic() + 10
    while position < end and time.monotonic() < until:
        found = reader.read(position, end)
        assert len(found) == 0
        position = found.next_offset
    assert position == end


def test_a_range_is_read_to_its_end_and_no_further(reading, numbered):
    found = reading(numbered).read(10, 25)
    assert found.offsets.tolist() == list(range(10, 25))
    assert (found.keys[0], found.values[-1], found.next_offset) == (b"k10", b"v24", 25)
    assert found.timestamps_ms.tolist() == [1_000_000 + number * 1_000 for number in range(10, 25)]


def test_reading_goes_on_where_it_stopped_and_seeks_where_it_did_not(reading, numbered):
    reader = reading(numbered)
    assert reader.read(0, 10).offsets.tolist() == list(range(10))
    assert reader.read(10, 20).offsets.tolist() == list(range(10, 20))
    assert reader.read(5, 8).offsets.tolist() == [5, 6, 7], "back"
    assert reader.read(90, 100).offsets.tolist() == list(range(90, 100)), "ahead"


def test_records_that_were_taken_back_come_again_without_a_seek(reading, numbered, monkeypatch):
    reader = reading(numbered)
    taken = reader.read(0, 40)
    reader.take_back(taken, 25)
    monkeypatch.setattr(reader, "_seek", lambda offset: pytest.fail(f"sought {offset}"))
    again = reader.read(25, 60)
    assert again.offsets.tolist() == list(range(25, 60))
    assert again.values == [b"v%d" % number for number in range(25, 60)]


def test_a_time_cuts_before_the_first_record_beyond_it_but_one_is_always_taken(reading, numbered):
    reader = reading(numbered)
    found = reader.read(0, 100, until_time_ms=1_000_000 + 7_500)
    assert (found.offsets.tolist(), found.next_offset) == (list(range(8)), 8)
    assert reader.read(8, 100, until_time_ms=0).offsets.tolist() == [8], "what was fetched beyond is not lost"
    assert reader.read(9, 100).offsets.tolist() == list(range(9, 100))


def test_bytes_stop_reading_early(reading, broker, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "batch.num.messages": 100})
    for _ in range(40_000):
        producer.produce(name, b"x" * 100)
        producer.poll(0)
    producer.flush()
    found = reading(name).read(0, 40_000, max_bytes=1_000_000)
    assert 10_000 <= len(found) < 40_000
    assert found.next_offset == len(found)


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
    assert (found.values, found.offsets.tolist()) == ([b"a", b"c"], [0, 4])
    assert_reaches(reader, found.next_offset, 6)


def test_a_range_that_holds_no_record_moves_the_position_to_its_end(reading, broker, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"a")
    producer.commit_transaction()
    reader = reading(name)
    assert reader.read(0, 1).next_offset == 1
    assert_reaches(reader, 1, 2)


def test_an_offset_that_retention_has_passed_is_named(reading, broker, numbered):
    admin = AdminClient({"bootstrap.servers": broker})
    for deleted in admin.delete_records([TopicPartition(numbered, 0, 50)]).values():
        deleted.result(10)
    with pytest.raises(OffsetGoneError, match="offset 10 is not in the log any more"):
        reading(numbered).read(10, 60)


def test_a_broker_that_is_away_gives_what_there_is(topic):
    reader = PartitionReader({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "nowhere", 0)
    found = reader.read(3, 9, patience_s=0.2)
    assert (len(found), found.next_offset) == (0, 3)
    reader.close()
