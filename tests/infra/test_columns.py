"""The C callback against a Python list: which records it takes, where it stops, and what memory it leaves behind."""

import ctypes

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from weir.infra.kafka.columns import (
    ERROR_BYTES,
    RECORD_SCHEMA,
    RecordColumns,
    address_of,
    forget_kept,
    kept_bytes,
)


class Message(ctypes.Structure):
    """``rd_kafka_message_t``; the private field holds the timestamp here."""

    _fields_ = (
        ("error", ctypes.c_int32),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("key", ctypes.c_char_p),
        ("key_length", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("timestamp_ms", ctypes.c_int64),
    )


Take = ctypes.CFUNCTYPE(None, ctypes.POINTER(Message), ctypes.c_void_p)
TimestampOf = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(Message), ctypes.c_void_p)
Stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PART = st.none() | st.binary(max_size=40)
RECORDS = st.lists(st.tuples(PART, PART, st.integers(-(2**63), 2**63 - 1), st.integers(0, 3)), max_size=40)
BOUND = st.integers(0, 200)


@pytest.fixture(scope="module")
def feed():
    """Feeds records to columns as librdkafka does, until they ask it to stop; returns how many were taken."""
    stopped = []
    timestamp_of = TimestampOf(lambda message, kind: message.contents.timestamp_ms)
    stop = Stop(lambda client: stopped.append(client))
    columns = RecordColumns(address_of(timestamp_of), address_of(stop), 7)
    take = Take(columns.take)

    def fed(messages):
        stopped.clear()
        for count, message in enumerate(messages, 1):
            take(ctypes.byref(message), ctypes.cast(columns.pointer, ctypes.c_void_p))
            if stopped:
                assert stopped == [7]
                return count
        return len(messages)

    fed.columns = columns
    yield fed
    columns.close()


def record(key, value, timestamp_ms, offset):
    return Message(0, None, 0, value, len(value or b""), key, len(key or b""), offset, timestamp_ms)


def bounds(feed, *, start=0, end=2**63 - 1, until_ms=2**63 - 1, max_bytes=2**63 - 1):
    feed.columns.begin_at(start)
    found = feed.columns.found
    found.end, found.until_ms, found.max_bytes = end, until_ms, max_bytes
    return found


@settings(max_examples=examples(300))
@given(records=RECORDS, start=st.integers(0, 5), end=BOUND, until_ms=BOUND, max_bytes=BOUND)
def test_columns_hold_what_a_list_would(feed, records, start, end, until_ms, max_bytes):
    rows, offset = [], 0
    for key, value, timestamp_ms, gap in records:
        offset += gap
        rows.append((key, value, timestamp_ms, offset))
        offset += 1
    found = bounds(feed, start=start, end=end, until_ms=until_ms, max_bytes=max_bytes)
    wanted, size, stopped = [], 0, len(rows)
    for count, row in enumerate(rows, 1):
        if row[3] < start:
            continue
        wanted.append(row)
        size += len(row[0] or b"") + len(row[1] or b"")
        if row[3] + 1 >= end or row[2] > until_ms or size >= max_bytes:
            stopped = count
            break
    assert feed([record(*row) for row in rows]) == stopped
    assert bool(found.is_complete) == bool(
        wanted and (wanted[-1][3] + 1 >= end or wanted[-1][2] > until_ms or size >= max_bytes)
    )
    assert found.bytes == size
    assert found.next_offset == (wanted[-1][3] + 1 if wanted else start)
    frame = feed.columns.frame()
    assert frame.schema == RECORD_SCHEMA
    assert frame.rows() == wanted
    assert feed.columns.frame().rows() == [], "handed out once"


def test_frames_outlive_the_columns_they_came_from(feed):
    bounds(feed)
    value = b"a value that is longer than twelve bytes"
    feed([record(b"k%d" % number, value, number, number) for number in range(5_000)])
    first = feed.columns.frame()
    feed([record(b"other", b"another value that is longer than that", 0, number) for number in range(5_000, 9_000)])
    assert first["key"].to_list() == [b"k%d" % number for number in range(5_000)]
    assert first["value"].unique().to_list() == [value]


def test_an_error_ends_the_batch_after_the_records_before_it(feed):
    found = bounds(feed)
    text = b"Broker: no permission"
    failed = Message(29, None, 0, text, len(text), None, 0, 4, 0)
    assert feed([record(b"k", b"v", 1, 3), failed, record(b"k", b"v", 1, 5)]) == 2
    assert (found.error, found.error_offset, found.error_text, found.rows) == (29, 4, text, 1)
    failed = Message(29, None, 0, b"x" * 2 * ERROR_BYTES, 2 * ERROR_BYTES, None, 0, 4, 0)
    feed([failed])
    assert found.error_text == b"x" * (ERROR_BYTES - 1)


def test_the_partitions_end_does_not_end_a_batch_and_is_reported_if_no_record_follows(feed):
    found = bounds(feed)
    end = [Message(-191, None, 0, b"", 0, None, 0, offset, 0) for offset in range(4)]
    assert feed([record(b"k", b"v", 1, 2), end[3], record(b"k", b"v", 1, 3)]) == 3
    assert (found.error, found.rows) == (0, 2)
    feed([end[3]])
    assert (found.error, found.error_offset, found.rows) == (-191, 3, 2)


def test_dropped_frames_release_their_memory(feed):
    process = psutil.Process()
    messages = [record(b"k", b"x" * 100_000, 0, number) for number in range(100)]

    def held():
        for _ in range(20):
            bounds(feed)
            feed(messages)
            assert feed.columns.frame().height == 100
            feed(messages)
        return process.memory_info().rss

    before = held()
    assert held() - before < 60 << 20, "20 times 10 MB were taken and dropped, and 20 times forgotten"


@settings(max_examples=examples(20))
@given(sizes=st.lists(st.integers(0, 400_000), min_size=2, max_size=12), drops=st.lists(st.integers(0, 5), max_size=12))
def test_memory_that_is_used_again_holds_what_was_read_last(feed, sizes, drops):
    """Columns of 0 to 1.6 MB come and go in any order; each frame is as it was read for as long as it is there."""
    held = {}
    for number, size in enumerate(sizes):
        bounds(feed)
        rows = [(b"%d" % (number + each), bytes([number + each]) * size, each, each) for each in range(4)]
        feed([record(*row) for row in rows])
        held[number] = (feed.columns.frame(), rows)
        if number < len(drops):
            held.pop(number - drops[number], None)
        for frame, wanted in held.values():
            assert frame.rows() == wanted


def test_memory_of_columns_is_kept_for_the_next_ones_up_to_a_bound_and_returned(feed):
    def read(size):
        bounds(feed)
        feed([record(b"k", b"x" * size, 0, 0)])
        return feed.columns.frame()

    forget_kept()
    first = read(3 << 20)
    assert kept_bytes() == 0
    del first
    kept = kept_bytes()
    assert kept >= 3 << 20
    second = read(3 << 20)
    assert kept_bytes() <= kept - (3 << 20), "it was taken"
    del second
    frames = [read(40 << 20) for _ in range(4)]
    del frames
    assert 40 << 20 <= kept_bytes() <= 128 << 20
    assert read(200 << 20).height == 1, "more than is ever kept"
    forget_kept()
    assert kept_bytes() == 0


def test_names_of_headers_that_are_no_text_are_read_as_text():
    """Kafka takes any bytes for them; a producer that is not librdkafka's or Java's may send some."""
    sent = [[(b"ok", b"1"), (b"\xff\xfe", None)], [], [(b"\xc4\x85", b"")]]
    names = [ctypes.create_string_buffer(name) for headers in sent for name, _ in headers]
    values = [value and ctypes.create_string_buffer(value) for headers in sent for _, value in headers]
    starts, current = [0, 2, 2], [0]

    def headers_of(message, headers):
        current[0] = message.contents.offset
        return 0 if sent[current[0]] else -156  # RD_KAFKA_RESP_ERR__NOENT

    def header_at(_, index, name, value, size):
        if index >= len(sent[current[0]]):
            return -156
        at, bytes_of = starts[current[0]] + index, sent[current[0]][index][1]
        name[0] = ctypes.addressof(names[at])
        value[0] = None if bytes_of is None else ctypes.addressof(values[at] or names[at])
        size[0] = len(bytes_of or b"")
        return 0

    pointers = ctypes.POINTER(ctypes.c_void_p)
    headers_of = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Message), pointers)(headers_of)
    header_at = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, pointers, pointers, ctypes.POINTER(ctypes.c_size_t)
    )(header_at)
    timestamp_of = TimestampOf(lambda message, kind: message.contents.timestamp_ms)
    stop = Stop(lambda client: None)
    columns = RecordColumns(*map(address_of, (timestamp_of, stop)), 7, address_of(headers_of), address_of(header_at))
    take = Take(columns.take)
    columns.begin_at(0)
    found = columns.found
    found.end, found.until_ms, found.max_bytes = 100, 100, 10**6
    for offset in range(len(sent)):
        take(ctypes.byref(record(b"k", b"v", 1, offset)), ctypes.cast(columns.pointer, ctypes.c_void_p))
    assert found.bytes == 3 * 2 + len(b"ok1") + 2 + 2, "headers count"
    assert [[tuple(each.values()) for each in row] for row in columns.frame()["headers"].to_list()] == [
        [("ok", b"1"), ("\ufffd\ufffd", None)],
        [],
        [("ą", b"")],
    ]
    columns.close()
