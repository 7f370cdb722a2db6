"""The examples of docs/errors.md are one program, and it does what the page says."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from weir import BadRecord, OperatorError
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.testing import TopologyTestDriver

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"
TEXT = PAGE.read_text()
ORDER = ("exception", "stacktrace", "message", "topic", "partition", "offset")


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "errors_page"}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


def test_the_record_that_fails_goes_to_the_dead_letters_and_the_sums_are_those_of_the_others(page):
    (poison,) = re.findall(r'The record `\("ann", "(.*)"\)`', TEXT)
    with TopologyTestDriver(page["shop"]) as driver:
        driver.create_input_topic("orders").pipe_key_value_list([("ann", "500"), ("ann", poison), ("ann", "700")])
        assert driver.create_output_table("spent").read_key_values_to_list() == [
            ("ann", {"cents": 500}),
            ("ann", {"cents": 1200}),
        ]
        (letter,) = driver.dead_letters
        assert (letter.stage, letter.offset, letter.key, letter.value) == ("processing", 1, b"ann", poison.encode())
        assert "conversion from `str` to `i64` failed" in letter.reason


def test_the_function_decides(page):
    with TopologyTestDriver(page["careful"]) as driver:
        orders = driver.create_input_topic("orders")
        orders.pipe_key_value_list([("ann", "x"), ("ann", ""), ("ann", "700")])
        assert (driver.counts["dead_letters"], driver.counts["failed_records"]) == (1, 1)
        assert driver.create_output_table("spent").read_key_values_to_list() == [("ann", {"cents": 700})]
    page["careful"].on_processing_error = "fail"
    with TopologyTestDriver(page["careful"]) as driver, pytest.raises(OperatorError, match="KSTREAM-MAPVALUES"):
        driver.create_input_topic("orders").pipe_input("ann", "x")


def test_the_record_is_tried_again(page):
    retry = page["patient"].on_processing_error
    assert [retry.wait_ms(tried) // 1000 for tried in range(1, retry.attempts)] == [2, 4, 8, 16, 32]
    with TopologyTestDriver(page["patient"]) as driver:
        driver.create_input_topic("orders").pipe_key_value_list([("ann", "x"), ("ann", "700")])
        assert (driver.counts["dead_letters"], driver.counts["retries"]) == (1, 5)
        assert driver.create_output_table("spent").read_key_values_to_list() == [("ann", {"cents": 700})]


def test_the_letter_goes_to_the_topic_with_headers_that_say_what_happened(page):
    """By KIP-1034, but for the last."""
    with TopologyTestDriver(page["announced"]) as driver:
        orders = driver.create_input_topic("orders")
        orders.pipe_input("ann", b"\xff", timestamp=datetime(2024, 1, 1, tzinfo=UTC))
        (record,) = driver.create_output_topic("shop-dead-letters").read_records()
    assert (record.key, record.value, record.timestamp) == (b"ann", b"\xff", datetime(2024, 1, 1, tzinfo=UTC))
    headers = {name: value.decode() for name, value in record.headers}
    named = re.findall(r"`(?:__streams\.errors)?(\.\w+)`", TEXT[TEXT.index("# A topic of dead letters") :])
    assert [*headers] == [*(f"__streams.errors.{name}" for name in ORDER), "__weir.dead_letter"]
    assert set(named) == {f".{name}" for name in ORDER}
    assert (headers["__streams.errors.topic"], headers["__streams.errors.offset"]) == ("orders", "0")
    assert "utf-8" in headers["__streams.errors.message"]


def test_the_columns_and_fields_are_those_that_are_there():
    (listed,) = re.findall(r"one row per record: (.*?)\. Rows", TEXT, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == DEAD_LETTERS.schema.keys() - {"_epoch"}
    (listed,) = re.findall(r"gets a `BadRecord`, with (.*?):\n", TEXT, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == BadRecord.__dataclass_fields__.keys()
