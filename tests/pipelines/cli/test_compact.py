"""``weir compact``: what a dry run shows, what a run does, what it leaves alone while the application runs, and what it
removes from quarantine."""

from __future__ import annotations

import json

import polars as pl
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tests.state.quarantine_folders import DAY_S, MIB, put, quarantined_while_open
from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.spark import merging
from weir.state.changelog.merging import Merge, Merged
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
    return {report["table"]: tuple(report[name] for name in names) for report in json.loads(result.stdout)["tables"]}


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


def test_tables_that_are_append_only_keep_their_files_and_their_rows_go_once_they_are_not(place):
    folders = [place.warehouse / "sales" / name for name in (CHANGES.name, "_commits")]

    def allow(value: str) -> None:
        for folder in folders:
            table = DeltaTable(folder)
            table.alter.set_table_properties({"delta.appendOnly": value}, raise_if_not_exists=False)

    allow("true")
    for options in (["--dry-run"], []):
        said = " ".join(compact(place, *options).stderr.split())
        for name in ("_changelog/totals", "_commits")[: 1 if options else 2]:
            assert f"{name} keeps its files, since it is append-only (delta.appendOnly)" in said
            assert "set that property to false, and compact again" in said
    assert files_and_rows(place) == {"_changelog/totals": (6, 6, 12, 12), "_commits": (7, 7, 7, 7)}
    allow("false")
    assert files_and_rows(place) == {"_changelog/totals": (6, 1, 12, 2), "_commits": (7, 2, 7, 7)}
    assert "append-only" not in compact(place).stderr


def test_an_unknown_store_names_the_known_ones(place):
    result = compact(place, "--store", "nope")
    assert result.exit_code == 1
    assert "sales has no store 'nope' with a changelog; it has totals" in " ".join(result.stderr.split())


def compacted_quarantine(place: Settings, *arguments: str) -> dict[str, object]:
    result = compact(place, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["quarantine"]


@pytest.fixture
def quarantines(place):
    """Of ``sales``, one folder beyond the seven days and one within; of ``shop``, one beyond."""
    sales, shop = place.state_dir / "sales", place.state_dir / "shop"
    return {
        "old": put(sales, "old", age_s=8 * DAY_S, mib=4),
        "young": put(sales, "young", age_s=6 * DAY_S, mib=2),
        "other": put(shop, "other", age_s=8 * DAY_S),
    }


def left(quarantines) -> set[str]:
    return {name for name, folder in quarantines.items() if folder.exists()}


def test_folders_beyond_their_days_go_and_a_dry_run_shows_them(place, quarantines):
    shown = compacted_quarantine(place, "--dry-run")
    assert left(quarantines) == {"old", "young", "other"}
    [folder] = shown["removed"]
    assert folder["path"] == str(quarantines["old"])
    assert 4 * MIB <= folder["bytes"] < 4.1 * MIB, "not the 400 MiB that the file looks like"
    assert compacted_quarantine(place) == shown
    assert left(quarantines) == {"young", "other"}


def test_a_line_says_what_went_from_quarantine(place, quarantines):
    words = " ".join(compact(place, "--dry-run").stderr.split())
    assert "sales: 1 folder, 4.2 MB, would be removed from quarantine" in words
    assert "sales: 1 folder, 4.2 MB, removed from quarantine" in " ".join(compact(place).stderr.split())
    assert "sales: 0 folders, 0.0 MB, removed from quarantine" in " ".join(compact(place).stderr.split())
    assert left(quarantines) == {"young", "other"}


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("DAYS", "5.5", {"other"}),
        ("DAYS", "inf", {"old", "young", "other"}),
        ("BYTES", str(MIB), {"other"}),
        ("BYTES", str(3 * MIB), {"young", "other"}),
    ],
)
def test_variables_set_the_limits(place, quarantines, monkeypatch, variable, value, expected):
    monkeypatch.setenv(f"WEIR_QUARANTINE_MAX_{variable}", value)
    compacted_quarantine(place)
    assert left(quarantines) == expected


def test_a_compaction_of_one_store_leaves_the_quarantine_alone(place, quarantines):
    assert compacted_quarantine(place, "--store", "totals") == {"removed": [], "kept": []}
    assert "quarantine" not in compact(place, "--store", "totals").stderr
    assert left(quarantines) == {"old", "young", "other"}


def test_a_folder_in_use_is_named_and_the_tables_are_compacted_all_the_same(place, quarantines):
    with quarantined_while_open(place.state_dir / "sales", "used") as used:
        result = compact(place)
    assert result.exit_code == 0
    assert f"{used} stays in quarantine: a process has it open" in " ".join(result.stderr.split())
    assert "sales: compacted" in result.stderr
    assert used.exists()
    assert left(quarantines) == {"young", "other"}


@pytest.mark.parametrize(
    ("options", "limit", "jobs"),
    [
        ([], None, []),
        ([], "2", []),
        ([], "1", [("_changelog/totals", 2)]),
        (["--engine", "spark"], None, [("_changelog/totals", 2)]),
        (["--engine", "process"], "1", []),
        (["--engine", "spark", "--dry-run"], None, []),
    ],
)
def test_spark_merges_what_has_more_keys_than_the_setting_says_or_if_it_is_asked_to(
    place, monkeypatch, options, limit, jobs
):
    """The job itself is that of tests/pipelines/spark/test_merging.py; here its rows are merged without Spark."""
    done: list[tuple[str, int]] = []

    def merged_by_spark(session: object, merge: Merge, keys: int) -> Merged:
        done.append((merge.spec.name, keys))
        return merging.merged(merge)

    monkeypatch.setattr(merging, "merged_by_spark", merged_by_spark)
    monkeypatch.setattr(merging, "sql_session", lambda *_, **__: object())
    monkeypatch.setattr(merging, "stop_session", lambda session: None)
    if limit is not None:
        monkeypatch.setenv("WEIR_SPARK_COMPACTION_KEYS", limit)
    result = compact(place, *options)
    assert result.exit_code == 0, result.stderr
    assert done == jobs
    assert ("_changelog/totals: about 2 keys, merged by Spark" in " ".join(result.stderr.split())) is bool(jobs)
    if "--dry-run" not in options:
        table = read_table(place.warehouse / "sales" / CHANGES.name)
        assert sorted(table.select("k", "n").rows()) == [("a", 6), ("b", 6)]
