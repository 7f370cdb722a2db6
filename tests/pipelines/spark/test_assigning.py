"""Tasks go to executors that join, or that have less to do, once their stores are there, and until then go on where
they are. Results equal a plain loop over the records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.spark.hosts import Hosts
from tests.pipelines.spark.inline import InlineSlots, Place, Topics
from tests.pipelines.spark.sales import application, expected, totals
from weir.pipelines.assignment import ApplicationState, HighAvailabilityAssignor, TaskAssignment
from weir.pipelines.spark import driver, standbys
from weir.pipelines.spark.assigning import SUSTAINED, Assigning
from weir.pipelines.spark.assignments import Assignments
from weir.pipelines.spark.assignors import Assignors
from weir.pipelines.spark.spread import AHEAD_S, GAIN
from weir.pipelines.spark.task import Standing, Task
from weir.pipelines.tasks.plan import Receipt, TaskPlan
from weir.state.changelog import standby
from weir.state.commit.record import TaskCommit
from weir.state.engine.task_store import TaskStore
from weir.state.types import StateId, TaskId

TASKS, JOINS_AFTER = 6, 5
RUN = InlineSlots.run


@dataclass
class Cluster:
    """Four slots on one executor, until another one joins; every task that takes part in an epoch is noted."""

    homes: list[str] = field(default_factory=lambda: ["1"] * 4)
    epochs: list[set[TaskId]] = field(default_factory=list)
    moves: list[tuple[TaskId, int, int]] = field(default_factory=list)
    """Of each: task, slot, and the number of epochs before."""

    def executors(self) -> list[str]:
        return ["1", "2"] if len(self.epochs) > JOINS_AFTER else ["1"]

    def run(self, slots: InlineSlots, plans: Sequence[TaskPlan]) -> list[Receipt]:
        self.epochs.append({plan.task for plan in plans})
        return RUN(slots, plans)


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    cluster = Cluster()

    def moved(slots: InlineSlots, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        if not with_store:
            cluster.moves.append((task, slot, len(cluster.epochs)))

    monkeypatch.setattr(InlineSlots, "run", lambda slots, plans: cluster.run(slots, plans))
    monkeypatch.setattr(InlineSlots, "executors", lambda slots: cluster.executors())
    monkeypatch.setattr(InlineSlots, "executor_of", lambda slots, slot: cluster.homes[slot])
    monkeypatch.setattr(InlineSlots, "go", lambda slots, slot, executor: cluster.homes.__setitem__(slot, executor))
    monkeypatch.setattr(InlineSlots, "move", moved)
    monkeypatch.setattr(driver, "EVEN_EVERY_S", 0.0)
    monkeypatch.setattr(standbys, "FOLLOW_EVERY_S", 0.0)
    return cluster


def place_of(tmp_path, kind: type[Place] = Place, **options) -> Place:
    topics = Topics(
        {
            ("sales", partition): [
                (b"shop-%d-%d" % (partition, number % 5), json.dumps({"amount": number}).encode(), 1_000 + number)
                for number in range(1_000)
            ]
            for partition in range(TASKS)
        }
    )
    return kind(application(), topics, tmp_path, max_records=20, assignors=Assignors(probing_interval_s=0.0, **options))


def started(place: Place) -> tuple[driver.Driver, dict[TaskId, Task]]:
    run = place.driver()
    tasks, run._coordinator.slots.count = run._coordinator.tasks, 4
    for number, task in enumerate(tasks.values()):
        task.slot = number % 4
    return run, tasks


@pytest.mark.parametrize(("most", "lag"), [(1, 10_000), (2, 5)])
def test_tasks_go_to_an_executor_that_joins_once_they_are_warmed_up_and_run_all_the_time(tmp_path, cluster, most, lag):
    place = place_of(tmp_path, max_warmup_replicas=most, acceptable_recovery_lag=lag)
    run, tasks = started(place)
    run.run(Event(), until_caught_up=True)
    assert Counter(cluster.homes) == {"1": 2, "2": 2}
    assert Counter(cluster.homes[task.slot] for task in tasks.values()) == {"1": TASKS // 2, "2": TASKS // 2}
    gone = [task for task, slot, _ in cluster.moves]
    assert len(gone) == len(set(gone)) == TASKS // 2, "each moves once"
    assert {cluster.homes[slot] for _, slot, _ in cluster.moves} == {"2"}
    assert [restored.source[:13] for restored in place.restores.done] == ["standby of 1."] * len(gone)
    assert not any(followed.error for followed in place.standbys.done)
    assert max(Counter(number for *_, number in cluster.moves).values()) <= most
    for task, _, number in cluster.moves:
        assert all(task in epoch for epoch in cluster.epochs[:number]), f"{task} rests before it moves"
        assert task in cluster.epochs[number] | cluster.epochs[number + 1], f"{task} rests after it has moved"
    assert totals(place) == expected(place)


def test_a_task_whose_store_does_not_get_there_goes_on_where_it_is(tmp_path, cluster):
    place = place_of(tmp_path)
    run, tasks = started(place)
    place.standbys.finished = lambda: []
    run.run(Event(), until_caught_up=True)
    assert len({request.task for request in place.standbys.waiting}) == 2, "as many as may be warmed up"
    assert place.restores.done == []
    assert {cluster.homes[task.slot] for task in tasks.values()} == {"1"}
    assert totals(place) == expected(place)


def test_what_tasks_have_left_is_their_standby_there_and_takes_them_back(tmp_path, cluster, monkeypatch):
    """Once another executor has joined, half of the tasks go there, and it is lost once each has a standby where it
    was: no standby is built there, and none is missing."""
    place = place_of(tmp_path, Hosts, standby_replicas=1)
    place.use(monkeypatch)
    run, tasks = started(place)
    built, lost, restore_task = list[str](), Event(), standby.restore_task

    def noted(app_folder: object, folder: Path, *arguments: object, **options: object) -> TaskStore:
        built.append(str(folder.relative_to(tmp_path)).partition("/")[0])
        return restore_task(app_folder, folder, *arguments, **options)

    def is_lost() -> bool:
        gone = {task for task, *_ in cluster.moves}
        if len(gone) == TASKS // 2 and all(at_rest(tasks[task].standbys.get("1")) for task in gone):
            lost.set()
        return lost.is_set()

    monkeypatch.setattr(standby, "restore_task", noted)
    monkeypatch.setattr(InlineSlots, "executors", lambda slots: ["1"] if is_lost() else cluster.executors())
    monkeypatch.setattr(
        InlineSlots, "lost", lambda slots: [slot for slot, at in enumerate(cluster.homes) if at == "2" and is_lost()]
    )
    run.run(Event(), until_caught_up=True)
    assert set(built) == {"executor-2"}
    begun = {each.request.task: each.request for each in reversed(place.standbys.done) if each.request.executor == "1"}
    assert [each.anew for each in begun.values()] == [True] * (TASKS // 2), "what was there before is not trusted"
    there, back = place.restores.done[: TASKS // 2], place.restores.done[TASKS // 2 :]
    assert {each.request.task for each in there} == {each.request.task for each in back}
    assert [each.source[:13] for each in [*there, *back]] == ["standby of 1."] * TASKS
    assert {cluster.homes[task.slot] for task in tasks.values()} == {"1"}
    assert totals(place) == expected(place)


def at_rest(standing: Standing | None) -> bool:
    return standing is not None and not standing.is_left


def test_a_task_goes_back_to_what_it_has_left_before_that_has_followed(tmp_path, cluster, monkeypatch):
    place = place_of(tmp_path, Hosts)
    place.use(monkeypatch)
    run, tasks = started(place)
    lost = Event()

    def is_lost() -> bool:
        if any(task.standbys.get("1") is not None for task in tasks.values()):
            lost.set()
        return lost.is_set()

    monkeypatch.setattr(InlineSlots, "executors", lambda slots: ["1"] if is_lost() else cluster.executors())
    monkeypatch.setattr(
        InlineSlots, "lost", lambda slots: [slot for slot, at in enumerate(cluster.homes) if at == "2" and is_lost()]
    )
    run.run(Event(), until_caught_up=True)
    assert {followed.request.executor for followed in place.standbys.done} == {"2"}
    there, back = place.restores.done[:-1], place.restores.done[-1:]
    assert back[0].request.task in {each.request.task for each in there}
    assert [each.source[:13] for each in [*there, *back]] == ["standby of 1."] * (len(there) + 1)
    assert (
        not place.folder_on("1")
        .joinpath(place.name_of(str(back[0].request.task)), back[0].request.left.instance)
        .exists()
    )
    assert totals(place) == expected(place)


@dataclass
class Loads:
    """Tasks with stores on executors of two slots, and what each will have to do, as a coordinator knows it."""

    work_s: dict[TaskId, float]
    slot_of: dict[TaskId, int]
    count: int
    sizes: int = 2
    are_logged: bool = True

    def __post_init__(self) -> None:
        self.metrics = SimpleNamespace(
            work_s=lambda task, lag, seconds: self.work_s[TaskId.parse(task)] * seconds / AHEAD_S,
            state_bytes=lambda task: 0,
        )
        self.slots = SimpleNamespace(
            count=self.count,
            executor_of=lambda slot: str(slot // self.sizes),
            executors=lambda: [str(number) for number in range(-(-self.count // self.sizes))],
            rack_of=lambda executor: None,
            lost=list,
        )
        commit = TaskCommit(state=StateId(1, 1), instance="first")
        self.tasks = {id_: replace(Task.of(id_, (), commit), slot=slot) for id_, slot in self.slot_of.items()}
        self.assignments = Assignments(self.tasks, self.slots)
        self.whereabouts = SimpleNamespace(may_leave=lambda task: True, slots_at=self.slots_at)

    def stores(self, task: TaskId) -> list[object]:
        return [SimpleNamespace(supplier=None, is_logged=self.are_logged)]

    def slots_at(self, executors: Mapping[TaskId, str]) -> dict[TaskId, int]:
        found = dict[TaskId, int]()
        for id_, executor in executors.items():
            taken = [*found.values()]
            slots = [slot for slot in range(self.count) if self.slots.executor_of(slot) == executor]
            found[id_] = min(
                slots, key=lambda slot: (taken.count(slot), sum(task.slot == slot for task in self.tasks.values()))
            )
        return found


def look(loads: Loads, assigning: Assigning) -> list[TaskId]:
    """One look, after which warm-ups are there at once, and what moves has moved."""
    assigning.look({})
    found = assigning.current()
    for executor, each in found.executors.items() if found else ():
        for task in each.warm_up:
            loads.tasks[task].standbys[executor] = Standing(state=StateId(1, 1), at_s=0.0)
    slots, _ = assigning.moves()
    for task, slot in slots.items():
        loads.tasks[task].slot = slot
    return sorted(slots)


def busiest_s(loads: Loads, work_s: Mapping[TaskId, float]) -> float:
    found = Counter[str]()
    for id_, task in loads.tasks.items():
        found[loads.slots.executor_of(task.slot)] += work_s[id_]
    return round(max(found.values()), 6)


def test_a_task_leaves_an_executor_that_has_had_more_to_do_for_a_while():
    tasks = [TaskId(0, number) for number in range(4)]
    loads = Loads(dict(zip(tasks, [5.0, 5.0, 0.1, 0.1], strict=True)), {tasks[n]: n for n in range(4)}, 4)
    assigning = Assigning(loads, Assignors(probing_interval_s=0.0), {})
    assert [look(loads, assigning) for _ in range(SUSTAINED - 1)] == [[]] * (SUSTAINED - 1)
    moved = [task for _ in range(3) for task in look(loads, assigning)]
    assert len({loads.tasks[task].slot // 2 for task in tasks[:2]}) == 2
    assert len(moved) == len(set(moved)) == 2, "it changes places with a light one"


def test_a_moment_with_more_to_do_moves_nothing():
    tasks = [TaskId(0, number) for number in range(4)]
    loads = Loads(dict.fromkeys(tasks, 4.0), {tasks[n]: n for n in range(4)}, 4)
    assigning = Assigning(loads, Assignors(probing_interval_s=0.0), {})
    for _ in range(5):
        loads.work_s = dict(zip(tasks, [9.0, 9.0, 1.0, 1.0], strict=True))
        assert [look(loads, assigning) for _ in range(SUSTAINED - 1)] == [[]] * (SUSTAINED - 1)
        loads.work_s = dict.fromkeys(tasks, 4.0)
        assert look(loads, assigning) == []


@given(st.lists(st.integers(0, 90), min_size=2, max_size=12), st.integers(2, 3), st.randoms(use_true_random=False))
def test_whatever_moves_relieves_the_busiest_so_nothing_goes_to_and_fro(costs, executors, rng):
    """Measurements vary by less than what a move must bring."""
    tasks = [TaskId(number % 2, number // 2) for number in range(len(costs))]
    true_s = dict(zip(tasks, (cost / 10 for cost in costs), strict=True))
    loads = Loads(dict(true_s), {task: rng.randrange(2 * executors) for task in tasks}, 2 * executors)
    assigning = Assigning(loads, Assignors(probing_interval_s=0.0), {})
    at_rest = list[float]()
    for number in range(40):
        loads.work_s = {task: seconds * rng.uniform(1 - GAIN / 4, 1 + GAIN / 4) for task, seconds in true_s.items()}
        is_at_rest = not look(loads, assigning) and not assigning.current().follow_up
        if is_at_rest and number > len(tasks):
            at_rest.append(busiest_s(loads, true_s))
    assert at_rest == sorted(at_rest, reverse=True)
    assert len(set(at_rest)) < 5


class Forgets:
    def assign(self, state):
        return TaskAssignment(executors={})


def test_an_answer_that_cannot_be_carried_out_is_logged_and_changes_nothing(caplog):
    tasks = [TaskId(0, number) for number in range(2)]
    loads = Loads(dict.fromkeys(tasks, 4.0), dict.fromkeys(tasks, 0), 4)
    assigning = Assigning(loads, Assignors(name="mine:Forgets", assignor=Forgets()), {})
    assert (assigning.current(), assigning.moves()) == (None, ({}, {}))
    assert caplog.text.count("assignor 'mine:Forgets': MISSING_PROCESS_ID") == 1


class Notes(HighAvailabilityAssignor):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[ApplicationState] = []

    def assign(self, state, /):
        self.told.append(state)
        return super().assign(state)


def test_an_assignor_is_told_what_was_measured():
    """The costs of before the run, until executors have changed; then those of the last minute."""
    one, other = tasks = [TaskId(0, 0), TaskId(0, 1)]
    loads = Loads({one: 4.0, other: 1.0}, {one: 0, other: 2}, 4)
    loads.metrics.state_bytes = {str(one): 8_192, str(other): 4_096}.__getitem__
    loads.slots.rack_of = {"0": "a", "1": "b", "2": None}.__getitem__
    notes = Notes()
    assigning = Assigning(loads, Assignors(assignor=notes, standby_replicas=1), {one: 300.0, other: 200.0})
    assert assigning.current().executors["1"].standby == {one}
    loads.tasks[one].standbys["1"] = Standing(state=StateId(1, 0), at_s=0.0, logged=10)
    loads.tasks[one].logged = 25
    loads.count = loads.slots.count = 6
    assert assigning.current() is assigning.current()
    before, after = notes.told
    assert [before.tasks[task].cost for task in tasks] == [300.0, 200.0]
    assert [after.tasks[task].cost for task in tasks] == [0.8, 0.2]
    assert [after.tasks[task].state_bytes for task in tasks] == [8_192, 4_096]
    assert [(name, each.slots, each.rack) for name, each in after.executors.items()] == [
        ("0", 2, "a"),
        ("1", 2, "b"),
        ("2", 2, None),
    ]
    assert (after.executors["1"].lags, after.executors["1"].standby) == ({one: 15}, {one})
    assert after.executors["0"].active == {one}


def test_standbys_go_to_another_rack_if_racks_count():
    tasks = [TaskId(0, number) for number in range(4)]
    loads = Loads(dict.fromkeys(tasks, 1.0), {task: 2 * number for number, task in enumerate(tasks)}, 8)
    loads.slots.rack_of = {"0": "a", "1": "a", "2": "b", "3": "b"}.__getitem__
    found = Assigning(loads, Assignors(name="rack_aware", standby_replicas=1), {}).current()
    for number, task in enumerate(tasks):
        (keeps,) = [executor for executor, given in found.executors.items() if task in given.standby]
        assert int(keeps) // 2 != number // 2
