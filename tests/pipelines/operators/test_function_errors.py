"""Errors of the program's functions name the record, as far as known, and what was declared, but never values."""

import pickle
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from polars.exceptions import PanicException

from weir import (
    Application,
    Json,
    Processor,
    Punctuation,
    Record,
    SessionWindows,
    StreamsBuilder,
    String,
    TimeWindows,
    UserFunctionError,
)
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Order:
    amount: int


@dataclass(frozen=True)
class Share:
    of: float
    at: datetime


def boom(order: Order) -> Order:
    return Order(100 // order.amount)


def boom_pair(key: str, order: Order) -> Order:
    return boom(order)


def boom_key(key: str, order: Order) -> int:
    return 100 // order.amount


def boom_pairs(key: str, order: Order) -> Iterator[tuple[str, int]]:
    yield "first", 1
    yield key, 100 // order.amount


def boom_fold(key: str, order: Order, total: int) -> int:
    return total + 100 // order.amount


def boom_reduce(reduced: Order, order: Order) -> Order:
    return boom(order)


def boom_join(order: Order, other: Order | None) -> Order:
    return boom(order)


def either(key: str, one: int, other: int) -> int:
    return one + other


WINDOWS = TimeWindows.of_size_with_no_grace(timedelta(seconds=1))
SESSIONS = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(seconds=1))


def failing(describe, records):
    """The error that the last of ``records`` (topic, key, amount) raises."""
    builder = StreamsBuilder()
    describe(builder, builder.stream("orders", key=String("user"), value=Json(Order)))
    with TopologyTestDriver(Application("test", builder)) as driver:
        for topic, key, amount in records[:-1]:
            driver.create_input_topic(topic).pipe_input(key, Order(amount), timestamp_ms=1_000)
        topic, key, amount = records[-1]
        with pytest.raises(UserFunctionError) as raised:
            driver.create_input_topic(topic).pipe_input(key, Order(amount), timestamp_ms=2_000)
    return pickle.loads(pickle.dumps(raised.value))


@pytest.mark.parametrize(
    "describe",
    [
        lambda b, s: s.map_values(boom),
        lambda b, s: s.filter(boom_pair),
        lambda b, s: s.peek(boom_pair),
        lambda b, s: s.split().branch(boom_pair),
        lambda b, s: s.select_key(boom_key),
        lambda b, s: s.flat_map(boom_pairs),
        lambda b, s: s.to_table("t").map_values(boom),
        lambda b, s: s.left_join(b.table("others", key=String("user"), value=Json(Order), store="o"), boom_join),
        lambda b, s: s.group_by_key().aggregate("s", int, boom_fold),
        lambda b, s: s.group_by_key().reduce("s", boom_reduce),
        lambda b, s: s.group_by_key().windowed_by(WINDOWS).aggregate("s", int, boom_fold),
        lambda b, s: s.group_by_key().windowed_by(SESSIONS).aggregate("s", int, boom_fold, either),
        lambda b, s: s.group_by_key().cogroup(boom_fold).aggregate("s", int),
        lambda b, s: s.merge(b.stream("others", key=String("user"), value=Json(Order))).map_values(boom),
    ],
)
def test_a_record_of_a_topic_is_named_by_its_place(describe):
    error = failing(describe, [("orders", "ann", 3), ("orders", "ann", 7), ("orders", "ann", 0)])
    assert "failed on the record of topic 'orders', partition 0, offset 2, key user='ann': Zero" in str(error)
    assert (error.record.topic, error.record.offset, error.record.time_ms) == ("orders", 2, 2_000)


@pytest.mark.parametrize("raised", [SystemExit(1), GeneratorExit(), KeyboardInterrupt(), PanicException("no")])
def test_what_would_end_the_process_is_an_error_of_the_record_unless_a_terminal_raises_it(raised, monkeypatch):
    """As in workers, which take no notice of Ctrl-C."""

    def leaves(*arguments: object) -> int:
        raise raised

    class Leaves(Processor[str, Order, str, int]):
        def process(self, record):
            raise raised

    described = [
        lambda b, s: s.map_values(leaves),
        lambda b, s: s.peek(leaves),
        lambda b, s: s.group_by_key().aggregate("s", int, leaves),
        lambda b, s: s.process(Leaves),
    ]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for describe in described:
            text = str(failing(describe, [("orders", "ann", 3)]))
            assert f"record of topic 'orders', partition 0, offset 0, key user='ann': {type(raised).__name__}: " in text
    finally:
        signal.signal(signal.SIGINT, before)
    if isinstance(raised, KeyboardInterrupt):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without
        try:
            with pytest.raises(KeyboardInterrupt):
                failing(described[0], [("orders", "ann", 3)])
        finally:
            signal.signal(signal.SIGINT, before)


def test_where_several_topics_meet_the_place_is_that_of_the_record_and_not_its_turn():
    error = failing(
        lambda b, s: s.merge(b.stream("others", key=String("user"), value=Json(Order))).map_values(boom),
        [("orders", "ann", 3), ("others", "bob", 3), ("orders", "ann", 7), ("others", "bob", 0)],
    )
    assert "failed on the record of topic 'others', partition 0, offset 1, key user='bob': " in str(error)


@pytest.mark.parametrize(
    "describe",
    [
        lambda b, s: s.repartition("moved").map_values(boom),
        lambda b, s: s.select_key(user="user").group_by_key().aggregate("s", int, boom_fold),
    ],
)
def test_a_record_from_elsewhere_is_named_by_its_key_and_time(describe):
    error = failing(describe, [("orders", "ann", 3), ("orders", "ann", 0)])
    assert "failed on the record of key user='ann', time 1970-01-01T00:00:02Z: ZeroDivisionError: " in str(error)
    assert error.record.topic is None


def returns_text(order: Order) -> int:
    return "secret"


def returns_other(order: Order) -> Order:
    return ("secret",)


def returns_large(order: Order) -> Order:
    return Order(2**63)


def returns_list(order: Order) -> list[Order]:
    return [Order(1), Order("secret")]


def returns_parts(order: Order) -> list[list[int]]:
    return [[1, "secret"]]


def returns_naive(order: Order) -> Share:
    return Share(1, datetime(2024, 1, 1))


def returns_no_time(order: Order) -> Share:
    return Share(1, "secret")


def folds_text(key: str, order: Order, total: int) -> int:
    return 1 if order.amount else "secret"


@pytest.mark.parametrize(
    ("describe", "reason"),
    [
        (lambda s: s.map_values(returns_text), "the column 'value' is declared int, and it returned str"),
        (lambda s: s.map_values(returns_other), "it returned tuple[str], which has no 'amount'"),
        (
            lambda s: s.map_values(returns_large),
            "the column 'amount' is declared int, and it returned int beyond 64 bits",
        ),
        (
            lambda s: s.map_values(returns_naive),
            "the column 'at' is declared datetime, and it returned datetime without a time zone",
        ),
        (lambda s: s.map_values(returns_no_time), "the column 'at' is declared datetime, and it returned str"),
        (lambda s: s.flat_map_values(returns_list), "the column 'amount' is declared int, and it returned str"),
        (
            lambda s: s.flat_map_values(returns_parts),
            "the column 'value[1]' is declared int, and it returned str",
        ),
        (
            lambda s: s.group_by_key().aggregate("s", int, folds_text),
            "the column 'value' is declared int, and it returned str",
        ),
        (
            lambda s: s.group_by_key().windowed_by(SESSIONS).aggregate("s", int, folds_text, either),
            "the column 'value' is declared int, and it returned str",
        ),
    ],
)
def test_a_result_that_does_not_fit_is_described_by_types_in_one_sentence(describe, reason):
    text = str(failing(lambda b, s: describe(s), [("orders", "ann", 0)]))
    assert "topic 'orders', partition 0, offset 0, key user='ann': its result does not fit the annotation: " in text
    assert f": {reason}; correct the function" in text
    assert "secret" not in text
    assert "\n" not in text


class ForwardsText(Processor[str, Order, str, int]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_value(record.value.amount or "secret"))


NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)


class ForwardsOf(Processor[str, Order, str, Share]):
    """Forwards ``record`` when ``what`` is called."""

    what, record = "", Record("ann", 5, NINE)

    def init(self, context):
        self.context = context
        self.forwards("init")
        context.schedule(timedelta(milliseconds=1), Punctuation.STREAM_TIME, self.punctuate)

    def process(self, record):
        self.context.forward(record.with_value(Share(0.5, record.timestamp)))
        self.context.timer(record.key, record.timestamp)

    def on_timer(self, record):
        self.forwards("on_timer")

    def punctuate(self, time):
        self.forwards("punctuate")

    def close(self):
        self.forwards("close")

    def forwards(self, what):
        if what == self.what:
            self.context.forward(self.record)


@pytest.mark.parametrize(
    ("describe", "place"),
    [
        (lambda s: s.process(ForwardsText), "topic 'orders', partition 0, offset 1, key user='bob': "),
        (lambda s: s.repartition("moved").process(ForwardsText), "key user='bob', time 1970-01-01T00:00:02Z: "),
    ],
)
def test_a_record_for_which_a_processor_forwards_another_type_is_named_with_its_key(describe, place):
    text = str(failing(lambda b, s: describe(s), [("orders", "ann", 3), ("orders", "bob", 0)]))
    assert f"'ForwardsText.process' failed on the record of {place}it forwarded a value of another type" in text
    assert "secret" not in text


CALLS = ("init", "punctuate", "on_timer", "close")
WRONG = {
    "value": (Record("ann", 5, NINE), "value of another type than it declares: got int, which has no 'of'"),
    "field": (
        Record("ann", Share("half", NINE), NINE),
        "value of another type than it declares: the column 'of' is declared float, and got str",
    ),
    "text": (
        Record("\ud800", Share(0.5, NINE), NINE),
        "key of another type than it declares: 'utf-8' codec can't encode",
    ),
    "key": (
        Record(5, Share(0.5, NINE), NINE),
        "key of another type than it declares: the column 'user' is declared str, and got int",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_called_without_a_record_is_named_if_it_forwards_another_type(call, wrong):
    record, reason = WRONG[wrong]
    forwards = type("Forwards", (ForwardsOf,), {"what": call, "record": record})
    builder = StreamsBuilder()
    builder.stream("orders", key=String("user"), value=Json(Order)).process(forwards, name="p")
    with pytest.raises(UserFunctionError) as raised, TopologyTestDriver(Application("test", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", Order(1), timestamp_ms=1_000)
    assert f": function 'Forwards.{call}' failed: it forwarded a {reason}" in str(raised.value)
