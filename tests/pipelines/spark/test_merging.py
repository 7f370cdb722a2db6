"""Compaction by Spark jobs: tables equal dictionaries of what was written, beside commits and wherever it ends."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import psutil
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tests.waiting import wait_for
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.spark import merging
from weir.pipelines.spark.merging import SparkMergeError, SparkMerging, merged_by_spark
from weir.state.changelog.compaction import Compaction, TableReport
from weir.state.changelog.merging import Merge, Merged, key_count
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.evolution import TOMBSTONE_HORIZON
from weir.state.commit.files import write_file, write_files
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions, read_rows
from weir.state.types import FileEntry, StoreSpec, TableSpec

pytestmark = pytest.mark.spark
TIME = pl.Datetime("ms", "UTC")
STORE = StoreSpec(
    name="totals",
    key=pl.Schema({"k": pl.String(), "window_start": TIME}),
    value=pl.Schema({"n": pl.Int32(), "price": pl.Decimal(12, 2), "tags": pl.List(pl.Struct({"t": pl.String()}))}),
)
CHANGES = changelog_spec(STORE)
OF_COMMITS = {"_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
TOTALS = TableSpec(
    name="by.day",
    keys=("k",),
    schema=pl.Schema({"k": pl.String(), "day": pl.String(), "n": pl.Int64(), **OF_COMMITS}),
    partition_by=("day",),
    has_partition_columns=True,
)
FACTS = TableSpec(name="facts", schema=pl.Schema({"n": pl.Int64(), **OF_COMMITS}))
SPECS = (FACTS, TOTALS, CHANGES)
NAMES = [spec.name for spec in SPECS]
TASKS = ("0_0", "0_1", None)
"""The last stands for files of another writer, whose partition has no task."""
STEPS = ("rows written", "horizon raised", "files replaced", "cleaned")


class Model:
    """Random commits of ``app``, and what its tables say by dictionaries: the newest row of each key, its epoch, and
    whether it is a deletion."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse, self.random, self.epoch = warehouse, random.Random(3), 0
        self.driver = Committer(warehouse, "app", SPECS, fingerprint="f")
        self.driver.claim()
        self.facts: Counter[int] = Counter()
        self.totals: dict[object, tuple] = {}
        self.changes: dict[object, tuple] = {}

    @property
    def app(self) -> Path:
        return self.warehouse / "app"

    def commit(self, count: int = 1, *, at_ms: int = 1000, step: int = 1) -> None:
        for _ in range(count):
            self.epoch += step
            files = [self._facts(), *self._totals(), *map(self._changes, TASKS)]
            self.driver.commit(
                CommitRecord(
                    kind="commit", generation=1, epoch=self.epoch, at_ms=at_ms, fingerprint="f", files=tuple(files)
                )
            )

    def _rows(self, columns: dict[str, list], spec: TableSpec) -> pl.DataFrame:
        count = len(next(iter(columns.values())))
        gone = [self.random.random() < 0.25 for _ in range(count)]
        rows = pl.DataFrame(columns, schema_overrides={name: spec.schema[name] for name in columns})
        return rows.with_columns(
            _epoch=pl.lit(self.epoch, pl.Int64()), _seq=pl.int_range(count), _deleted=pl.Series(gone, dtype=pl.Boolean)
        )

    def _facts(self) -> FileEntry:
        numbers = [self.random.randrange(5) for _ in range(3)]
        self.facts.update(numbers)
        return write_file(self.app, FACTS, self._rows({"n": numbers}, FACTS))

    def _totals(self) -> list[FileEntry]:
        """A key moves between days, and some have none."""
        keys = [self.random.choice(["a", "b", "c", "ä", "", None]) for _ in range(6)]
        days = [self.random.choice(["mon", "tue", None]) for _ in keys]
        rows = self._rows({"k": keys, "day": days, "n": [self.random.randrange(99) for _ in keys]}, TOTALS)
        self.totals |= {row[0]: row for row in rows.select(TOTALS.schema.names()).iter_rows()}
        return write_files(self.app, TOTALS, rows)

    def _changes(self, task: str | None) -> FileEntry:
        places = self.random.sample(range(24), 8)
        columns = {
            "k": [None if place % 6 == 5 else f"{task}-{place % 6}" for place in places],
            "window_start": [place // 6 * 1000 for place in places],
            "n": [self.random.randrange(99) for _ in places],
            "price": [None if place == 3 else f"{place}.25" for place in places],
            "tags": [[{"t": "x"}] * (place % 3) for place in places],
        }
        columns["price"] = pl.Series(columns["price"]).cast(pl.Decimal(12, 2)).to_list()
        rows = self._rows(columns, CHANGES).drop("_seq").with_columns(_ts=pl.lit(self.epoch).cast(TIME))
        for row in rows.select("k", "window_start", "n", "price", "tags", "_ts", "_epoch", "_deleted").iter_rows():
            self.changes[task, *row[:2]] = row
        return write_file(self.app, CHANGES, rows, {"task": task, "segment": str(self.epoch // SEGMENT_EPOCHS)})

    def compact(self, session, *, is_whole: bool = True, most: int = 99, **options) -> dict[str, TableReport]:
        """Compact, with at most so many merges by Spark."""
        by_job = iter(range(most))

        def merged(merge: Merge) -> Merged:
            is_by_job = merge.spec.keys and next(by_job, None) is not None
            return by_spark(session, merge) if is_by_job else merging.merged(merge)

        compaction = Compaction(self.warehouse, "app", is_whole=is_whole, merge=merged, **options)
        return {report.table: report for report in compaction.run(NAMES)}

    def check(self, *, forgets: bool = False) -> None:
        """Check what counts in each table; with ``forgets``, old deletions may be missing."""
        assert Counter(read_rows(self.app / FACTS.name)["n"]) == self.facts
        totals = newest(read_rows(self.app / TOTALS.name).select(TOTALS.schema.names()).rows(), lambda row: row[0])
        assert totals == expected(self.totals, totals, forgets=forgets)
        columns = ["k", "window_start", "n", "price", "tags", "_ts", "_epoch", "_deleted"]
        rows = read_rows(self.app / CHANGES.name).select("task", *columns).rows()
        changes = newest(rows, lambda row: (row[0], row[1], row[2]))
        changes = {key: row[1:] for key, row in changes.items()}
        assert changes == expected(self.changes, changes, forgets=forgets)


def newest(rows: list[tuple], key: Callable[[tuple], object]) -> dict[object, tuple]:
    """By key, the row with the greatest epoch, and of one epoch that with the greatest place."""
    found: dict[object, tuple] = {}
    for row in sorted(rows, key=lambda row: tuple(value for value in row[-3:-1] if isinstance(value, int))):
        found[key(row)] = row
    return found


def expected(model: dict[object, tuple], found: dict[object, tuple], *, forgets: bool) -> dict[object, tuple]:
    return {key: row for key, row in model.items() if not (forgets and row[-1] and key not in found)}


def by_spark(session, merge: Merge) -> Merged:
    return merging.merged(merge) if not merge.spec.keys else merged_by_spark(session, merge, key_count(merge))


@pytest.fixture
def model(tmp_path) -> Iterator[Model]:
    model = Model(tmp_path / "warehouse")
    yield model
    model.driver.close()


def test_what_counts_stays_and_each_merge_leaves_the_files_that_one_process_leaves(model, session):
    model.commit(12, at_ms=2**41)
    reports = model.compact(session)
    model.check()
    days = {row[1] for row in model.totals.values()}
    assert {name: reports[name].files_after for name in NAMES} == {
        "facts": 1,
        "by.day": len(days),
        "_changelog/totals": len(TASKS),
    }
    assert set(file_actions(DeltaTable(model.app / TOTALS.name))["partition.day"]) == days
    assert reports["_changelog/totals"].rows_after == len(model.changes)
    files = file_actions(DeltaTable(model.app / CHANGES.name))
    assert all("merged-" in path for path in files["path"])
    for name in ("min._epoch", "max._epoch", "min.k", "max.window_start", "num_records"):
        assert files[name].null_count() == 0
    again = model.compact(session)
    assert all(again[name].files_after == again[name].files_before for name in NAMES), "nothing is new"
    model.commit(2)
    model.compact(session)
    model.check(forgets=True)


def test_rows_go_to_several_tasks_and_each_key_to_one(model, session, monkeypatch):
    monkeypatch.setattr(merging, "KEYS_A_TASK", 4)
    monkeypatch.setattr(merging, "BATCH_ROWS", 5)
    model.commit(8, at_ms=2**41)
    reports = model.compact(session)
    model.check()
    assert reports["_changelog/totals"].files_after > 4
    assert reports["_changelog/totals"].rows_after == len(model.changes)


def test_while_the_application_runs_the_open_segment_stays(model, session):
    model.commit(6, step=SEGMENT_EPOCHS // 2, at_ms=2**41)  # segments 0 to 3, the last one open
    model.compact(session, is_whole=False)
    model.check()
    assert sorted(file_actions(DeltaTable(model.app / CHANGES.name))["partition.segment"]) == [2, 2, 2, 3, 3, 3]


def test_old_deletions_are_dropped_and_the_table_says_so_first(model, session):
    model.commit(12)
    dead = {row[-2] for row in model.changes.values() if row[-1]}
    model.compact(session)
    model.check(forgets=True)
    assert not read_rows(model.app / CHANGES.name)["_deleted"].any()
    horizon = DeltaTable(model.app / CHANGES.name).metadata().configuration[TOMBSTONE_HORIZON]
    assert int(horizon) == max(dead)


def test_a_compaction_that_ends_at_each_step_leaves_every_table_right(model, session):
    model.commit(8)
    met, left = set[str](), 0

    def end(step: str) -> None:
        nonlocal left
        left -= 1
        met.add(step)
        if left == 0:
            raise KeyboardInterrupt

    for ends_at in range(1, 20):
        left = ends_at
        try:
            model.compact(session, most=1, tombstone_retention_ms=0, on_step=end)
        except KeyboardInterrupt:
            model.check(forgets=True)
            model.commit()
        else:
            break
    assert met == set(STEPS)
    model.check(forgets=True)


def test_rows_that_are_committed_while_spark_merges_stay_and_are_merged_next(model, session):
    model.commit(6, at_ms=2**41)

    def beside(merge: Merge) -> Merged:
        done = by_spark(session, merge)
        model.commit(at_ms=2**41)
        return done

    compaction = Compaction(model.warehouse, "app", is_whole=False, merge=beside)
    list(compaction.run(NAMES))
    model.check()
    model.compact(session)
    model.check()


def test_of_two_compactions_that_chose_the_same_files_one_counts(model, session):
    model.commit(6, at_ms=2**41)

    def overtaken(merge: Merge) -> Merged:
        done = by_spark(session, merge)
        list(Compaction(model.warehouse, "app", is_whole=True).run([merge.spec.name]))  # by the process
        return done

    list(Compaction(model.warehouse, "app", is_whole=True, merge=overtaken).run(NAMES))
    model.check()


def test_other_rows_than_those_of_the_chosen_files_replace_nothing(model, session):
    model.commit(3)
    (merge,) = merges_of(model, TOTALS.name)
    fewer = replace(merge, files=merge.files.head(1))
    with pytest.raises(SparkMergeError, match=r"it read .* rows, and the files that were chosen have"):
        merged_by_spark(session, fewer, 5)


def merges_of(model: Model, name: str) -> list[Merge]:
    """What a compaction of the table would merge."""
    found: list[Merge] = []

    def noted(merge: Merge) -> Merged:
        found.append(merge)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Compaction(model.warehouse, "app", is_whole=True, merge=noted).run([name]))
    return found


def test_what_has_more_keys_than_the_limit_is_merged_by_spark(model, session, monkeypatch):
    """By its keys and not its rows; facts are packed in the process in any case."""
    monkeypatch.setattr(merging, "sql_session", lambda *_, **__: session)
    monkeypatch.setattr(merging, "stop_session", lambda session: None)
    model.commit(12, at_ms=2**41)
    asked: list[tuple[str, int]] = []
    for limit in (24, 23):
        with SparkMerging(
            Settings.load(model.warehouse), lambda keys, limit=limit: keys > limit, lambda *job: asked.append(job)
        ) as merge:
            list(Compaction(model.warehouse, "app", is_whole=True, merge=merge).run(NAMES))
        model.check()
        model.commit(at_ms=2**41)
        if limit == 24:
            assert asked == []
    assert asked == [(CHANGES.name, 24)] * len(TASKS)


def test_without_a_spark_that_starts_the_process_merges(model, tmp_path):
    """Java refuses to start with so little memory, in a process of its own: this one has a session."""
    model.commit(4, at_ms=2**41)
    (tmp_path / "weir.toml").write_text('[spark]\n"driver.memory" = "1m"\n')
    code = "from weir.pipelines.cli import main; main()"
    command = [sys.executable, "-c", code, "compact", "app", "--engine", "spark", "--dir", str(tmp_path)]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = " ".join(failed.stderr.split())
    assert failed.returncode == 1, said
    refused = r"Spark could not merge (by.day|_changelog/totals) \(its Java process did not start: .*heap.*\), and not"
    assert re.search(refused, said), said
    assert "`weir compact app --engine process" in said
    model.check()
    done = CliRunner().invoke(app, ["compact", "app", "--engine", "process", "--dir", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    model.check()
    assert file_actions(DeltaTable(model.app / CHANGES.name)).height == len(TASKS)


CHILD = """
import sys
from pathlib import Path
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.spark import merging
from weir.state.changelog.compaction import Compaction
settings = Settings.load(sys.argv[1])
held = merging.SparkMerging(settings, lambda keys: True, lambda table, keys: print("job", flush=True))
with held as merge:
    list(Compaction(settings.warehouse, "app", is_whole=True, merge=merge).run(["_changelog/totals"]))
"""


@pytest.mark.faults
def test_killed_while_spark_works_nothing_is_left_running_and_the_table_is_right(model, tmp_path, session):
    model.commit(8)
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], text=True, stdout=subprocess.PIPE, cwd=root
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "job\n"
        wait_for(lambda: psutil.Process(child.pid).children(recursive=True), "Java has started", every_s=0.01)
        started = psutil.Process(child.pid).children(recursive=True)
        os.kill(child.pid, signal.SIGKILL)
    wait_for(lambda: not any(process.is_running() for process in started), "what it started has ended")
    model.check()
    model.compact(session)
    model.check(forgets=True)
