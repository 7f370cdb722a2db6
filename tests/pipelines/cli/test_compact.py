"""``weir compact``: what a dry run shows, what a run does, and what it leaves alone while the application runs."""

from __future__ import annotations

import json

import polars as pl
import pytest
from typer.testing import CliRunner

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.state.changelog.rows import changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import read_table
from weir.state.types import StoreSpec

CHANGES = changelog_spec(
    StoreSpec(name="totals", key=pl.Schema({"k": pl.String()}), value=pl.Schema({"n": pl.Int64()}))
)


@pytest.fixture
def place(tmp_path) -> Settings:
    """A folder where ``sales`` has made six commits to a changelog."""
    settings = Settings.load(tmp_path)
    driver = Committer(settings.warehouse, "sales", [CHANGES], fingerprint="f")
    driver.claim()
    for epoch in range(1, 7):
        rows = pl.DataFrame({"k": ["a", "b"], "n": epoch, "_ts": epoch, "_epoch": epoch, "_deleted": False})
        entry = write_file(settings.warehouse / "sales", CHANGES, rows, {"task": "0_0", "segment": "0"})
        driver.commit(CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=(entry,)))
    driver.close()
    return settings


def compact(place: Settings, *arguments: str):
    return CliRunner().invoke(app, ["compact", "sales", *arguments, "--dir", str(place.dir)])


def files_and_rows(place: Settings, *arguments: str) -> dict[str, tuple[int, ...]]:
    result = compact(place, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    names = ("files_before", "files_after", "rows_before", "rows_after")
    return {report["table"]: tuple(report[name] for name in names) for report in json.loads(result.stdout)}


def test_a_dry_run_shows_what_a_run_then_does(place):
    assert files_and_rows(place, "--dry-run") == {"_changelog/totals": (6, 1, 12, 12)}
    assert files_and_rows(place) == {"_changelog/totals": (6, 1, 12, 2), "_commits": (7, 2, 7, 7)}
    table = read_table(place.warehouse / "sales" / CHANGES.name)
    assert sorted(table.select("k", "n").rows()) == [("a", 6), ("b", 6)]


def test_the_summary_has_one_line_per_table(place):
    result = compact(place, "--store", "totals")
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if line.startswith("_changelog/totals"))
    assert line.split()[1:5] == ["6", "1", "12", "2"]
    assert "sales: compacted" in result.stderr


def test_the_open_segment_of_a_running_application_stays(place):
    database = ControlDatabase(place.control_database_url)
    database.acquire_lease("sales", owner="test", pid=1, host="elsewhere", ttl_s=600)
    assert files_and_rows(place)["_changelog/totals"] == (6, 6, 12, 12)
    assert "running, so the newest epochs of its changelogs stay" in " ".join(compact(place).stderr.split())


def test_an_unknown_store_names_the_known_ones(place):
    result = compact(place, "--store", "nope")
    assert result.exit_code == 1
    assert "sales has no store 'nope' with a changelog; it has totals" in " ".join(result.stderr.split())
