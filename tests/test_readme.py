"""What the README and the docs show holds: the example runs, SQL agrees with ``read_table``, named files are there."""

from __future__ import annotations

import importlib.util
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from weir import read_table
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec
from weir.testing import TopologyTestDriver

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def block(page: str, language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1]


def test_the_example_of_the_readme_runs(tmp_path):
    path = tmp_path / "shop.py"
    path.write_text(block("README.md", "python"))
    spec = importlib.util.spec_from_file_location("shop", path)
    shop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shop)
    hour = datetime(2026, 1, 1, 10, tzinfo=UTC)
    with TopologyTestDriver(shop.app) as driver:
        orders = driver.create_input_topic("orders")
        orders.pipe_input("ann", shop.Order(5, "NL"), timestamp=hour)
        orders.pipe_input("ann", shop.Order(7, None), timestamp=hour + timedelta(minutes=59))
        orders.pipe_input("bob", shop.Order(1, "NL"), timestamp=hour + timedelta(minutes=70))
        assert driver.create_output_table("hourly_orders").read_rows() == [
            dict(customer="ann", window_start=hour, window_end=hour + timedelta(hours=1), orders=2, total=12, biggest=7)
        ]
        assert driver.create_output_table("country_totals").read_rows()[-1] == dict(country="NL", orders=2, total=6)


def test_the_sql_of_the_docs_gives_the_rows_that_stand(tmp_path):
    rows = pl.DataFrame(
        [("UA", 1, 1, 0, False), ("UA", 2, 1, 3, False), ("AA", 5, 1, 1, False), ("AA", None, 2, 0, True)],
        schema=["carrier", "flights", "_epoch", "_seq", "_deleted"],
        orient="row",
    )
    spec = TableSpec(name="totals", schema=rows.schema, keys=("carrier",))
    AppendTable.create(tmp_path, spec, "app").append(1, [write_file(tmp_path, spec, rows)])
    sql = block("docs/architecture.md", "sql").replace("delta.`<folder>`", "totals")
    found = pl.SQLContext(totals=rows).execute(sql, eager=True).drop("place")
    assert found.rows() == read_table(tmp_path / "totals").rows() == [("UA", 2, 1, 3, False)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    """Links, and paths of code in backticks."""
    text = page.read_text()
    named = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    missing = [name for name in named if not (page.parent / name).exists()]
    code = re.findall(r"`((?:pipelines|state|infra|orchestration|bench|tests|docs)/[\w./-]+\.\w+)`", text)
    assert missing + [name for name in code if not (ROOT / name).exists()] == []
