"""Raw records to a frame: order, absent keys and values, and which records are left out as bad."""

from dataclasses import dataclass
from types import SimpleNamespace

import polars as pl

from weir import Json, StreamsBuilder, String
from weir.pipelines.serdes.source import RAW_SCHEMA, decode_source


@dataclass(frozen=True)
class Event:
    amount: int


def decode(keys, values, times):
    builder = StreamsBuilder()
    builder.stream("events", key=String("user"), value=Json(Event))
    frame = pl.DataFrame(
        {"key": keys, "value": values, "timestamp_ms": times, "offset": range(40, 40 + len(keys))}, schema=RAW_SCHEMA
    )
    raw = SimpleNamespace(topic="events", partition=2, frame=frame)
    return decode_source(builder.build().source("events"), raw, partition_time_ms=-1, now_ms=0)


def test_bad_records_are_left_out_and_named():
    found = decode(
        [b"a", b"\xff", b"c", b"d", None],
        [b'{"amount": 1}', b'{"amount": 2}', b"{", b'{"amount": 4}', b"null"],
        [1, 2, 3, -4, 5],
    )
    assert found.frame.rows() == [("a", 1, 1, 2, 40, False), (None, None, 5, 2, 44, True)]
    assert found.frame.columns == ["user", "amount", "_ts", "_partition", "_offset", "_deleted"]
    assert [(bad.offset, bad.reason.split(":")[0]) for bad in found.bad] == [
        (41, "key"),
        (42, "value"),
        (43, "negative timestamp -4"),
    ]
    assert (found.bad[1].topic, found.bad[1].partition, found.bad[1].value) == ("events", 2, b"{")


def test_no_records_give_an_empty_frame_of_the_same_columns():
    found = decode([], [], [])
    assert found.frame.is_empty()
    assert dict(found.frame.schema) == dict(decode([b"a"], [b'{"amount": 1}'], [1]).frame.schema)


def test_all_records_may_be_tombstones():
    assert decode([b"a", b"b"], [None, None], [1, 2]).frame["_deleted"].to_list() == [True, True]
