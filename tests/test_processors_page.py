"""The examples of docs/processors.md are one program, and it does what the page says."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import weir
from weir.testing import TopologyTestDriver

PAGE = Path(__file__).resolve().parent.parent / "docs" / "processors.md"
TEXT = PAGE.read_text()
NINE, SECOND = datetime(2026, 1, 1, 9, tzinfo=UTC), timedelta(seconds=1)


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "processors_page"}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


def test_a_batch_leaves_when_it_is_large_or_its_customer_is_quiet(page):
    with TopologyTestDriver(page["batches"]) as driver:
        events, out = driver.create_input_topic("events"), driver.create_output_table("batches")
        for customer, event, seconds in [
            ("ann", "a", 0),
            ("bob", "x", 1),
            ("ann", "b", 2),
            ("ann", "c", 3),
            ("bob", "y", 9),
        ]:
            events.pipe_input(customer, event, timestamp=NINE + seconds * SECOND)
        assert out.read_key_values_to_list() == [("ann", {"events": ["a", "b", "c"]})]
        events.pipe_input("cid", "z", timestamp=NINE + 18 * SECOND)
        assert out.is_empty()
        events.pipe_input("cid", "z", timestamp=NINE + 19 * SECOND)
        assert out.read_key_values_to_list() == [("bob", {"events": ["x", "y"]})]


def test_totals_are_reported_by_the_wall_clock(page):
    with TopologyTestDriver(page["per_minute"]) as driver:
        driver.create_input_topic("events").pipe_key_value_list(
            [("ann", "a"), ("ann", "b"), ("bob", "x"), ("ann", "c")]
        )
        out = driver.create_output_table("per_minute")
        driver.advance_wall_clock_time(59 * SECOND)
        assert out.is_empty()
        driver.advance_wall_clock_time(SECOND)
        assert out.read_key_values_to_list() == [("ann", 3)]
        driver.advance_wall_clock_time(120 * SECOND)
        assert out.is_empty()


def test_a_batch_that_goes_by_the_wall_clock_leaves_ten_seconds_after_its_first_event(page):
    with TopologyTestDriver(page["prompt"]) as driver:
        events, out = driver.create_input_topic("events"), driver.create_output_table("prompt")
        events.pipe_key_value_list([("ann", "a"), ("bob", "x"), ("ann", "b"), ("ann", "c"), ("ann", "d")])
        assert out.read_key_values_to_list() == [("ann", {"events": ["a", "b", "c"]})]
        driver.advance_wall_clock_time(9 * SECOND)
        events.pipe_input("bob", "y")
        assert out.is_empty()
        driver.advance_wall_clock_time(SECOND)
        assert sorted(out.read_key_values_to_list()) == [("ann", {"events": ["d"]}), ("bob", {"events": ["x", "y"]})]


def test_batches_keep_running_totals_and_timers(page):
    with TopologyTestDriver(page["running"]) as driver:
        orders = driver.create_input_topic("orders")
        for customer, cents, seconds in [
            ("ann", 5, 0),
            ("bob", 3, 0),
            ("ann", 2, 30),
            ("bob", 1, 3600),
            ("bob", 1, 3660),
        ]:
            orders.pipe_input(customer, cents, timestamp=NINE + seconds * SECOND)
        assert driver.create_output_table("spent_so_far").read_key_values_to_list() == [
            ("ann", 5),
            ("bob", 3),
            ("ann", 7),
            ("bob", 4),
            ("bob", 5),
            ("ann", 0),
        ]


@pytest.mark.parametrize("name", ["test_what_is_left_leaves_after_ten_seconds", "test_three_events_leave_at_once"])
def test_the_tests_of_the_page_pass(page, name):
    page[name]()


def test_the_table_of_stores_names_what_is_there():
    rows = re.findall(r"^\| `(\w+Store)\((.*)\)` \| .* \| (.*) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 5
    for store, parameters, methods in rows:
        declared = getattr(weir, store).__dataclass_fields__
        assert {name.strip("= ") for name in parameters.split(",")} <= declared.keys()
        opened = getattr(weir, f"Open{store}")
        assert [name for name in re.findall(r"`(\w+)`", methods) if not hasattr(opened, name)] == []
