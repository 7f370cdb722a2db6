"""The examples of docs/expectations.md are one program, and it does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weir import Application
from weir.orchestration.checks.expectations import check_name
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.expectations import ON_VIOLATION, OUTCOMES
from weir.pipelines.tasks.run_metrics import EXPECTATION
from weir.testing import TopologyTestDriver

PAGE = Path(__file__).resolve().parent.parent / "docs" / "expectations.md"
TEXT = PAGE.read_text()


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "expectations_page"}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


def test_every_record_goes_where_the_page_says(page):
    records = [("ann", 500), ("ann", -1), ("ann", 2_000_000), (None, 700), ("bob", None)]
    with TopologyTestDriver(page["shop"]) as driver:
        driver.create_input_topic("orders").pipe_key_value_list(records)
        assert driver.create_output_table("spent").read_key_values_to_list() == [
            ("ann", {"cents": 500}),
            ("ann", {"cents": 2_000_500}),
        ]
        (letter,) = driver.dead_letters
        assert letter.operator in TEXT
        assert (letter.offset, letter.reason) == (3, "the expectation 'has_customer' is violated")
        counts = {name: (each.passed, each.failed, each.dropped) for name, each in driver.expectations.items()}
        assert counts == {"below_10_000": (2, 2, 0), "positive": (2, 2, 2), "has_customer": (2, 1, 1)}


def test_a_dropped_update_of_a_table_is_as_if_it_had_not_come(page):
    with TopologyTestDriver(Application("stock", page["builder"])) as driver:
        driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", -1)])
        assert dict(driver.get_key_value_store("known_stock").all()) == {"tea": 2}
        assert dict(driver.get_key_value_store("stock").all()) == {"tea": -1}


def test_the_names_are_those_that_are_there():
    first, second = (re.findall(r"^\| `\"?(\w+)\"?`", part, re.MULTILINE) for part in TEXT.split("## Counts")[:2])
    assert tuple(first[1:]) == ON_VIOLATION
    assert tuple(second) == OUTCOMES
    assert EXPECTATION in TEXT
    assert check_name("positive") in TEXT
    assert f"Thresholds(expectation_max_share={Thresholds().expectation_max_share})" in TEXT
    assert f"{Thresholds().audited_epochs:,} epochs" in TEXT
