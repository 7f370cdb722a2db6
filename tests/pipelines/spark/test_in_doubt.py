"""A task whose store a check has found to differ (PROTOCOL 41): it processes nothing until it is restored, the others
go on, and nothing that it has counted on from the wrong row is committed.

Everything is compared with sums that are made of the topics alone. ``tests/integration/test_in_doubt.py`` does it to
real workers.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from threading import Event

import polars as pl
import pytest

from tests.pipelines.spark.damage import flip_a_bit
from tests.pipelines.spark.inline import InlineRestores, Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.infra.control import ControlDatabase, this_host
from weir.infra.settings import Settings
from weir.pipelines.operations import verify as verify_module
from weir.pipelines.operations.doubts import InDoubtError, doubts
from weir.pipelines.operations.verify import verify_application
from weir.pipelines.spark import driver as driver_module
from weir.pipelines.spark import restores as restores_module
from weir.pipelines.spark.control import ControlPanel
from weir.pipelines.spark.driver import Driver
from weir.pipelines.spark.errors import OffsetsLostError
from weir.pipelines.spark.restore_jobs import _failed, restore
from weir.state.changelog.verify import StateDifferenceError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.doubts import doubt_of
from weir.state.engine.instances import instance_folder

VICTIM, OTHER, SHOP = "0_1", "0_0", "shop-3"
"""A task, the other one, and a key of the first."""


class Shop(Place):
    """Two tasks of sales, with their state where the settings of a folder say."""

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "sales"

    @property
    def place(self) -> Settings:
        return Settings(dir=self.folder)

    @property
    def instance(self) -> Path:
        """The victim's, as the newest commit names it."""
        committed = newest_commit(self.warehouse, "sales").tasks[self.name_of(VICTIM)]
        return instance_folder(self.state_of(VICTIM), committed.instance)

    def damage(self) -> None:
        flip_a_bit(self.instance, SHOP)

    def verify(self) -> list[int]:
        """Rows by task, all matching."""
        return [found.rows for found in verify_application(self.place, self.application)]

    def find(self) -> StateDifferenceError:
        """The difference, which is kept from now on."""
        with pytest.raises(StateDifferenceError, match=f"key shop={SHOP}") as caught:
            self.verify()
        return caught.value

    def sell(self, count: int = 60) -> None:
        """More of both partitions, of every shop."""
        for partition in (0, 1):
            self.topics.rows["sales", partition] += sales(count, partition)

    def run_to_the_end(self) -> list[str]:
        """One generation after another, as ``runner`` has them; why each ended."""
        reasons = []
        while not reasons or reasons[-1] == "rolled back":
            reasons.append(self.run().reason)
        return reasons

    def logged(self) -> set[tuple[str, int, int]]:
        """Every row that the changelog ever had: shop, total, sales."""
        rows = read_table(self.warehouse / "sales" / "_changelog" / "sums").filter(~pl.col("_deleted"))
        return set(rows.select("shop", "total", "sales").iter_rows())

    def sums(self) -> set[tuple[str, int, int]]:
        """What the sums of each shop have been after each record."""
        found, state = set(), defaultdict(lambda: (0, 0))
        for rows in self.topics.rows.values():
            for key, value, _ in rows:
                total, count = state[key]
                state[key] = total + json.loads(value)["amount"], count + 1
                found.add((key.decode(), *state[key]))
        return found


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_module, "REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(driver_module, "REPORT_SHARE", 1_000.0)
    monkeypatch.setattr(restores_module, "LOOK_S", 0.0)
    monkeypatch.setattr(verify_module, "LOOK_AGAIN_S", 0.0)
    topics = Topics({("sales", partition): sales(40, partition) for partition in (0, 1)})
    place = Shop(application(), topics, tmp_path, max_records=10)
    place.run()
    yield place
    TaskStoreCache.close_all()


def assert_restored(shop: Shop) -> None:
    """As if nothing had been wrong, and nobody in doubt."""
    assert totals(shop) == expected(shop)
    assert shop.logged() <= shop.sums(), "the changelog never had a wrong value"
    assert doubts(shop.place, "sales") == []
    assert list(shop.state_folder.glob("*/*in-doubt*")) == []
    assert shop.verify() == [5, 5]


def after_epoch(driver: Driver, number: int, act) -> None:
    """Let something happen after the driver's epoch of that number."""
    run_epoch, done = driver._coordinator.run_epoch, []

    def run(*arguments, **others):
        result = run_epoch(*arguments, **others)
        done.append(1)
        if len(done) == number:
            act()
        return result

    driver._coordinator.run_epoch = run


def test_a_task_in_doubt_at_a_start_is_restored_before_it_processes_anything(shop):
    shop.damage()
    found = shop.find()
    shop.sell()
    assert shop.run_to_the_end() == ["caught_up"]
    (done,) = shop.restores.done
    assert (str(done.request.task), str(found) in done.request.reason) == (VICTIM, True)
    assert str(found) in (shop.state_of(VICTIM) / "quarantine" / "first" / "reason.txt").read_text()
    assert_restored(shop)


def test_what_was_counted_on_from_the_wrong_row_is_not_committed_and_the_next_generation_restores_the_task(shop):
    """It has accepted epochs, which a commit would make part of the changelog."""
    shop.application = application(commit_interval=timedelta(hours=1))
    shop.sell()
    shop.damage()
    driver = shop.driver()
    after_epoch(driver, 3, shop.find)
    before = newest_commit(shop.warehouse, "sales")
    assert driver.run(Event(), until_caught_up=True).reason == "rolled back"
    assert newest_commit(shop.warehouse, "sales").tasks == before.tasks
    assert shop.run_to_the_end() == ["caught_up"]
    assert_restored(shop)


def test_a_commit_that_is_under_way_when_the_difference_is_found_is_refused(shop):
    shop.application = application(commit_interval=timedelta(hours=1))
    shop.sell()
    shop.damage()
    found = []
    driver = shop.driver()
    confirm = driver._topics.confirm

    def confirm_and_find(*given):
        confirm(*given)
        if not found:
            found.append(shop.find())

    driver._topics.confirm = confirm_and_find
    assert driver.run(Event(), until_caught_up=True).reason == "rolled back"
    assert found
    assert shop.run_to_the_end() == ["caught_up"]
    assert_restored(shop)


def test_a_run_that_ends_for_lost_records_says_so_and_commits_nothing_of_a_task_in_doubt(shop):
    """It would commit what it has read before that."""
    shop.application = application(commit_interval=timedelta(hours=1))
    shop.sell()
    shop.damage()
    driver = shop.driver()
    run_epoch, begun = driver._coordinator.run_epoch, []

    def run(*arguments, **others):
        begun.append(1)
        if len(begun) == 3:
            shop.find()
            shop.topics.oldest["sales", 0] = 90
        return run_epoch(*arguments, **others)

    driver._coordinator.run_epoch = run
    before = newest_commit(shop.warehouse, "sales")
    with pytest.raises(OffsetsLostError, match="partition 0"):
        driver.run(Event(), until_caught_up=True)
    assert newest_commit(shop.warehouse, "sales").tasks == before.tasks
    shop.topics.oldest.clear()
    assert shop.run_to_the_end() == ["caught_up"]
    assert_restored(shop)


def test_a_task_that_has_nothing_uncommitted_is_restored_while_the_other_goes_on(shop, monkeypatch):
    stop, statuses, other_read = Event(), set(), []
    finished = InlineRestores.finished
    driver = shop.driver()
    tasks = {str(task.id): task for task in driver._coordinator.tasks.values()}

    def when_the_other_is_done(restores):
        if restores.waiting:
            other_read.append(tasks[OTHER].positions["sales"][0])
            if tasks[OTHER].committed_positions["sales"][0] < 100:
                return []
        return finished(restores)

    def report(progress, reported, ends):
        rows = {task.id: ControlPanel(None)._row(task, ends, is_paused=False) for task in reported}
        statuses.update((str(id), row.status, f"key shop={SHOP}" in row.reason) for id, row in rows.items())
        if tasks[OTHER].positions["sales"][0] == 40 and not other_read:
            shop.damage()
            shop.find()
            shop.sell()
        if tasks[VICTIM].positions["sales"][1] == 100 and not progress.lag:
            stop.set()

    shop.desk.report = report
    monkeypatch.setattr(InlineRestores, "finished", when_the_other_is_done)
    assert driver.run(stop).reason == "stopped"
    assert other_read[-1] == 100
    assert (VICTIM, "restoring", True) in statuses
    assert {status for id, status, _ in statuses if id == OTHER} == {"running", "closed"}
    assert_restored(shop)


def test_a_restore_that_fails_is_tried_again_and_the_check_stays_red_until_one_has_succeeded(shop, monkeypatch):
    """The changelog cannot be read for a while."""
    monkeypatch.setattr(restores_module, "FIRST_RETRY_S", 0.01)
    shop.damage()
    kept = str(shop.find())
    shop.sell()
    (log,) = (shop.warehouse / "sales" / "_changelog").glob("sums")
    files = sorted(log.rglob("*.parquet"))
    for file in files:
        file.rename(file.with_suffix(".away"))
    tried, statuses = [], []

    def finished(restores):
        found = []
        for request in restores.waiting:
            try:
                found.append(restore(restores.application, restores.settings, request, restores.reader))
            except Exception as error:
                found.append(_failed(request, error))
        restores.waiting.clear()
        for ended in found:
            tried.append(ended.error)
            with pytest.raises(InDoubtError) as red:  # also though no commit names what was built
                shop.verify()
            assert str(red.value).startswith(kept)
        if len(tried) == 2:
            for file in files:
                if file.with_suffix(".away").exists():
                    file.with_suffix(".away").rename(file)
        restores.done += [ended for ended in found if not ended.error]
        return found

    def report(progress, tasks, ends):
        statuses.extend((task.state.value, task.progress) for task in tasks if str(task.id) == VICTIM)

    monkeypatch.setattr(InlineRestores, "finished", finished)
    shop.desk.report = report
    assert shop.run_to_the_end() == ["caught_up"]
    assert [bool(error) for error in tried] == [True, True, False]
    assert any(state == "corrupted" and "has failed 2 times" in progress for state, progress in statuses)
    assert_restored(shop)


def test_a_request_tries_a_restore_that_waits_at_once(shop, monkeypatch):
    monkeypatch.setattr(restores_module, "FIRST_RETRY_S", 3_600.0)
    shop.damage()
    shop.find()
    finished, tried = InlineRestores.finished, []

    def failing_once(restores):
        if restores.waiting and not tried:
            tried.append(restores.waiting.pop())
            return [_failed(tried[0], OSError("the disk is gone"))]
        return finished(restores)

    def report(progress, tasks, ends):
        if tried and not shop.desk.asked:
            shop.desk.ask("restore", task=VICTIM)

    monkeypatch.setattr(InlineRestores, "finished", failing_once)
    shop.desk.report = report
    assert shop.run_to_the_end() == ["caught_up"]
    assert shop.desk.answers == {1: (f"task {VICTIM} is restoring in slot 0", False)}
    assert_restored(shop)


@pytest.mark.parametrize("dies_at", ["the mark", "the restore", "the commit of the restore", "the removal of the mark"])
def test_a_driver_that_dies_before_the_task_is_restored_leaves_that_to_the_next(shop, monkeypatch, dies_at):
    class Killed(BaseException):
        pass

    def die(*given, **named):
        raise Killed

    shop.damage()
    if dies_at != "the mark":
        shop.find()
    shop.sell()
    driver = shop.driver()
    with monkeypatch.context() as dying:
        match dies_at:
            case "the mark":
                after_epoch(driver, 1, lambda: (shop.find(), die()))
            case "the restore":
                dying.setattr("weir.pipelines.spark.restore_jobs.restore_task", die)
            case "the commit of the restore":
                dying.setattr(driver._coordinator._committer, "commit", die)
            case _:
                dying.setattr(restores_module, "clear_doubt", die)
        with pytest.raises(Killed):
            driver.run(Event(), until_caught_up=True)
    TaskStoreCache.close_all()
    assert bool(doubts(shop.place, "sales")) == (dies_at != "the removal of the mark")
    assert shop.run_to_the_end() == ["caught_up"]
    assert_restored(shop)


@pytest.mark.parametrize("is_newer", [False, True])
def test_a_difference_counts_unless_a_second_look_at_the_same_commit_does_not_find_it(shop, monkeypatch, is_newer):
    """At a newer one the row may have been written again, from the wrong value."""
    database = ControlDatabase(shop.place.control_database_url)
    database.acquire_lease("sales", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=60)
    compare, looks = verify_module._compare, []

    def differs_once(*given):
        if given[2] == shop.name_of(VICTIM) and not looks:
            looks.append(given)
            agreement = compare(*given)
            error = StateDifferenceError(given[2], "sums", f"key shop={SHOP}", "one", "another")
            error.instance, error.state = shop.instance, agreement.state
            if is_newer:
                shop.sell()
                shop.run()
            raise error
        return compare(*given)

    monkeypatch.setattr(verify_module, "_compare", differs_once)
    if is_newer:
        with pytest.raises(StateDifferenceError, match="found another"):
            shop.verify()
        assert [doubt.store for doubt in doubts(shop.place, "sales")] == ["sums"]
    else:
        assert shop.verify() == [5, 5]
        assert doubt_of(shop.instance) is None
