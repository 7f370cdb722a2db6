"""An application whose tables are compacted, and a twin with the same commits that never is."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import polars as pl

from weir.state.changelog.compaction import Compaction, TableReport
from weir.state.changelog.restore import restore_task
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.log import newest_commit
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import read_table
from weir.state.engine.task_store import TaskStore
from weir.state.types import FileEntry, IsolationLevel, StateId, StoreSpec, TableSpec

STORE = StoreSpec(name="totals", key=pl.Schema({"k": pl.String()}), value=pl.Schema({"n": pl.Int64()}))
CHANGES = changelog_spec(STORE)
FACTS = TableSpec(name="facts", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()}))
TOTALS = TableSpec(
    name="totals",
    keys=("k",),
    schema=pl.Schema(
        {"k": pl.String(), "n": pl.Int64(), "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
    ),
)
SPECS = (FACTS, TOTALS, CHANGES)
TASKS = ("0_0", "0_1")
STEPS = ("rows written", "horizon raised", "files replaced", "cleaned")
NAMES = [spec.name for spec in SPECS]


class Twins:
    """An application, and a twin that gets the same files by hard links and is never compacted."""

    def __init__(self, folder: Path, step: int = 1, at_ms: int = 0) -> None:
        self.folders, self.step, self.at_ms, self.epoch = (folder / "one", folder / "twin"), step, at_ms, 0
        self.driver, self.twin = (Committer(warehouse, "app", SPECS, fingerprint="f") for warehouse in self.folders)
        self.driver.claim()
        self.twin.claim()
        self.waiting: list[FileEntry] = []

    @property
    def app(self) -> Path:
        return self.folders[0] / "app"

    def commit(self, count: int = 1) -> None:
        """Make ``count`` commits, ``step`` epochs apart."""
        for _ in range(count):
            self.driver.commit(self.written())

    def written(self) -> CommitRecord:
        """The next commit, with its files written and nothing committed yet."""
        self.epoch += self.step
        record = commit_of(self.app, self.epoch, self.at_ms)
        self.waiting += record.files
        for entry in record.files:
            there = self.folders[1] / "app" / entry.table / entry.path
            there.parent.mkdir(parents=True, exist_ok=True)
            os.link(self.app / entry.table / entry.path, there)
        return record

    def compact(self, *, is_whole: bool = True, **options) -> dict[str, TableReport]:
        compaction = Compaction(self.folders[0], "app", is_whole=is_whole, **options)
        assert compaction.tables() == sorted(NAMES)
        return {report.table: report for report in compaction.run(compaction.tables())}

    def check(self) -> None:
        """Check that every table is the same in both, and so is a restore."""
        one, twin = self.folders
        if self.waiting:
            tasks = {task: TaskCommit(state=StateId(1, self.epoch), instance="i") for task in TASKS}
            self.twin.commit(
                CommitRecord(
                    kind="commit",
                    generation=1,
                    epoch=self.epoch,
                    at_ms=0,
                    fingerprint="f",
                    files=tuple(self.waiting),
                    tasks=tasks,
                )
            )
            self.waiting = []
        for name in NAMES:
            rows, wanted = (read_table(warehouse / "app" / name) for warehouse in (one, twin))
            order = [column for column in ("task", "k", "n", "_epoch", "_seq") if column in wanted.columns]
            unplaced = [column for column in wanted.columns if column != "segment"]
            assert rows.select(unplaced).sort(order).equals(wanted.select(unplaced).sort(order)), name
        for task in TASKS:
            states = [restored(warehouse, task) for warehouse in (one, twin)]
            assert states[0] == states[1]
            assert states[0]

    def close(self) -> None:
        self.driver.close()
        self.twin.close()


def commit_of(app: Path, epoch: int, at_ms: int = 0) -> CommitRecord:
    """Keys of each task come and go: every fifth change is a deletion."""
    changes = {
        task: pl.DataFrame(
            {
                "k": [f"{task}-{(epoch * 3 + place) % 17}" for place in range(4)],
                "n": [epoch * 10 + place for place in range(4)],
                "_ts": [epoch] * 4,
                "_epoch": [epoch] * 4,
                "_deleted": [(epoch + place) % 5 == 0 for place in range(4)],
            }
        )
        for task in TASKS
    }
    files = [
        write_file(app, CHANGES, rows, {"task": task, "segment": str(epoch // SEGMENT_EPOCHS)})
        for task, rows in changes.items()
    ]
    files += [write_file(app, TOTALS, rows.with_columns(_seq=pl.int_range(4))) for rows in changes.values()]
    files.append(write_file(app, FACTS, pl.DataFrame({"n": [epoch], "_epoch": [epoch]})))
    return CommitRecord(
        kind="commit",
        generation=1,
        epoch=epoch,
        at_ms=at_ms or time.time_ns() // 1_000_000,
        fingerprint="f",
        files=tuple(files),
        tasks={task: TaskCommit(state=StateId(1, epoch), instance="i") for task in TASKS},
    )


def compact(warehouse: Path, dies_at: int, met: Path) -> None:
    """Compact all tables, for a process of its own, which is killed at that step, or lives on if it is 0; ``met`` gets
    the names of the steps."""
    left = dies_at

    def on_step(step: str) -> None:
        nonlocal left
        left -= 1
        with met.open("a") as file:
            print(step, file=file)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    compaction = Compaction(warehouse, "app", is_whole=True, tombstone_retention_ms=0, on_step=on_step)
    list(compaction.run(compaction.tables()))


def restored(warehouse: Path, task: str) -> list[tuple[bytes, bytes]]:
    newest = newest_commit(warehouse, "app")
    assert newest is not None
    folder = warehouse / f"restored-{task}-{time.monotonic_ns()}"
    store: TaskStore = restore_task(
        warehouse / "app", folder, task, [STORE], newest.tasks[task], newest.state_id, generation=2, task_rows=[]
    )
    try:
        with store.reader(IsolationLevel.READ_COMMITTED) as reader:
            return list(reader.scan(STORE.name))
    finally:
        store.close()
