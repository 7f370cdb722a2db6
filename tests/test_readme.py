"""What the README and the docs show is true: examples run, SQL agrees with ``read_table``, named files exist."""

from __future__ import annotations

import importlib.util
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from tests.pipelines.shop import run_over
from weir import read_table
from weir.pipelines.examples import flights
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec
from weir.testing import TopologyTestDriver

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_example_of_the_readme_runs(tmp_path):
    path = tmp_path / "shop.py"
    path.write_text(blocks("README.md", "python")[0])
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


def test_the_sql_of_the_docs_gives_the_current_rows(tmp_path):
    rows = pl.DataFrame(
        [("UA", 1, 1, 0, False), ("UA", 2, 1, 3, False), ("AA", 5, 1, 1, False), ("AA", None, 2, 0, True)],
        schema=["carrier", "flights", "_epoch", "_seq", "_deleted"],
        orient="row",
    )
    spec = TableSpec(name="totals", schema=rows.schema, keys=("carrier",))
    AppendTable.create(tmp_path, spec, "app").append(1, [write_file(tmp_path, spec, rows)])
    (sql,) = blocks("docs/architecture.md", "sql")
    sql = sql.replace("delta.`<folder>`", "totals")
    found = pl.SQLContext(totals=rows).execute(sql, eager=True).drop("place")
    assert found.rows() == read_table(tmp_path / "totals").rows() == [("UA", 2, 1, 3, False)]


def test_the_code_of_the_page_about_state_runs(tmp_path, monkeypatch):
    records = [(key, b'{"dep_time": 1000, "dep_delay": 20}', 1_357_034_400_000) for key in (b"UA-EWR", b"DL-JFK")]
    run_over(flights.app, {("flights", 0): records * 4_500}, tmp_path / ".weir")
    monkeypatch.chdir(tmp_path)
    queries, unlogged, in_memory, backing, follower = blocks("docs/state.md", "python")
    names = {"__name__": "state_page"}
    exec(queries, names)
    assert names["answer"].rows.select("carrier", "flights").rows() == [("UA", 4_500)]
    exec(unlogged, names)
    views = [store for each in names["builder"].build().sub_topologies for store in each.stores]
    assert [(store.name, store.is_logged, store.is_rebuilt) for store in (*views, names["seen"].spec())] == [
        ("by_minute", False, True),
        ("recent", False, False),
        ("seen", False, False),
    ]
    exec(in_memory, names)
    (sub_topology,) = names["builder"].build().sub_topologies
    assert [store.is_in_memory for store in (*sub_topology.stores, names["seen"].spec())] == [True, True]
    exec(backing, names)
    with TopologyTestDriver(names["app"]) as driver:
        clicks, users = driver.create_input_topic("clicks"), driver.create_input_topic("names")
        clicks.pipe_key_value_list([("ann", "/"), ("bob", "/"), ("ann", "/docs")])
        users.pipe_key_value_list([("ann", "Ann"), ("bob", "Bob"), ("ann", None)])
        assert driver.get_key_value_store("clicks_of").get("ann") == {"clicks": 2}
        assert [driver.get_key_value_store("names").get(user) for user in ("ann", "bob")] == [None, "Bob"]
    exec(follower, names)
    totals = names["app"].own_stores["by_carrier"](tmp_path)
    totals.put_rows(names["answer"].rows.with_columns(_deleted=False))
    totals.commit({})
    assert totals.file.execute("select * from totals").fetchall() == [("UA", 4_500)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_headings_that_a_page_names_exist(page):
    """Links, and paths of code in backticks."""
    text = page.read_text()
    missing = []
    for name, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = page.parent / name if name else page
        if not target.exists() or (heading and heading not in headings(target)):
            missing.append(f"{name}#{heading}")
    code = re.findall(r"`((?:pipelines|state|infra|orchestration|bench|tests|docs)/[\w./-]+\.\w+)`", text)
    assert missing + [name for name in code if not (ROOT / name).exists()] == []
