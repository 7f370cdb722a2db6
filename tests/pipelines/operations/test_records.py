"""Lines become records, and records text that people can read."""

import base64
import json

import pytest

from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.records import iso_time, plain, records_of, shown, time_ms_of


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"amount": 5}\n', (None, b'{"amount": 5}')),
        ('{"amount":\t5}\n', (None, b'{"amount":\t5}')),  # a tab between JSON's tokens is no separator
        ('ann\t{"amount": 5}\r\n', (b"ann", b'{"amount": 5}')),
        ("ann\tone\ttwo", (b"ann", b"one\ttwo")),
        ("ann\t\n", (b"ann", None)),
        ("\tvalue", (b"", b"value")),
        ("plain text", (None, b"plain text")),
        ('{"key": 1}\t{"value": 2}', (b'{"key": 1}', b'{"value": 2}')),
        ("zoë\té", ("zoë".encode(), "é".encode())),
    ],
)
def test_a_line_is_a_record(line, record):
    assert list(records_of([line])) == [(*record, None)]


def test_blank_lines_are_no_records_and_are_told():
    left_out: list[int] = []
    assert list(records_of(["\n", "a\tb\n", "  \n", "", "\t\n"], left_out=left_out)) == [(b"a", b"b", None)]
    assert left_out == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"k": "ann"}', b"ann"),
        ('{"k": 7}', b"7"),
        ('{"k": {"a": 1, "b": "é"}}', '{"a":1,"b":"é"}'.encode()),
        ('{"k": null}', None),
        ('{"k": true}', b"true"),
    ],
)
def test_a_field_is_the_key_and_the_line_stays_the_value(line, key):
    assert list(records_of([line + "\n"], key_field="k")) == [(key, line.encode(), None)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nope", r"line 2 is not JSON \(.*\); --key-field takes one JSON object per line"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"a": 1, "b": 2}', r"line 2 has no field 'k'; it has a, b: correct --key-field or the line"),
        ("{}", "it has none"),
    ],
)
def test_a_line_without_the_field_is_named(line, message):
    with pytest.raises(OperationError, match=message):
        list(records_of(['{"k": 1}', line], key_field="k"))


@pytest.mark.parametrize(
    ("time", "time_ms"),
    [("1", 1), ("1706702400123", 1_706_702_400_123), ('"2024-01-31T12:00:00Z"', 1_706_702_400_000)],
)
def test_a_field_is_the_time_of_its_record(time, time_ms):
    line = f'{{"k": "ann", "at": {time}}}'
    assert list(records_of([line], time_field="at")) == [(None, line.encode(), time_ms)]
    assert list(records_of([line], key_field="k", time_field="at")) == [(b"ann", line.encode(), time_ms)]


@pytest.mark.parametrize(
    "time", ["null", "true", "-1", "0", "1.5", "[]", '"noon"', '"1970-01-01"', "9223372036854775808"]
)
def test_a_field_that_is_no_time_is_named_with_its_line(time):
    with pytest.raises(
        OperationError, match=r"line 2: the time in 'at' cannot be .*; write a time such as 2024-01-31T12"
    ):
        list(records_of(['{"at": 1}', f'{{"at": {time}}}'], time_field="at"))


@pytest.mark.parametrize("line", ["nope", "[1]", '{"a": 1}'])
def test_a_line_without_its_time_is_named(line):
    with pytest.raises(OperationError, match=r"line 1 .*--time-field"):
        list(records_of([line], time_field="at"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "-"),
        (b"", ""),
        ("zoë".encode(), "zoë"),
        (b"a\nb\tc\r", "a\\nb\\tc\\r"),
        ("a\u00a0b\u3000".encode(), "a\u00a0b\u3000"),
        (b"\xff\x00", "base64:/wA="),
        (b"\x00\x00\x00\x07", "base64:AAAABw=="),  # valid UTF-8, but an Int32 that nobody can read
    ],
)
def test_bytes_are_shown_on_one_line(data, text):
    assert shown(data) == text


@pytest.mark.parametrize("data", [None, b"", b"a\nb", b"\xff\x00", b"\x07"])
def test_json_gives_every_byte_back(data):
    ((name, value),) = json.loads(json.dumps(plain("key", data))).items()
    assert name == ("key_base64" if data in (b"\xff\x00", b"\x07") else "key")
    given = value if value is None else base64.b64decode(value) if name == "key_base64" else value.encode()
    assert given == data


def test_times_are_utc():
    assert iso_time(None) is None
    assert iso_time(1_704_067_200_123) == "2024-01-01T00:00:00.123Z"
    assert iso_time(2**62) == f"{2**62} ms"
    assert time_ms_of("2024-01-01", "--from") == 1_704_067_200_000
    assert time_ms_of("2024-01-01T01:00:00+01:00", "--from") == 1_704_067_200_000
    with pytest.raises(OperationError, match="--timestamp cannot be 'soon'; write a time such as"):
        time_ms_of("soon", "--timestamp")
