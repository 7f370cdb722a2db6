"""A backfill by commands joins with the rows that a global table has as it begins, and says so."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from tests.pipelines.cli.daily import HOURS, ROWS, SECOND, SWAP, THIRD, succeeded
from tests.pipelines.cli.typed import BROKERS, Terminal, opened
from tests.pipelines.spark.evolving import Click
from tests.pipelines.spark.inline import Topics
from weir import Application, Json, StreamsBuilder, String
from weir.pipelines.backfill.shadow import shadows
from weir.state.commit.tables import read_table

SAID = re.compile(
    r"the rows of global tables \(topics names\) are those of \d{4}-\d\d-\d\d \d\d:\d\d UTC, when the backfill began, "
    "not those of the records' times"
)


def named() -> Application:
    """Clicks with their users' names."""
    builder = StreamsBuilder()
    names = builder.global_table("names", key=String("user"), value=String("name"), store="names")
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    clicks.left_join(names, key="user").to_delta("named")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


def give_names(terminal: Terminal, version: str) -> None:
    """Each user gets another name, except for one who loses it."""
    terminal.topics.rows["names", 0] += [
        (b"user-%d" % number, None if number == 3 else f"{version}-{number}".encode(), 0) for number in range(4)
    ]


@pytest.fixture
def terminal(tmp_path, monkeypatch) -> Terminal:
    """Where a live run has read all clicks when users had their first names."""
    found = opened(tmp_path, monkeypatch)
    found.clusters[BROKERS] = Topics({("clicks", 0): list(ROWS), ("names", 0): []}, ids={"clicks": "c", "names": "n"})
    give_names(found, "first")
    succeeded(found.run(found.has("app", named())))
    return found


def names(terminal: Terminal) -> list[str | None]:
    """The name in each click's row, by hour."""
    rows = read_table(terminal.warehouse / "clicks" / "named").select("ms", "name").sort("ms")
    assert rows["ms"].to_list() == list(range(HOURS))
    return rows["name"].to_list()


def model(*versions: str) -> list[str | None]:
    """The names of the version of each day."""
    return [None if hour % 4 == 3 else f"{versions[hour // 24]}-{hour % 4}" for hour in range(HOURS)]


def test_days_and_everything_have_the_rows_as_they_are_when_each_begins(terminal):
    assert names(terminal) == model(*["first"] * 5)
    give_names(terminal, "second")
    made = succeeded(terminal.weir(f"backfill run clicks {SECOND}", *SWAP))
    assert SAID.search(made.text)
    assert names(terminal) == model("first", "second", "first", "first", "first")
    (swap,) = succeeded(terminal.weir("backfill run clicks --everything")).commands
    (whole,) = shadows(terminal.settings.warehouse, terminal.settings.state_dir, "clicks")
    manifest = json.loads(Path(str(whole.folder.path), "backfill.json").read_text())
    assert manifest["global_ranges"] == {"names": {"0": [0, 8]}}
    give_names(terminal, "third")
    succeeded(terminal.weir(swap, "--yes"))
    assert names(terminal) == model(*["second"] * 5)


def test_with_records_of_files_the_rows_are_those_of_the_topic(terminal, tmp_path):
    give_names(terminal, "second")
    frame = pl.DataFrame(
        [(key.decode(), *json.loads(value).values(), at) for key, value, at in ROWS],
        schema=["user", "page", "ms", "_ts"],
        orient="row",
    )
    frame.write_parquet(tmp_path / "clicks.parquet")
    made = succeeded(terminal.weir(f"backfill run clicks {THIRD} --from {tmp_path / 'clicks.parquet'}", *SWAP))
    assert SAID.search(made.text)
    assert names(terminal) == model("first", "first", "second", "first", "first")


def test_a_program_without_global_tables_says_nothing_of_them(terminal):
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=Json(Click)).to_delta("named")
    made = succeeded(terminal.weir(f"backfill run {terminal.has('without', Application('clicks', builder))} {SECOND}"))
    assert not SAID.search(made.text)
