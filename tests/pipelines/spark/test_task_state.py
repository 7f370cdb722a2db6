"""A task's life: only the transitions that docs/state.md has, whatever happens to a task, each of which is logged."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.spark.inline import InlineRestores, Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import TRANSITIONS, IllegalTransitionError, TaskState, TransitionLog, ranges
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import TaskCommit
from weir.state.engine.standby import Left
from weir.state.types import StateId, StoreSpec, TaskId

ROW = re.compile(r"^\| `(\w+)` \| .+? \| ([\w, ]*?) ?\|$", re.MULTILINE)
LINE = re.compile(r"^tasks? (.+?): (\w+) -> (\w+): (.+)$")
TASK = TaskId(0, 1)


def documented() -> dict[str, set[str]]:
    page = (Path(__file__).parents[3] / "docs/state.md").read_text()
    section = page.partition("## A task's life")[2].partition("\n## ")[0]
    return {state: set(filter(None, after.split(", "))) for state, after in ROW.findall(section)}


def test_the_page_has_every_state_and_every_transition():
    assert documented() == {str(state): {str(each) for each in after} for state, after in TRANSITIONS.items()}
    assert TRANSITIONS.keys() == set(TaskState)


EVENTS: dict[str, Callable[[Task], object]] = {
    "isolated": lambda task: task.isolated("it fails", 1_000),
    "tries again": lambda task: task.try_again(1_000_000_000),
    "pause": lambda task: task.pause("a test"),
    "resume": lambda task: task.resume("a test"),
    "lost": lambda task: task.lost("its executor is lost"),
    "corrupted": lambda task: task.lost("its store is gone", is_corrupted=True),
    "doubted": lambda task: task.doubted("a row differs"),
}
RESTORE_ENDS: dict[str, Callable[[Task], object]] = {
    "progress": lambda task: task.restoring("1 of 2 rows", 50.0),
    "not restored": lambda task: task.not_restored("no room"),
    "restored": lambda task: task.restored("new", "1", source="changelog", from_snapshot=False, is_snapshot_gone=False),
    "pause": EVENTS["pause"],
    "resume": EVENTS["resume"],
    "isolated": EVENTS["isolated"],  # by an answer that came late
}


@given(st.data())
def test_whatever_happens_to_a_task_its_states_follow_each_other_as_documented(data):
    """A model says when a restore begins and ends; what is paused is never running, and what is closed is over."""
    legal, seen, is_paused = documented(), ["created"], False
    task = Task.of(TASK, (), Task(id=TASK, instance="first", topics=()).to_commit())
    task.on_transition = lambda id, before, after, reason: seen.extend([str(after)] * (before == seen[-1]))
    if data.draw(st.booleans()):
        task.opened()
    for _ in range(data.draw(st.integers(0, 12))):
        if task.state is TaskState.RESTORING:
            name = data.draw(st.sampled_from(sorted(RESTORE_ENDS)))
            RESTORE_ENDS[name](task)
        elif task.state in (TaskState.CREATED, TaskState.SUSPENDED, TaskState.CORRUPTED):
            name = "restore begins"
            task.restoring()
        else:
            name = data.draw(st.sampled_from(sorted(EVENTS)))
            EVENTS[name](task)
        is_paused = {"pause": True, "resume": False}.get(name, is_paused)
        if is_paused:
            assert task.state not in (TaskState.RUNNING, TaskState.ISOLATED)
        assert (task.state is TaskState.PAUSED) <= is_paused
    task.closed("the end")
    assert seen[-1] == str(task.state) == "closed"
    assert all(after in legal[before] for before, after in pairwise(seen)), seen


@pytest.mark.parametrize("before", TaskState)
def test_any_other_transition_is_an_error_that_says_both_states(before):
    for after in set(TaskState) - TRANSITIONS[before]:
        task = Task(id=TASK, instance="first", topics=(), _state=before)
        with pytest.raises(IllegalTransitionError, match=f"task 0_1 cannot go from {before} to {after}") as raised:
            task.to(after, "a test")
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
        assert task.state is before
        with pytest.raises(AttributeError):
            task.state = after  # type: ignore[misc]


def test_tasks_that_change_alike_share_a_line_and_each_task_has_its_changes_in_order(caplog):
    caplog.set_level(logging.INFO, "weir.driver")
    told = TransitionLog()
    many = [TaskId(0, partition) for partition in range(10_000)]
    for before, after in (("running", "suspended"), ("suspended", "running"), ("running", "suspended")):
        for task in many:
            told.note(task, TaskState(before), TaskState(after), "why")
    told.note(TaskId(1, 7), TaskState.RUNNING, TaskState.SUSPENDED, "why")
    told.tell()
    told.tell()
    assert caplog.messages == [
        "tasks 0_0 to 0_9999: running -> suspended: why",
        "tasks 0_0 to 0_9999: suspended -> running: why",
        "tasks 0_0 to 0_9999, 1_7: running -> suspended: why",
    ]
    assert ranges([TaskId(0, 3)]) == "0_3"


@pytest.fixture
def place(tmp_path) -> Place:
    topics = Topics({("sales", partition): sales(200, partition) for partition in (0, 1)})
    return Place(application(), topics, tmp_path, max_records=20)


def lines(messages: list[str]) -> list[tuple[str, str, str]]:
    return [found.groups()[:3] for message in messages if (found := LINE.match(message))]  # type: ignore[misc]


def test_a_run_logs_each_transition_once_and_nothing_while_it_is_idle(place, caplog):
    caplog.set_level(logging.INFO, "weir.driver")
    place.run()
    caplog.clear()
    place.desk.ask("restore", task="0_0")
    place.run()
    found = lines(caplog.messages)
    assert found[0] == ("0_0 to 0_1", "created", "running")
    restored = [("0_0", "running", "suspended"), ("0_0", "suspended", "restoring"), ("0_0", "restoring", "running")]
    ended = [("0_0 to 0_1", "running", "suspended"), ("0_0 to 0_1", "suspended", "closed")]
    assert found[1:] == [*restored, *ended]
    caplog.clear()
    place.run()
    assert lines(caplog.messages) == [found[0], *ended]
    assert totals(place) == expected(place)


def test_what_is_paused_while_it_restores_is_paused_once_it_is_restored(place, monkeypatch):
    finished, may_end, stop = InlineRestores.finished, Event(), Event()
    monkeypatch.setattr(InlineRestores, "finished", lambda restores: finished(restores) if may_end.is_set() else [])
    place.run()
    driver = place.driver()
    task, seen = driver._coordinator.tasks[TASK], list[str]()
    task.on_transition = lambda id, before, after, reason: seen.append(str(after))
    place.desk.ask("restore", task="0_1")
    asked = place.desk.ask("pause", tasks="0")

    def report(progress, tasks, ends):
        if asked in place.desk.answers and task.state is TaskState.RESTORING:
            assert task.held == "will be paused once it is restored"
            may_end.set()
        if task.state is TaskState.PAUSED and task.is_restored:
            place.desk.ask("resume", tasks="0_1")
        if seen[-1:] == ["running"]:
            stop.set()

    monkeypatch.setattr(place.desk, "report", report)
    monkeypatch.setattr("weir.pipelines.spark.driver.REPORT_EVERY_S", 0.0)
    monkeypatch.setattr("weir.pipelines.spark.driver.REPORT_SHARE", 1_000.0)
    driver.run(stop)
    said, failed = place.desk.answers[asked]
    assert not failed
    assert said.startswith("paused 0_0, 0_1 after epoch")
    assert seen[:4] == ["suspended", "restoring", "paused", "running"]
    assert seen[4:] == ["suspended", "closed"]


def test_closing_a_restoring_task_commits_nothing_of_it(place, monkeypatch):
    """R33 of Kafka Streams' rules: the others' last epochs are committed, and it stays where it was."""
    place.run()
    before = newest_commit(place.warehouse, place.application.id)
    monkeypatch.setattr(InlineRestores, "finished", lambda restores: [])
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(50, partition)
    driver, stop = place.driver(), Event()
    restoring, other = driver._coordinator.tasks[TASK], driver._coordinator.tasks[TaskId(0, 0)]
    place.desk.ask("restore", task="0_1")

    def report(progress, tasks, ends):
        if restoring.state is TaskState.RESTORING and other.positions["sales"][0] == 250:
            stop.set()

    monkeypatch.setattr(place.desk, "report", report)
    monkeypatch.setattr("weir.pipelines.spark.driver.REPORT_EVERY_S", 0.0)
    monkeypatch.setattr("weir.pipelines.spark.driver.REPORT_SHARE", 1_000.0)
    driver.run(stop)
    after = newest_commit(place.warehouse, place.application.id)
    name, its = place.name_of("0_1"), place.name_of("0_0")
    assert after.tasks[name] == before.tasks[name]
    assert after.tasks[its].positions != before.tasks[its].positions
    assert {file.path for file in after.files if f"/{name}/" in file.path} == set()
    monkeypatch.undo()
    place.run()
    assert totals(place) == expected(place)


def test_a_task_leaves_its_stores_behind_once_they_are_committed_and_without_stores_nothing():
    committed = TaskCommit(state=StateId(1, 7), instance="first")
    store = StoreSpec(name="totals", key=pl.Schema({"key": pl.String}), value=pl.Schema({"total": pl.Int64}))
    for stores, commit, left in (
        ([store], committed, Left(instance="first", state=StateId(1, 7))),
        ([store], replace(committed, state=None), None),
        ([], committed, None),
    ):
        task = Task.of(TASK, (), commit, stores)
        task.leave("1")
        assert task.left == left


def test_a_task_that_goes_back_finds_what_it_left_there_and_not_what_it_leaves_now():
    store = StoreSpec(name="totals", key=pl.Schema({"key": pl.String}), value=pl.Schema({"total": pl.Int64}))
    task = Task.of(TASK, (), TaskCommit(state=StateId(1, 7), instance="first"), [store])
    task.opened()
    for instance, here, there in (("second", "1", "2"), ("third", "2", "1")):
        task.leave(here)
        left = {executor: standing.left.instance for executor, standing in task.standbys.items()}
        assert left == ({"1": "first"} if here == "2" else {})
        task.lost("a test")
        task.restoring()
        task.restored(instance, there, source="snapshot", from_snapshot=True, is_snapshot_gone=False)
    assert {executor: standing.left.instance for executor, standing in task.standbys.items()} == {"2": "second"}
