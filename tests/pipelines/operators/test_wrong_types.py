"""An object where a program declares a scalar is refused: with what was declared, what came, and for which record."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from weir import (
    Application,
    FixedKeyProcessor,
    Json,
    Processor,
    Record,
    SessionWindows,
    StreamsBuilder,
    String,
    TimeWindows,
    UserFunctionError,
)
from weir.pipelines.serdes.row_type import row_type_of
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Order:
    id: int
    cents: int


@dataclass(frozen=True)
class One:
    value: int


Pair = namedtuple("Pair", "left right")
NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
GOOD = {int: 7, str: "seven", float: 7.5, bool: True, bytes: b"seven"}
WRONG = {
    "Order": Order(1, 2),
    "One": One(4),
    "dict": {"id": 1},
    "list[int]": [1],
    "list[Order]": [Order(1, 2)],
    "tuple[int | str]": (1, "x"),
    "Pair[int]": Pair(1, 2),
}


def typed(function, result, **more):
    function.__annotations__ = {"return": result, **more}
    return function


def sums(stream, declared, give):
    return stream.group_by_key().aggregate("sums", lambda: GOOD[declared], typed(lambda k, v, total: give(v), declared))


def windowed(stream, declared, give):
    windows = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    add = typed(lambda k, v, total: give(v), declared)
    return stream.group_by_key().windowed_by(windows).aggregate("sums", lambda: GOOD[declared], add)


def sessions(stream, declared, give):
    windows = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=1))
    add = typed(lambda k, v, total: give(v), declared)
    merge = typed(lambda k, one, other: one, declared)
    return stream.group_by_key().windowed_by(windows).aggregate("sums", lambda: GOOD[declared], add, merge)


def joined(stream, declared, give):
    table = stream.to_table("orders_by_key")
    return stream.join(table, typed(lambda one, other: give(one), declared))


def processed(stream, declared, give):
    class Forwards(Processor[str, Order, str, declared]):  # type: ignore[valid-type]
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Any) -> None:
            self.context.forward(record.with_value(give(record.value)))

    return stream.process(Forwards)


def processed_values(stream, declared, give):
    class Forwards(FixedKeyProcessor[str, Order, declared]):  # type: ignore[valid-type]
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Any) -> None:
            self.context.forward(record.with_value(give(record.value)))

    return stream.process_values(Forwards)


def processed_keys(stream, declared, give):
    class Forwards(Processor[str, Order, declared, int]):  # type: ignore[valid-type]
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Any) -> None:
            self.context.forward(Record(give(record.value), 1, record.timestamp))

    return stream.process(Forwards)


def nested(stream, declared, give):
    """The scalar is a field of what is returned."""
    holder = make_dataclass("Holder", [("inner", declared), ("other", int)], frozen=True)
    return stream.map_values(typed(lambda v: holder(give(v), 1), holder))


PLACES = {
    "forward": processed,
    "forward a value": processed_values,
    "forward a key": processed_keys,
    "map_values": lambda s, t, give: s.map_values(typed(lambda v: give(v), t)),
    "map": lambda s, t, give: s.map(typed(lambda k, v: (k, give(v)), tuple[str, t])),
    "the key of map": lambda s, t, give: s.map(typed(lambda k, v: (give(v), 1), tuple[t, int])),
    "flat_map_values": lambda s, t, give: s.flat_map_values(typed(lambda v: [give(v)], list[t])),
    "flat_map": lambda s, t, give: s.flat_map(typed(lambda k, v: [(k, give(v))], list[tuple[str, t]])),
    "select_key": lambda s, t, give: s.select_key(typed(lambda k, v: give(v), t)),
    "map_values of a table": lambda s, t, give: s.to_table("t").map_values(typed(lambda v: give(v), t)),
    "a field": nested,
    "aggregate": sums,
    "windows": windowed,
    "sessions": sessions,
    "join": joined,
}


def run(place, declared, results, *, on_error="fail"):
    """The rows that come out of ``place`` and the offsets of dead letters, with a record for each of ``results``, all
    in one epoch."""
    builder = StreamsBuilder()
    stream = builder.stream("orders", key=String("user"), value=Json(Order))
    out = PLACES[place](stream, declared, lambda order: results[order.id])
    out.to_delta("out")
    with TopologyTestDriver(Application("types", builder, on_processing_error=on_error)) as driver:
        orders = driver.create_input_topic("orders")
        with driver.one_epoch():
            for number in range(len(results)):
                orders.pipe_input(f"user {number}", Order(number, 1), timestamp=NINE)
        return driver.create_output_table("out").read_rows(), [letter.offset for letter in driver.dead_letters]


@pytest.mark.parametrize("place", PLACES)
@given(st.sampled_from(list(GOOD)), st.sampled_from(list(WRONG)), st.sampled_from([0, 1, 40]))
@settings(max_examples=examples(60), deadline=None)
def test_a_wrong_object_is_named_with_its_record_and_what_was_declared(place, declared, wrong, before):
    with pytest.raises(UserFunctionError) as raised:
        run(place, declared, [*[GOOD[declared]] * before, WRONG[wrong], GOOD[declared]])
    text = str(raised.value)
    said = [f"is declared {declared.__name__}, and {how} {wrong};" for how in ("got", "it returned")]
    assert any(each in text for each in said), text
    assert (raised.value.record.offset, raised.value.record.key) == (before, {"user": f"user {before}"})


@pytest.mark.parametrize("place", PLACES)
@given(st.sampled_from(list(GOOD)), st.sampled_from(list(WRONG)), st.sampled_from([0, 1, 40]))
@settings(max_examples=examples(20), deadline=None)
def test_only_the_record_of_a_wrong_object_becomes_a_dead_letter(place, declared, wrong, before):
    results = [*[GOOD[declared]] * before, WRONG[wrong], GOOD[declared]]
    rows, dead = run(place, declared, results, on_error="dead_letter")
    assert dead == [before]
    assert len(rows) == before + 1


def test_reduce_refuses_it_too():
    builder = StreamsBuilder()
    numbers = builder.stream("orders", key=String("user"), value=Json(Order)).map_values(typed(lambda v: 1, int))
    numbers.group_by_key().reduce("sums", typed(lambda one, other: One(4), int)).to_delta("out")
    with TopologyTestDriver(Application("types", builder)) as driver:
        orders = driver.create_input_topic("orders")
        orders.pipe_input("ann", Order(1, 1), timestamp=NINE)
        with pytest.raises(UserFunctionError, match="is declared int, and it returned One"):
            orders.pipe_input("ann", Order(2, 1), timestamp=NINE)


@pytest.mark.parametrize("declared", [*GOOD, date, time, datetime, Decimal, UUID, list[int], tuple[str, ...]])
@pytest.mark.parametrize("wrong", [Order(1, 2), One(4), {"id": 1}, [Order(1, 2)], Pair(1, 2.5)])
@pytest.mark.parametrize("first", [[], [None]])
def test_no_column_is_made_of_values_of_another_type(declared, wrong, first):
    row_type = row_type_of(declared, "value")
    with pytest.raises((AttributeError, TypeError, ValueError)):
        row_type.to_columns([*first, wrong])
    index, reason = row_type.misfit([*first, wrong])
    assert index == len(first)
    assert " is declared " in reason
