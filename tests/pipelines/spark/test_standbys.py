"""Tasks with standbys on another executor go on there when theirs is lost; results equal a plain loop over the records.

Both executors are this process, and have one folder; which of them a slot is on is up to the test.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest

from tests.pipelines.spark.inline import InlineSlots, Place, Topics
from tests.pipelines.spark.sales import application, expected, program, sales, totals
from weir.pipelines.spark import driver, standbys
from weir.pipelines.spark.assignors import Assignors
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.held import run_look
from weir.pipelines.spark.parts import Placement
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.plan import Receipt, ReceiptStatus, TaskPlan
from weir.state.changelog import standby as follows
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.standby import reached_by, standby_of
from weir.state.engine.task_store import TaskStore
from weir.state.types import TaskId

EPOCHS = 5


@dataclass
class Cluster:
    """Two executors, of which the first is lost before an epoch of which the test says so."""

    loses: Callable[[], bool] = lambda: False
    is_lost: bool = False
    epochs: int = 0
    asked: list[str] = field(default_factory=list)
    """The tasks that have asked for a restore since."""

    def executors(self) -> list[str]:
        return ["2"] if self.is_lost else ["1", "2"]

    def run(self, slots: InlineSlots, plans: Sequence[TaskPlan]) -> list[Receipt]:
        self.epochs += 1
        self.is_lost = self.is_lost or self.loses()
        receipts = RUN(slots, plans)
        for number, receipt in enumerate(receipts):
            if self.is_lost and str(receipt.task) not in self.asked:
                self.asked.append(str(receipt.task))
                receipts[number] = replace(receipt, status=ReceiptStatus.NEEDS_RESTORE, error="it has no instance")
        return receipts


RUN = InlineSlots.run


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(InlineSlots, "run", lambda slots, plans: cluster.run(slots, plans))
    monkeypatch.setattr(InlineSlots, "executors", lambda slots: cluster.executors())
    monkeypatch.setattr(InlineSlots, "executor_of", lambda slots, slot: "2" if cluster.is_lost else "1")
    monkeypatch.setattr(standbys, "FOLLOW_EVERY_S", 0.0)
    return cluster


@pytest.fixture
def place(tmp_path) -> Place:
    topics = Topics({("sales", partition): sales(200, partition) for partition in (0, 1)})
    return Place(
        application(), topics, tmp_path, max_records=20, assignors=Assignors(standby_replicas=1, probing_interval_s=0.0)
    )


def test_a_lost_task_goes_on_from_its_standby(place, cluster):
    run = place.driver()
    tasks = run._coordinator.tasks.values()
    cluster.loses = lambda: cluster.epochs > EPOCHS and all(task.standbys for task in tasks)
    run.run(Event(), until_caught_up=True)
    assert sorted(cluster.asked) == ["0_0", "0_1"]
    sources = [restored.source for restored in place.restores.done]
    assert len(sources) == 2
    assert all(source.startswith("standby of 1.") for source in sources), sources
    assert totals(place) == expected(place)
    assert not any(task.standbys for task in tasks)


def test_tasks_of_a_lost_executor_take_over_standbys_and_share_the_next_one_once_they_have_standbys_there(
    place, cluster, monkeypatch
):
    """So does the slot that was on the lost one, which begins there without tasks."""
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(1_000, partition)
    run = place.driver()
    tasks, run._coordinator.slots.count = list(run._coordinator.tasks.values()), 2
    for slot, task in enumerate(tasks):
        task.slot = slot
    homes, moves = ["1", "2"], list[tuple[str, int, bool]]()

    def moved(slots: InlineSlots, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        moves.append((str(task), slot, with_store))

    monkeypatch.setattr(driver, "EVEN_EVERY_S", 0.0)
    monkeypatch.setattr(InlineSlots, "executors", lambda slots: ["2", "3"] if cluster.is_lost else ["1", "2"])
    monkeypatch.setattr(InlineSlots, "executor_of", lambda slots, slot: homes[slot])
    monkeypatch.setattr(InlineSlots, "lost", lambda slots: [0] if cluster.is_lost and homes[0] == "1" else [])
    monkeypatch.setattr(InlineSlots, "go", lambda slots, slot, executor: homes.__setitem__(slot, executor))
    monkeypatch.setattr(InlineSlots, "move", moved)
    cluster.asked = [str(task.id) for task in tasks]  # none has to ask
    cluster.loses = lambda: cluster.epochs > EPOCHS and all(task.standbys for task in tasks)
    run.run(Event(), until_caught_up=True)
    assert homes == ["3", "2"]
    assert moves[0] == ("0_0", 1, False)
    assert [(slot, with_store) for _, slot, with_store in moves[1:]] == [(0, False)]
    assert Counter(task.slot for task in tasks) == {0: 1, 1: 1}
    begins, standbys, lost, joined = place.desk.assignments
    assert begins.reason == "a run begins"
    assert [(move["role"], move["source"], move["target"]) for move in standbys.moves] == [
        ("standby", None, "2"),
        ("standby", None, "1"),
    ]
    assert ("0_0", "1/0", "2/1", "executor 1 is lost") in [
        (move["task"], move["source"], move["target"], move["reason"])
        for move in lost.moves
        if move["role"] == "active"
    ]
    assert (lost.executors["2"]["active"], lost.executors["2"]["previous"]) == (["0_0", "0_1"], ["0_1"])
    assert joined.moves
    assert [restored.source[:13] for restored in place.restores.done] == ["standby of 1."] * 2
    assert totals(place) == expected(place)


def test_tasks_leave_an_executor_that_is_decommissioned_for_their_standbys_and_its_slot_follows(
    place, cluster, monkeypatch
):
    """Nobody else's task moves, and none asks for a restore: it goes on in the other slot as of the commit before."""
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(1_000, partition)
    run = place.driver()
    tasks, run._coordinator.slots.count = list(run._coordinator.tasks.values()), 2
    for slot, task in enumerate(tasks):
        task.slot = slot
    homes, moves, is_told = ["1", "2"], list[tuple[str, int, bool]](), Event()

    def leaving(slots: InlineSlots) -> list[int]:
        if cluster.epochs > EPOCHS and all(task.standbys for task in tasks):
            is_told.set()
        return [slot for slot, home in enumerate(homes) if home == "1" and is_told.is_set()]

    def moved(slots: InlineSlots, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        moves.append((str(task), slot, with_store))

    monkeypatch.setattr(driver, "EVEN_EVERY_S", 0.0)
    monkeypatch.setattr(InlineSlots, "leaving", leaving)
    monkeypatch.setattr(InlineSlots, "executors", lambda slots: ["2"] if is_told.is_set() else ["1", "2"])
    monkeypatch.setattr(InlineSlots, "executor_of", lambda slots, slot: homes[slot])
    monkeypatch.setattr(InlineSlots, "go", lambda slots, slot, executor: homes.__setitem__(slot, executor))
    monkeypatch.setattr(InlineSlots, "move", moved)
    run.run(Event(), until_caught_up=True)
    assert homes == ["2", "2"]
    assert moves[0] == ("0_0", 1, False)
    assert [restored.request.task for restored in place.restores.done] == [TaskId(0, 0)]
    assert [restored.source[:13] for restored in place.restores.done] == ["standby of 1."]
    assert totals(place) == expected(place)


def test_a_standby_that_cannot_be_used_is_done_without(place, cluster):
    run = place.driver()
    tasks = run._coordinator.tasks.values()

    def loses() -> bool:
        if cluster.epochs <= EPOCHS or not all(task.standbys for task in tasks):
            return False
        for task in tasks:
            shutil.rmtree(place.state_of(str(task.id)) / ".standby")
        return True

    cluster.loses = loses
    run.run(Event(), until_caught_up=True)
    assert [(done.is_without_standby, done.source) for done in place.restores.done] == [
        *[(True, "")] * 2,
        *[(False, "changelog")] * 2,
    ]
    assert totals(place) == expected(place)


def test_standbys_follow_commits_with_what_is_new(place, cluster):
    summary = place.run()
    first, *later = [followed for followed in place.standbys.done if str(followed.request.task) == "0_0"]
    assert (first.request.anew, first.error, {each.request.anew for each in later}) == (True, "", {False})
    assert {each.request.executor for each in place.standbys.done} == {"2"}
    assert len(later) > 2
    assert summary.records_in == 400


def test_the_next_run_goes_on_with_standbys(place, cluster, monkeypatch):
    place.run()
    built, restore_task = list[str](), follows.restore_task

    def noted(app_folder: object, folder: Path, *arguments: object, **options: object) -> TaskStore:
        built.append(folder.name)
        return restore_task(app_folder, folder, *arguments, **options)

    monkeypatch.setattr(follows, "restore_task", noted)
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(200, partition)
    run, cluster.epochs = place.driver(), 0
    tasks = run._coordinator.tasks.values()
    cluster.loses = lambda: cluster.epochs > EPOCHS and all(task.standbys for task in tasks)
    run.run(Event(), until_caught_up=True)
    assert built == []
    assert [restored.source[:13] for restored in place.restores.done] == ["standby of 2."] * 2
    assert totals(place) == expected(place)


def test_the_next_run_takes_over_standbys_where_the_stores_are_gone(place, cluster, monkeypatch):
    """As where an executor that had them does not come back, and another one has the standbys."""
    place.run()
    begins_with_standbys(place, monkeypatch, "1")
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(200, partition)
    place.run()
    assert [restored.source[:13] for restored in place.restores.done] == ["standby of 1."] * 2
    assert totals(place) == expected(place)


@pytest.mark.parametrize("why", ["elsewhere", "another program", "another commit log"])
def test_a_standby_that_may_not_belong_to_its_task_is_not_taken_over_at_a_start(place, cluster, monkeypatch, why):
    place.run()
    begins_with_standbys(place, monkeypatch, "2" if why == "elsewhere" else "1")
    if why == "another program":
        nothing = property(lambda coordinator: None, lambda coordinator, generation: None)
        monkeypatch.setattr(Coordinator, "continues", nothing, raising=False)
    if why == "another commit log":
        for task in ("0_0", "0_1"):
            with standby_of(place.state_of(task)) as standby:
                standby.note(replace(reached_by(place.state_of(task)), at_ms=5))
    place.run()
    assert [restored.source for restored in place.restores.done if restored.source] == ["changelog"] * 2
    assert totals(place) == expected(place)


def begins_with_standbys(place: Place, monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    """The stores of the tasks are gone, and an executor says that it has standbys."""
    TaskStoreCache.close_all()
    newest, spec, tasks = place.commit_before(), place.spec, place.spec().tasks
    for task in tasks:
        shutil.rmtree(place.state_of(str(task)) / newest.tasks[place.name_of(str(task))].instance)
    begins = Placement(slot_of=dict.fromkeys(tasks, 0), seconds=0.0, standbys={task: [executor] for task in tasks})
    monkeypatch.setattr(place, "spec", lambda **accepts: replace(spec(**accepts), placement=begins))


def test_an_executor_says_which_standbys_it_has_from_the_newest_generation(place, cluster):
    place.run()
    newest = place.commit_before()
    instances = {name: task.instance for name, task in newest.tasks.items()}
    worker = WorkerSettings(reference="", kafka={}, tasks=place.settings, names={}, topics={})
    (held,) = run_look(worker, instances, newest.generation, [])
    assert sorted(held.names) == sorted(held.standbys) == sorted(instances)
    assert set(held.standbys.values()) <= set(range(1, newest.epoch + 1))
    for others in ((instances, newest.generation + 1), (dict.fromkeys(instances, "restored since"), newest.generation)):
        (held,) = run_look(worker, *others, [])
        assert held.standbys == {}


def test_another_program_goes_on_with_none(place):
    place.run()
    assert place.driver()._coordinator.continues == 1
    place.application = program(positive_only=True)
    run = place.driver()
    assert run._coordinator.continues is None


def test_what_no_assignment_needs_is_counted_on_for_as_long_as_executors_keep_it(place, cluster, monkeypatch):
    monkeypatch.setattr(InlineSlots, "executors", lambda slots: ["1", "2", "3"])
    run = place.driver()
    run.run(Event(), until_caught_up=True)
    task = next(iter(run._coordinator.tasks.values()))
    (chosen,) = task.standbys
    (other,) = {"2", "3"} - {chosen}
    keeps = standbys.Standbys(run._coordinator, place.standbys, run._assigning, kept_s=60.0)
    for age_s, are_left in ((59.0, {chosen, other}), (61.0, {chosen})):
        standing = replace(task.standbys[chosen], at_s=time.monotonic() - age_s)
        task.standbys |= {chosen: standing, other: standing}
        keeps.begin_due()
        assert task.standbys.keys() == are_left
    name = place.name_of(str(task.id))
    assert [executor for executor, names in keeps.kept().items() if name in names] == [chosen]


def test_a_task_in_doubt_is_not_restored_from_a_standby_which_begins_anew(place, cluster):
    place.run()
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(100, partition)
    place.desk.ask("restore", task="0_0", source="changelog")
    place.run()
    assert [restored.source for restored in place.restores.done] == ["changelog"]
    assert totals(place) == expected(place)


def test_on_a_single_host_there_are_none(place):
    place.run()
    assert place.standbys.done == []
