"""``weir demo customers`` delivers each event once to the table and once to the topic, though it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import polars as pl
import pytest

from tests.databases import PostgresqlServer
from tests.waiting import wait_for
from weir.pipelines.examples.load_customers import EVENTS, KINDS, customer_events
from weir.state.commit.protocol import newest_commit

WEIR = [sys.executable, "-c", "from weir.pipelines.cli import main; main()"]
LIMIT_S = 240.0


def test_the_events_are_those_of_a_thousand_customers_few_of_whom_have_most():
    events = customer_events(2)
    assert events.height == EVENTS
    per_customer = events.group_by("key").len().sort("len", descending=True)
    assert per_customer.height > 900
    assert per_customer["len"].head(100).sum() > EVENTS / 2
    assert events.group_by("key").agg(pl.col("partition").n_unique())["partition"].max() == 1
    assert {json.loads(value)["kind"] for value in events["value"].head(100)} == set(KINDS)


def test_without_a_postgresql_the_demo_says_how_to_get_one(terminal, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = terminal.weir("demo customers")
    assert refused.code == 1
    assert 'pip install "weir-streams[demo]"' in refused.text
    assert "`--set sql_url=postgresql://USER@HOST/DATABASE`" in refused.text


@pytest.fixture
def postgresql():
    server = PostgresqlServer()
    with server.database("customers") as database:
        yield database
    server.close()


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.faults
def test_a_demo_that_is_killed_delivers_every_event_once(tmp_path, postgresql):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    command = [*WEIR, "demo", "customers", "--set", f"sql_url={postgresql.url}"]

    def demo(**more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environment, **more},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def committed() -> bool:
        newest = newest_commit(tmp_path / ".weir" / "warehouse", "customers")
        return newest is not None and any(task.totals.get("records_in", 0) > 20_000 for task in newest.tasks.values())

    killed = demo(WEIR_MAX_EPOCH_RECORDS="5000")
    wait_for(lambda: committed() or killed.poll() is not None, "it commits", LIMIT_S)
    assert killed.poll() is None, killed.communicate()[0]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()

    finished = demo()
    output, _ = finished.communicate(timeout=LIMIT_S)
    assert finished.returncode == 0, output
    rows = postgresql.query('SELECT customer, records, count FROM "deliveries"')
    assert all(len(row["records"]) == row["count"] <= 500 for row in rows)
    delivered = [(row["customer"], each["kind"], each["cents"]) for row in rows for each in row["records"]]
    values = ((row["key"], json.loads(row["value"])) for row in customer_events(2).iter_rows(named=True))
    assert sorted(delivered) == sorted((key, value["kind"], value["cents"]) for key, value in values)
    assert f"{EVENTS:,} events in {len(rows):,} rows of the table deliveries" in output
    assert f"{EVENTS:,} events in {len(rows):,} records of the topic deliveries" in output
