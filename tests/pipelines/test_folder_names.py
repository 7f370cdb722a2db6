"""An application in a folder whose path has characters that URLs escape is like one in any other."""

import json
from datetime import timedelta

import polars as pl
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Int64, StreamsBuilder, String
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations.registry import register
from weir.state.commit.tables import count_rows, read_rows, read_table, scan_table


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "my tables, 100% für Äpfel #1"
    made.mkdir()
    return made


def test_tables_are_read_with_all_their_columns_and_partitions(folder):
    first = pl.DataFrame({"k": ["x y", "z%q/ü", None], "n": [1, 2, 3]})
    second = pl.DataFrame({"k": ["x y"], "n": [4], "note": ["later"]})
    first.write_delta(folder / "t", delta_write_options={"partition_by": ["k"]})
    second.write_delta(folder / "t", mode="append", delta_write_options={"schema_mode": "merge", "partition_by": ["k"]})
    given = pl.concat([first, second], how="diagonal").sort("n")
    assert read_rows(folder / "t").sort("n").select("k", "n", "note").equals(given)
    assert read_rows(folder / "t", 0).sort("n").select("k", "n").equals(first)
    of_one = scan_table(DeltaTable(folder / "t")).filter(pl.col("k") == "z%q/ü").select("n").collect()
    assert of_one.rows() == [(2,)]
    first.clear().write_delta(folder / "empty")
    assert read_rows(folder / "empty").equals(first.clear())


def test_a_program_runs_there_restores_and_is_looked_at_by_commands(folder, monkeypatch):
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Int64("cents"))
    orders.to_delta("all", partition_by="user")
    orders.group_by_key().agg("spent", orders=Count()).to_delta("spent")
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=1))
    rows = [(b"user %d" % (number % 3), number.to_bytes(8, "big"), number) for number in range(60)]
    place = Place(application, Topics({("orders", 0): rows[:30]}), folder / ".weir", max_records=7)
    place.run()
    place.state_folder.rename(folder / "lost")
    place.topics.rows["orders", 0] = rows
    place.run()
    shop = place.warehouse / "shop"
    assert sorted(read_rows(shop / "all")["cents"]) == list(range(60))
    assert sorted(read_table(shop / "spent").select("user", "orders").rows()) == [(f"user {n}", 20) for n in range(3)]
    assert count_rows(shop / "spent", read_at_most=1_000) == 3

    place.state_folder.rename(folder / "kept")
    place.state_folder.mkdir()
    (folder / "kept").rename(place.state_folder / "shop")  # where commands look for it
    monkeypatch.chdir(folder)
    (folder / "shop.py").write_text(
        "from weir import *\nbuilder = StreamsBuilder()\n"
        'orders = builder.stream("orders", key=String("user"), value=Int64("cents"))\n'
        'orders.to_delta("all", partition_by="user")\n'
        'orders.group_by_key().agg("spent", orders=Count()).to_delta("spent")\napp = Application("shop", builder)\n'
    )
    monkeypatch.syspath_prepend(str(folder))
    register(Settings(dir=folder / ".weir"), "shop", "shop:app")

    def weir(*arguments):
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = json.loads(weir("show", "shop", "spent", "--json"))
    assert sorted((row["user"], row["orders"]) for row in shown) == [(f"user {n}", 20) for n in range(3)]
    assert "user 1" in weir("show", "shop", "all", "--limit", "60")
    weir("verify", "shop")
    weir("compact", "shop")
    assert sorted(read_rows(shop / "all")["cents"]) == list(range(60))
    weir("verify", "shop")
