"""The examples of docs/topology.md are one program, and it does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weir import Application
from weir.testing import TopologyTestDriver

PAGE = Path(__file__).resolve().parent.parent / "docs" / "topology.md"


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "topology_page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


def test_payments_above_the_limit_are_held_back(page):
    with TopologyTestDriver(page["limits"]) as driver:
        limits, payments = driver.create_input_topic("limits"), driver.create_input_topic("payments")
        payments.pipe_input("ann", 500)
        limits.pipe_input("ann", 100)
        payments.pipe_key_value_list([("ann", 500), ("ann", 50), ("bob", 700), ("ann", -1)])
        assert driver.create_output_table("held_payments").read_key_values_to_list() == [("ann", 500)]
        paid = driver.create_output_table("paid").read_key_values_to_list()
        assert paid == [("ann", {"total": 500}), ("ann", {"total": 550}), ("bob", {"total": 700})]
        assert driver.get_key_value_store("limits").get("ann") == 100


def test_the_dsl_shares_stores_by_name(page):
    (sub_topology,) = page["builder"].build().sub_topologies
    assert sub_topology.inputs == ("limits", "payments")
    with TopologyTestDriver(Application("passed", page["builder"])) as driver:
        driver.create_input_topic("limits").pipe_input("ann", 100)
        driver.create_input_topic("payments").pipe_key_value_list([("bob", 7), ("ann", 50)])
        assert driver.create_output_table("passed_payments").read_key_values_to_list() == [("bob", 7), ("ann", 50)]
