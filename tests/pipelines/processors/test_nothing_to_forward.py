"""No result and a null result are two things: a processor that forwards nothing sends nothing on, nor does a mapper
that returns None in place of records; None in place of a value is a null value."""

from __future__ import annotations

import pytest

from weir import Application, Int64, Processor, StreamsBuilder, String
from weir.testing import TopologyTestDriver


class Large(Processor[str, int, str, int]):
    """Forwards large numbers, and nothing for others; a null value for a null value."""

    def init(self, context):
        self.context = context

    def process(self, record):
        if record.value is None or record.value > 10:
            self.context.forward(record)


class Silent(Processor[str, int, None, None]):
    def process(self, record):
        pass


def run(build, *values):
    builder = StreamsBuilder()
    build(builder.stream("numbers", key=String("user"), value=Int64("n")))
    with TopologyTestDriver(Application("nothing", builder)) as driver:
        driver.create_input_topic("numbers").pipe_key_value_list([("ann", value) for value in values])
        return driver.create_output_table("out").read_values_to_list()


def test_a_processor_that_forwards_nothing_sends_nothing_on():
    seen = []
    found = run(
        lambda numbers: numbers.process(Large).peek(lambda key, n: seen.append(n)).to_delta("out"), 1, 20, None, 3
    )
    assert found == seen == [20, None]


def test_a_processor_may_declare_that_it_forwards_nothing():
    def build(numbers):
        numbers.process(Silent)
        numbers.to_delta("out")

    assert run(build, 1, 2) == [1, 2]


def odd(n: int | None) -> int | None:
    return n if n is not None and n % 2 else None


def pair(key: str, n: int) -> tuple[str, int | None]:
    return (key, odd(n))


def maybe_pair(key: str, n: int) -> tuple[str, int] | None:
    return None if n == 2 else (key, n)


def undeclared_pair(key: str, n: int) -> tuple[str, int]:
    return None if n == 2 else (key, n)


def maybe_pairs(key: str, n: int) -> list[tuple[str, int]] | None:
    return None if n == 2 else [(key, n)]


def maybe_values(n: int) -> list[int] | None:
    return None if n == 2 else [n]


def no_pairs(key: str, n: int) -> list[tuple[str, int]]:
    return [] if n == 2 else [(key, n)]


def no_values(n: int) -> list[int]:
    return [] if n == 2 else [n]


@pytest.mark.parametrize(
    "build", [lambda numbers: numbers.map_values(odd), lambda numbers: numbers.map(pair)], ids=["map_values", "map"]
)
def test_a_null_value_from_a_mapper_is_sent_on(build):
    """As in Kafka Streams, where ``mapValues`` and ``map`` forward null values."""
    seen = []
    found = run(lambda numbers: build(numbers).peek(lambda key, n: seen.append(n)).to_delta("out"), 1, 2, 3)
    assert found == seen == [1, None, 3]


@pytest.mark.parametrize(
    "build",
    [
        lambda numbers: numbers.map(maybe_pair),
        lambda numbers: numbers.map(undeclared_pair),
        lambda numbers: numbers.flat_map(maybe_pairs),
        lambda numbers: numbers.flat_map(no_pairs),
        lambda numbers: numbers.flat_map_values(maybe_values),
        lambda numbers: numbers.flat_map_values(no_values),
    ],
    ids=["map", "map without None in its types", "flat_map", "empty flat_map", "flat_map_values", "empty values"],
)
def test_a_mapper_that_returns_none_or_an_empty_list_sends_nothing_on(build):
    seen = []
    found = run(lambda numbers: build(numbers).peek(lambda key, n: seen.append(n)).to_delta("out"), 1, 2, 3, 2)
    assert found == seen == [1, 3]
