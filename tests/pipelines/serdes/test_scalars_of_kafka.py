"""Numbers, booleans, UUIDs and windowed keys: the bytes are those that Kafka's serializers (4.3.1) give."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir import (
    Application,
    Boolean,
    Bytes,
    Float32,
    Float64,
    Int32,
    Int64,
    SessionWindowed,
    StreamsBuilder,
    String,
    TimeWindowed,
    TopologyError,
    Uuid,
    Windowed,
)
from weir.testing import TopologyTestDriver

ID = "0123abcd-0000-4000-8000-00000000000f"


def at(ms):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


WINDOW = Windowed("k", at(1000), at(4000))
BY_SIZE, BY_SESSION = TimeWindowed(String("user"), size=timedelta(seconds=3)), SessionWindowed(String("user"))


def rows(serde, items):
    columns = serde.decode(pl.Series(items, dtype=pl.Binary()), serde.row_type("value"))
    return list(zip(*[column.to_list() for column in columns.columns], strict=True)), columns.absent, columns.bad


@pytest.mark.parametrize(
    ("serde", "item", "encoded"),
    [
        (Int32(), -2, "fffffffe"),
        (Int64(), 258, "0000000000000102"),
        (Float32(), 1.5, "3fc00000"),
        (Float64(), -2.25, "c002000000000000"),
        (Boolean(), True, "01"),
        (Boolean(), False, "00"),
        (Uuid(), ID, ID.encode().hex()),
        (BY_SIZE, WINDOW, "6b00000000000003e8"),
        (BY_SESSION, WINDOW, "6b0000000000000fa000000000000003e8"),
    ],
)
def test_the_bytes_are_those_of_kafkas_serializers(serde, item, encoded):
    assert serde.encode(item).hex() == encoded
    values = (item.key, item.window_start, item.window_end) if isinstance(item, Windowed) else (item,)
    assert rows(serde, [bytes.fromhex(encoded), None]) == ([values, (None,) * len(values)], [1], {})
    assert serde.encode(None) is None


@pytest.mark.parametrize(
    ("serde", "bad"),
    [
        (Int32(), b"\x00" * 8),
        (Float32(), b""),
        (Float64(), b"\x00" * 4),
        (Boolean(), b"\x02"),
        (Boolean(), b"\x00\x00"),
        (Uuid(), b"0123abcd"),
        (Uuid(), b"\xff"),
        (Uuid(), ID.encode() + b"0"),
        (BY_SIZE, b"\x00" * 7),
        (BY_SESSION, b"\x00" * 15),
        (BY_SIZE, b"\xff" + b"\x00" * 8),
    ],
)
def test_malformed_bytes_are_bad_and_spoil_no_other_record(serde, bad):
    item = WINDOW if serde in (BY_SIZE, BY_SESSION) else {Uuid: ID, Boolean: True}.get(type(serde), 1)
    found, absent, reasons = rows(serde, [serde.encode(item), bad])
    assert (list(reasons), absent) == ([1], [])
    assert found[0] == rows(serde, [serde.encode(item)])[0][0]


def times(*milliseconds):
    return b"".join(each.to_bytes(8, "big", signed=True) for each in milliseconds)


@pytest.mark.parametrize(
    ("serde", "bad", "reason"),
    [
        (BY_SIZE, times(2**63 - 1), "time 9223372036854775807, which is not in the years 1 to 9999"),
        (BY_SIZE, times(-(2**62)), "time -4611686018427387904"),
        (BY_SESSION, times(2**62, 0), "time 4611686018427387904"),
        (BY_SESSION, times(0, -(2**62)), "time -4611686018427387904"),
        (BY_SESSION, times(1, 2), "ends at 1, before it starts at 2"),
    ],
)
def test_windows_of_impossible_times_are_bad(serde, bad, reason):
    found, absent, reasons = rows(serde, [serde.encode(WINDOW), b"k" + bad])
    assert (found, absent, list(reasons)) == ([("k", at(1000), at(4000)), (None,) * 3], [], [1])
    assert reason in reasons[1]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=5))
def test_numbers_are_read_as_they_were_written(items):
    for serde in (Int32(), Int64(), Float64()):
        assert [row[0] for row in rows(serde, [serde.encode(item) for item in items])[0]] == items


def test_a_uuid_is_text_in_lower_case_whoever_wrote_it():
    assert rows(Uuid(), [ID.upper().encode()])[0] == [(ID,)]
    assert Uuid().encode(UUID(ID)) == ID.encode()


def test_values_that_the_bytes_cannot_express_are_refused():
    for serde, item, error, reason in (
        (Int32(), 2**31, ValueError, "4 bytes"),
        (Uuid(), "x", ValueError, "UUID"),
        (BY_SIZE, Windowed("k", at(0), at(1)), ValueError, "1 ms long"),
        (BY_SIZE, Windowed(None, at(0), at(3000)), ValueError, "needs a key"),
    ):
        with pytest.raises(error, match=reason):
            serde.encode(item)
    with pytest.raises(TopologyError, match="at least one"):
        TimeWindowed(String(), size=timedelta(0))


@pytest.mark.parametrize(
    ("serde", "item", "words"),
    [
        (String("user"), 3, r"String\('user'\) takes str, found 3 \(int\)"),
        (Int32(), "3", r"takes int, found '3' \(str\)"),
        (Int64(), 1.5, r"takes int, found 1.5 \(float\)"),
        (Int64(), True, r"takes int, found True \(bool\)"),
        (Float64(), "a", r"takes float, found 'a' \(str\)"),
        (Boolean(), 1, r"takes bool, found 1 \(int\)"),
        (Bytes(), "a", r"takes bytes, found 'a' \(str\)"),
        (Uuid(), 3, r"takes str, found 3 \(int\)"),
        (BY_SIZE, "k", r"takes objects with key, window_start, window_end; 'k' \(str\) has no key"),
        (BY_SIZE, Windowed("k", 0, 1), r"takes datetime for window_start, found 0 \(int\)"),
    ],
)
def test_objects_of_another_type_are_refused_naming_the_expected_type(serde, item, words):
    with pytest.raises(TypeError, match=words):
        serde.encode(item)


@pytest.mark.parametrize("serde", [BY_SIZE, BY_SESSION])
def test_a_topic_with_windowed_keys_is_a_stream_by_key_and_window(serde):
    seen = []
    builder = StreamsBuilder()
    stream = builder.stream("counts", key=serde, value=Int64("n")).peek(lambda key, value: seen.append((key, value)))
    stream.group_by_key().count("by_window").to_delta("windows")
    stream.repartition("spread").to_delta("spread")
    stream.group_by("user").count("by_user").to_delta("users")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic = driver.create_input_topic("counts")
        for key in (WINDOW, WINDOW, Windowed("k", at(4000), at(7000)), None):
            topic.pipe_input(key, 7, timestamp_ms=5)
        row = dict(user="k", window_start=at(1000), window_end=at(4000))
        assert driver.create_output_table("windows").read_rows()[1] == dict(**row, count=2)
        assert driver.create_output_table("spread").read_row() == dict(**row, n=7)
        assert driver.create_output_table("users").read_rows()[-1] == dict(user="k", count=3)
        assert driver.get_key_value_store("by_window").get(WINDOW) == 2
    assert seen == [(WINDOW, 7), (WINDOW, 7), (Windowed("k", at(4000), at(7000)), 7), (None, 7)]
