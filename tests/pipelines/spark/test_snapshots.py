"""The driver and snapshots: when one is due, that a commit lists it, and how a restore uses it."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.pipelines.spark import restore_jobs
from weir.state.changelog.snapshot import SNAPSHOT_FOLDER
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import SnapshotRef
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.task_store import TaskStore
from weir.state.storage import local


class Shop(Place):
    def listed(self) -> dict[str, SnapshotRef | None]:
        """The snapshots that the commit log lists, by task."""
        tasks = newest_commit(self.warehouse, "sales").tasks
        return {task: tasks[self.name_of(task)].snapshot for task in ("0_0", "0_1")}

    def files(self) -> set[Path]:
        return set((self.warehouse / "sales" / SNAPSHOT_FOLDER).glob("*/*"))

    def listed_files(self) -> set[Path]:
        return {self.warehouse / "sales" / snapshot.path for snapshot in self.listed().values() if snapshot}

    def lose(self, task: str) -> None:
        instance = newest_commit(self.warehouse, "sales").tasks[self.name_of(task)].instance
        shutil.rmtree(self.state_of(task) / instance)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    topics = Topics({("sales", partition): sales(150, partition) for partition in (0, 1)})
    place = Shop(application(), topics, tmp_path, max_records=30, snapshot_rows=12)
    yield place
    TaskStoreCache.close_all()


@pytest.mark.slow
def test_snapshots_are_published_as_changelogs_grow_and_only_the_listed_ones_stay(shop):
    """Five shops, so five rows per epoch: a snapshot every three commits, one task after the other."""
    shop.run()
    assert len(shop.snapshots.done) == 2
    assert shop.files() == shop.listed_files()
    assert all(snapshot.rows > 5 for snapshot in shop.listed().values())
    left = newest_commit(shop.warehouse, "sales").tasks[shop.name_of("0_0")].rows_since_snapshot
    assert left == 10, "15 of the 25 rows existed when it was requested"
    shop.topics.rows["sales", 0] += sales(30, 0)
    before = shop.listed()
    shop.run()
    assert [str(done.request.task) for done in shop.snapshots.done] == ["0_0"], "growth is counted across runs"
    assert shop.listed()["0_0"] != before["0_0"]
    assert shop.listed()["0_1"] == before["0_1"]
    assert shop.files() == shop.listed_files()


@pytest.mark.slow
def test_a_lost_task_restores_from_its_snapshot_and_the_changelog_since(shop):
    shop.run()
    shop.lose("0_1")
    shop.topics.rows["sales", 1] += sales(90, 1)
    shop.run()
    (done,) = shop.restores.done
    assert done.source == f"snapshot of {done.request.commit.snapshot.state} and the changelog since"
    assert totals(shop) == expected(shop)


@pytest.mark.slow
def test_a_snapshot_becomes_the_lost_task_s_store_and_a_new_one_is_published(shop):
    shop.run()
    for _ in range(2):
        before = shop.listed()["0_1"]
        shop.lose("0_1")
        shop.topics.rows["sales", 1] += sales(30, 1)
        shop.run()
        assert shop.restores.done[0].is_snapshot_gone
        assert shop.restores.done[0].from_snapshot
        assert shop.listed()["0_1"] not in (None, before)
        assert shop.files() == shop.listed_files()
        assert totals(shop) == expected(shop)


@pytest.mark.slow
def test_a_snapshot_that_would_not_be_replaced_is_copied(shop):
    shop.run()
    before = shop.listed()["0_1"]
    shop.snapshot_rows = 0
    shop.lose("0_1")
    shop.topics.rows["sales", 1] += sales(30, 1)
    shop.run()
    assert shop.restores.done[0].from_snapshot
    assert shop.listed()["0_1"] == before
    assert shop.files() == shop.listed_files()


@pytest.mark.slow
def test_a_restore_that_dies_having_taken_the_snapshot_is_repeated_from_the_changelog(shop, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*arguments, **settings):
        raise Killed

    shop.run()
    shop.lose("0_1")
    shop.topics.rows["sales", 1] += sales(30, 1)
    with monkeypatch.context() as dying:
        dying.setattr(TaskStore, "catch_up", die)
        with pytest.raises(Killed):
            shop.run()
    TaskStoreCache.close_all()
    shop.run()
    assert [done.from_snapshot for done in shop.restores.done] == [False]
    assert totals(shop) == expected(shop)
    assert shop.files() == shop.listed_files()
    assert len(shop.files()) == 2


def test_a_restore_from_the_changelog_alone_can_be_requested(shop):
    """An error in a store is in its snapshots too."""
    shop.run()
    old = shop.listed()["0_1"]
    shop.snapshot_rows = 0
    shop.desk.ask("restore", task=shop.name_of("0_1"), source="changelog")
    shop.topics.rows["sales", 1] += sales(30, 1)
    shop.run()
    assert shop.restores.done[0].source == "changelog"
    assert shop.listed()["0_1"] is None
    assert shop.warehouse / "sales" / old.path not in shop.files()
    assert totals(shop) == expected(shop)


@pytest.mark.slow
def test_a_snapshot_that_restores_a_wrong_state_is_replaced_by_the_changelog(shop, monkeypatch):
    shop.run()
    shop.lose("0_1")
    task_rows, calls = restore_jobs.task_rows, []

    def wrong_at_first(positions, clocks):
        calls.append(positions)
        return task_rows({"sales": {1: 7}} if len(calls) == 1 else positions, clocks)

    monkeypatch.setattr(restore_jobs, "task_rows", wrong_at_first)
    shop.topics.rows["sales", 1] += sales(30, 1)
    shop.run()
    assert [done.source.split()[0] for done in shop.restores.done] == ["snapshot", "changelog"]
    assert totals(shop) == expected(shop)


@pytest.mark.slow
def test_snapshots_can_be_requested(shop):
    shop.snapshot_rows = 0
    shop.run()
    assert not shop.files()
    asked = shop.desk.ask("snapshot")
    shop.run()
    assert shop.desk.answers[asked] == ("publishing snapshots of 2 of 2 tasks", False)
    assert shop.files() == shop.listed_files()
    assert len(shop.files()) == 2


@pytest.mark.slow
def test_a_snapshot_that_fails_is_logged_and_has_no_other_effect(shop, monkeypatch, caplog):
    monkeypatch.setattr(local, "copy", lambda *arguments: (_ for _ in ()).throw(OSError(28, "no space")))
    shop.run()
    assert "no snapshot: the snapshot of task sales_0: the disk of " in caplog.text
    assert totals(shop) == expected(shop)
    assert shop.listed() == {"0_0": None, "0_1": None}


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["in the copy", "before a commit lists it", "after a commit lists it"])
def test_a_driver_that_dies_around_a_snapshot_leaves_nothing_wrong(shop, monkeypatch, moment):
    class Killed(BaseException):
        pass

    copies, copy = [], local.copy

    def die(*arguments):
        copies.append(arguments)
        checksum = copy(*arguments)
        if moment == "in the copy" and len(copies) == 3:
            raise Killed
        return checksum

    def on_step(step):
        lists = [task.snapshot != task.listed_snapshot for task in driver._coordinator.tasks.values()]
        if any(lists) and (
            (moment, step) == ("before a commit lists it", "files written")
            or (moment, step) == ("after a commit lists it", "pivot appended")
        ):
            raise Killed

    monkeypatch.setattr(local, "copy", die)
    for partition in (0, 1):
        shop.topics.rows["sales", partition] += sales(400, partition)
    driver = shop.driver(on_step)
    with pytest.raises(Killed):
        driver.run(Event(), until_caught_up=True)
    monkeypatch.undo()
    TaskStoreCache.close_all()
    if moment != "after a commit lists it":
        assert shop.files() - shop.listed_files()
    shop.lose("0_0")
    shop.run()
    assert totals(shop) == expected(shop)
    assert shop.files() == shop.listed_files()
    assert shop.restores.done[0].source.startswith("changelog" if moment == "before a commit lists it" else "snapshot")
