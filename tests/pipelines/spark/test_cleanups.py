"""The clean-up of an executor's disk beside real drivers: what a run goes on with stays, whoever else is about."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.pipelines.spark.away import put_away, put_back
from tests.pipelines.spark.following import follow_to
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.infra.spark.executors import Executor
from weir.pipelines.spark import cleanups
from weir.pipelines.spark.cleanups import CleanUpRequest, CleanUps, carry_out, run_clean_up
from weir.pipelines.spark.parts import Keeps
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.global_table import shared_folder
from weir.state.commit.protocol import newest_commit
from weir.state.engine import instances as module
from weir.state.engine.cleanup import UNNEEDED
from weir.state.engine.quarantine import QuarantineLimits, quarantine
from weir.state.engine.standby import standby_folder, unneeded_mark

KEEPS = Keeps(unneeded_s=600.0, quarantine=QuarantineLimits(max_age_s=1e9, max_bytes=1 << 40))
LATER_S = 10_000.0


@pytest.fixture
def place(tmp_path) -> Place:
    topics = Topics({("sales", partition): sales(200, partition) for partition in (0, 1)})
    return Place(application(), topics, tmp_path, max_records=20)


@pytest.fixture
def worker(place) -> WorkerSettings:
    return WorkerSettings(reference="shop:app", kafka={}, tasks=place.settings, names={}, topics={}, is_on_cluster=True)


def request(place: Place) -> CleanUpRequest:
    newest = newest_commit(place.warehouse, place.application.id)
    names = {name: task.instance for name, task in newest.tasks.items()}
    return CleanUpRequest(
        executor="1", instances=names, standbys=[], global_tables=["rates"], generation=newest.generation, keeps=KEEPS
    )


def left_behind(place: Place) -> None:
    """What an executor has of a task that was restored elsewhere since."""
    (kept,) = place.state_of("0_1").glob("*/instance.json")
    shutil.copytree(kept.parent, place.state_of("0_1") / "before")


def names(place: Place) -> set[str]:
    return {f"{folder.parent.name}/{folder.name}" for folder in module.instances(place.state_folder)}


def test_what_was_left_behind_goes_after_the_delay_and_the_run_goes_on(place, worker):
    place.run()
    there = names(place)
    left_behind(place)
    asked = request(place)
    assert carry_out(worker, asked, 0.0) == ""
    (mark,) = place.state_folder.glob(f"*/*/{UNNEEDED}")
    os.utime(mark, (0.0, 0.0))
    assert carry_out(worker, asked, 599.0) == ""
    assert carry_out(worker, asked, 600.0) == f"{place.name_of('0_1')}/before"
    assert names(place) == there
    place.topics.rows["sales", 1] += sales(30, 1)
    place.run()
    assert names(place) == there, "nothing was restored"
    assert totals(place) == expected(place)


def test_what_the_newest_commit_lists_stays_whatever_the_driver_said(place, worker):
    place.run()
    there, asked = names(place), replace(request(place), instances={})
    for _ in range(2):
        assert carry_out(worker, asked, LATER_S * 1e6) == ""
    assert names(place) == there


def test_a_driver_that_was_overtaken_removes_nothing(place, worker):
    place.run()
    left_behind(place)
    asked = request(place)
    carry_out(worker, asked, 0.0)
    place.run()
    shutil.copytree(place.state_of("0_1") / "quarantine" / "before", place.state_of("0_1") / "before")
    assert carry_out(worker, asked, time.time() + LATER_S) == ""
    assert f"{place.name_of('0_1')}/before" in names(place)


def test_the_quarantine_of_an_executor_is_kept_within_its_limits(place, worker):
    place.run()
    left_behind(place)
    moved = quarantine(place.state_of("0_1") / "before", "a test")
    limits = QuarantineLimits(max_age_s=1.0, max_bytes=0)
    asked = replace(request(place), keeps=Keeps(unneeded_s=0.0, quarantine=limits))
    assert carry_out(worker, asked, moved.stat().st_mtime + LATER_S) == f"{place.name_of('0_1')}/quarantine/before"


def test_a_standby_that_an_executor_is_no_longer_to_keep_goes_after_the_delay(place, worker):
    """Of a run that is over, too."""
    place.run()
    kept, unneeded = [standby_folder(place.state_of(task)) for task in ("0_0", "0_1")]
    newest = newest_commit(place.warehouse, place.application.id)
    for task in ("0_0", "0_1"):
        follow_to(place, newest, place.name_of(task))
    asked = replace(request(place), standbys=[kept.parent.name])
    assert carry_out(worker, asked, 0.0) == ""
    os.utime(unneeded_mark(unneeded), (0.0, 0.0))
    assert carry_out(worker, asked, 599.0) == ""
    assert carry_out(worker, asked, 600.0) == f"{unneeded.parent.name}/{unneeded.name}"
    assert (kept.is_dir(), unneeded.is_dir()) == (True, False)


def test_rows_of_a_global_table_that_the_program_no_longer_has_go_after_the_delay(place, worker):
    place.run()
    kept, gone = (shared_folder(place.state_folder, name) for name in ("rates", "towns"))
    for folder in (kept, gone):
        folder.mkdir(parents=True)
    asked = request(place)
    assert carry_out(worker, asked, 0.0) == ""
    os.utime(gone / UNNEEDED, (0.0, 0.0))
    assert carry_out(worker, asked, 599.0) == ""
    assert carry_out(worker, asked, 600.0) == "_global_tables/towns"
    assert (kept.is_dir(), gone.is_dir()) == (True, False)


def test_on_a_single_host_the_next_start_removes_them(place):
    place.run()
    gone = shared_folder(place.state_folder, "towns")
    gone.mkdir(parents=True)
    place.run()
    assert not gone.exists()


def test_elsewhere_than_on_its_executor_a_job_removes_nothing(place, worker, monkeypatch):
    monkeypatch.setattr(cleanups, "executor_id", lambda: "2")
    place.run()
    assert list(run_clean_up(worker, request(place), [])) == [""]


def test_each_executor_is_looked_through_now_and_then_but_not_while_a_task_restores(place, worker, monkeypatch):
    begun = list[CleanUpRequest]()

    class Jobs:
        is_at_work = False
        __class_getitem__ = classmethod(lambda cls, answer: cls)

        def __init__(self, context: object, pool: str) -> None:
            pass

        def start(self, tasks, work, home) -> None:
            begun.append(work.args[1])

        def finished(self) -> list:
            return []

    monkeypatch.setattr(cleanups, "BackgroundJobs", Jobs)
    monkeypatch.setattr(cleanups, "EVERY_S", 0.0)
    hosts = {"1": "a", "2": "b", "3": "a"}
    slots = SimpleNamespace(executors=lambda: [*hosts], executor_at=lambda each: Executor(id=each, host=hosts[each]))
    place.run()
    coordinator = place.driver()._coordinator
    task = next(iter(coordinator.tasks.values()))
    clean_up = CleanUps(None, worker, slots, KEEPS, ["rates"])  # type: ignore[arg-type]
    put_away(task)
    assert coordinator.settled_instances is None
    put_back(task)
    instances = coordinator.settled_instances
    assert instances is not None
    clean_up.begin_due(instances, {"1": ["x"], "2": ["y"]}, coordinator.generation)
    assert [(each.executor, each.standbys) for each in begun] == [("1", {"x"}), ("2", {"y"}), ("3", {"x"})]
    assert [each.global_tables for each in begun] == [["rates"]] * 3
    assert begun[0].instances == {place.name_of(str(each.id)): each.instance for each in coordinator.tasks.values()}
    CleanUps(None, worker, slots, None, []).begin_due(instances, {}, 1)  # type: ignore[arg-type]
    assert len(begun) == 3
