"""``weir show``: the current rows of outputs and dead letters, newest first."""

from __future__ import annotations

import json
import shutil
from datetime import date, time
from decimal import Decimal

import polars as pl
import pytest
from typer.testing import CliRunner

from weir.pipelines.cli.app import app
from weir.pipelines.cli.render import print_json, print_table
from weir.pipelines.operations.rows import as_dictionaries
from weir.pipelines.serdes.source import BadRecord
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS, dead_letter_frame
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.types import TableSpec

TOTALS = TableSpec(
    name="totals",
    keys=("shop",),
    schema=pl.Schema(
        {
            "shop": pl.String(),
            "total": pl.Int64(),
            "_ts": pl.Datetime("ms", "UTC"),
            "_epoch": pl.Int64(),
            "_seq": pl.Int64(),
            "_deleted": pl.Boolean(),
        }
    ),
)


@pytest.fixture
def shown(tmp_path):
    """Shows a table of a folder whose application ``sales`` has committed once."""
    committer = Committer(tmp_path / "warehouse", "sales", [TOTALS, DEAD_LETTERS], fingerprint="f")
    generation = committer.claim().generation
    totals = pl.DataFrame(
        [
            ("a", 1, 1_000, 1, 0, False),
            ("b", 5, 2_000, 1, 1, False),
            ("a", 3, 3_000, 1, 2, False),
            ("c", None, 4_000, 1, 3, True),
        ],
        schema=list(TOTALS.schema),
        orient="row",
    )
    bad = BadRecord(topic="sales", partition=0, offset=7, timestamp_ms=-5, reason="negative timestamp -5", value=b"{}")
    folder = tmp_path / "warehouse" / "sales"
    files = (
        write_file(folder, TOTALS, totals.cast({"_ts": pl.Datetime("ms", "UTC")})),
        write_file(folder, DEAD_LETTERS, dead_letter_frame([bad], 1)),
    )
    committer.commit(CommitRecord(kind="commit", generation=generation, epoch=1, at_ms=0, fingerprint="f", files=files))
    committer.close()
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, ["show", "sales", *arguments, "--dir", str(tmp_path)])


def test_a_table_is_shown_by_the_newest_row_of_each_key_without_deleted_keys(shown):
    assert json.loads(shown("totals", "--json").stdout) == [{"shop": "a", "total": 3}, {"shop": "b", "total": 5}]
    assert json.loads(shown("totals", "--json", "--limit", "1").stdout) == [{"shop": "a", "total": 3}]


def test_dead_letters_are_shown_with_their_reason(shown):
    (letter,) = json.loads(shown("_dead_letters", "--json").stdout)
    assert (letter["offset"], letter["value"], letter["reason"]) == (7, "{}", "negative timestamp -5")


def test_times_that_differ_within_a_second_are_told_apart(capsys):
    """Sliding windows begin and end at any millisecond."""
    times = {name: pl.Series(ms).cast(pl.Datetime("ms", "UTC")) for name, ms in (("near", [0, 5]), ("far", [5, 2_000]))}
    print_table(pl.DataFrame(times))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "1970-01-01 00:00:00.000  1970-01-01 00:00:00",
        "1970-01-01 00:00:00.005  1970-01-01 00:00:02",
    ]


def test_windows_that_end_after_the_year_9999_are_shown_and_so_are_the_other_rows(capsys):
    for unit in ("ms", "us"):
        ends = pl.Series([0, 253_402_300_800_000, None, -99_999_999_999_999]).cast(pl.Datetime("ms", "UTC"))
        frame = pl.DataFrame({"window_end": ends.cast(pl.Datetime(unit, "UTC")), "count": [1, 2, 3, 4]})
        assert as_dictionaries(frame)[1] == {"window_end": "+10000-01-01T00:00:00Z", "count": 2}
        print_json(as_dictionaries(frame))
        assert [row["window_end"] for row in json.loads(capsys.readouterr().out)] == [
            "1970-01-01T00:00:00+00:00",
            "+10000-01-01T00:00:00Z",
            None,
            "-1199-02-15T14:13:20Z",
        ]
        print_table(frame)
        assert capsys.readouterr().out.splitlines() == [
            "window_end              count",
            "1970-01-01 00:00:00         1",
            "+10000-01-01T00:00:00Z      2",
            "-                           3",
            "-1199-02-15T14:13:20Z       4",
        ]


def test_a_row_stays_on_its_line_and_commands_no_terminal(capsys):
    print_table(pl.DataFrame({"text": ["a\nb\x1b[2J", "Zoë"], "bytes": [b"\x00\t", b"\xff"], "list": [["\x9b"], []]}))
    assert capsys.readouterr().out.splitlines() == [
        "text         bytes   list",
        r'a\nb\x1b[2J  \x00\t  ["\x9b"]',
        r"Zoë          \xff    []",
    ]


def test_keys_are_told_apart_by_their_spaces(capsys):
    print_table(pl.DataFrame({"count": [1, 2, 3], "key": ["a b", "a\u00a0b", "a b\u3000"]}))
    assert capsys.readouterr().out.split("\n")[1:4] == ["    1  a b", "    2  a\u00a0b", "    3  a b\u3000"]


def test_an_unknown_table_names_the_known_ones(shown):
    result = shown("nope")
    assert result.exit_code == 1
    assert "sales has no table 'nope'; it has totals, _dead_letters" in " ".join(result.stderr.split())


@pytest.mark.parametrize("table", ["../other/totals", "{elsewhere}", "linked", "./totals", "_commits", ""])
def test_only_tables_of_the_application_are_shown(shown, tmp_path, table):
    """Neither a path nor a link leads out of its folder."""
    folder = tmp_path / "warehouse"
    elsewhere = folder / "other" / "totals"
    shutil.copytree(folder / "sales" / "totals", elsewhere)
    (folder / "sales" / "linked").symlink_to(elsewhere)
    result = shown(table.format(elsewhere=elsewhere))
    assert result.exit_code == 1
    assert "it has totals, _dead_letters" in " ".join(result.stderr.split())


def test_a_warehouse_that_is_a_link_is_shown(shown, tmp_path):
    (tmp_path / "warehouse").rename(tmp_path / "disk")
    (tmp_path / "warehouse").symlink_to(tmp_path / "disk")
    assert json.loads(shown("totals", "--json", "--limit", "1").stdout) == [{"shop": "a", "total": 3}]


def test_structured_values_are_written_as_json(capsys):
    frame = pl.DataFrame(
        {
            "place": [{"city": "Oslo", "at": time(8, 30)}],
            "prices": [[Decimal("1.50"), None]],
            "labels": [[{"key": "a", "value": date(2024, 5, 1)}]],
            "zero": [Decimal("0E-9")],
        }
    )
    print_json(as_dictionaries(frame))
    assert json.loads(capsys.readouterr().out) == [
        {
            "place": {"city": "Oslo", "at": "08:30:00"},
            "prices": ["1.50", None],
            "labels": [{"key": "a", "value": "2024-05-01"}],
            "zero": "0.000000000",
        }
    ]
    print_table(frame)
    assert capsys.readouterr().out.splitlines()[1].split("  ") == [
        '{"city": "Oslo", "at": "08:30:00"}',
        '["1.50", null]',
        '[{"key": "a", "value": "2024-05-01"}]',
        "0.000000000",
    ]
