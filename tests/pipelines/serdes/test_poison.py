"""Records that a serde cannot get over are bad input like any other, whatever they make it raise."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import polars as pl
import pytest
from polars import col

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.tasks.letters import read_dead_letters
from weir import Application, Json, Msgpack, SchemaRegistryError, StreamsBuilder, String, Sum
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import DecodedColumns
from weir.pipelines.spark.errors import BadRecordError, TaskFailedError
from weir.state.commit.tables import read_table

RECORDS, POISON = 300, (17, 18, 250)
DEPTH = 5_000


@dataclass(frozen=True)
class Order:
    cents: int


class Text:
    """A serde of one's own, which fails as a whole if one record does; ``kind`` is what it raises."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def row_type(self, default_name: str) -> RowType:
        return String("text").row_type(default_name)

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        if b"poison" in items.to_list():
            raise self.kind("a bad day")
        return String("text").decode(items, row_type)

    def encode(self, item):
        return item.encode()


def nested_json(number: int) -> bytes:
    return b'{"cents": %d, "more": %s}' % (number, b"[" * DEPTH + b"]" * DEPTH)


def nested_msgpack(number: int) -> bytes:
    order = msgspec.msgpack.encode({"cents": number})
    return b"\x82" + order[1:] + b"\xa4more" + b"\x91" * DEPTH + b"\x90"


CASES = {
    "json": (Json(Order), lambda number: b'{"cents": %d}' % number, nested_json, "RecursionError"),
    "msgpack": (
        Msgpack(Order),
        lambda number: msgspec.msgpack.encode({"cents": number}),
        nested_msgpack,
        "RecursionError",
    ),
    "one's own": (Text(KeyError), lambda number: b"%d" % number, lambda number: b"poison", "KeyError: 'a bad day'"),
}


def place(folder, case: str, **settings) -> Place:
    serde, good, bad, _ = CASES[case]
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=serde)
    if isinstance(serde, Text):
        orders = orders.map_values(cents=col("text").cast(pl.Int64)).filter(col("cents") >= 0)
    orders.group_by_key().agg("sums", cents=Sum("cents")).to_delta("sums")
    rows = [
        (b"user-%d" % (number % 3), (bad if number in POISON else good)(number), 1_000 + number)
        for number in range(RECORDS)
    ]
    return Place(Application("shop", builder, **settings), Topics({("orders", 0): rows}), folder, max_records=100)


@pytest.mark.parametrize("case", CASES)
def test_each_is_put_aside_and_all_others_are_read(tmp_path, case):
    here = place(tmp_path, case, on_error="dead_letter")
    here.run()
    sums = read_table(here.warehouse / "shop" / "sums")
    assert dict(sums.select("user", "cents").iter_rows()) == {
        f"user-{user}": sum(number for number in range(user, RECORDS, 3) if number not in POISON) for user in range(3)
    }
    letters = read_dead_letters(here.warehouse / "shop")
    assert sorted(letters["offset"]) == list(POISON)
    assert all(CASES[case][3] in reason for reason in letters["reason"])


@pytest.mark.parametrize("case", CASES)
def test_or_the_run_stops_and_names_the_first(tmp_path, case):
    with pytest.raises(BadRecordError, match=r"orders.*0.*17"):
        place(tmp_path, case).run()


@pytest.mark.parametrize("kind", [SchemaRegistryError, ConnectionError, MemoryError])
def test_what_is_not_the_records_fault_stops_the_run_whatever_the_setting(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(CASES, "away", (Text(kind), CASES["one's own"][1], CASES["one's own"][2], ""))
    here = place(tmp_path, "away", on_error="dead_letter")
    with pytest.raises(TaskFailedError, match="a bad day"):
        here.run()
