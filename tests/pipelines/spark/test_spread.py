"""Which slot each task runs in."""

from __future__ import annotations

import struct
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Int64, StreamsBuilder, String
from weir.pipelines.spark.spread import BUSY_S, GAIN, evened, freest, relieved, shared_out, spread
from weir.state.types import TaskId

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
"""Partitions by sub-topology."""


def tasks_of(counts: list[int]) -> list[TaskId]:
    return [TaskId(index, partition) for index, count in enumerate(counts) for partition in range(count)]


@given(COUNTS, st.integers(1, 12), st.data())
def test_slots_differ_by_one_task_at_most(counts, slots, data):
    tasks = tasks_of(counts)
    costs = data.draw(st.dictionaries(st.sampled_from(tasks), st.floats(0, 1e6)))
    found = spread(tasks, slots, costs)
    assert found.keys() == set(tasks)
    sizes = Counter(found.values())
    assert max(sizes.values()) - min(sizes[slot] for slot in range(slots)) <= 1
    assert set(sizes) <= set(range(slots))


@given(COUNTS, st.integers(1, 12))
def test_each_sub_topology_is_spread_too_while_no_cost_is_known(counts, slots):
    found = spread(tasks_of(counts), slots, {})
    for index, count in enumerate(counts):
        sizes = Counter(found[TaskId(index, partition)] for partition in range(count))
        assert max(sizes.values()) - min(sizes[slot] for slot in range(slots)) <= 1


@given(COUNTS, st.integers(1, 6), st.data())
def test_loads_differ_by_no_more_than_the_costliest_task(counts, slots, data):
    """The bound of dealing in rounds: each round evens out what the one before left."""
    tasks = tasks_of(counts)
    costs = {task: data.draw(st.integers(0, 1_000)) for task in tasks}
    loads = [0] * slots
    for task, slot in spread(tasks, slots, costs).items():
        loads[slot] += costs[task]
    assert max(loads) - min(loads) <= max(costs.values())


def test_the_tasks_that_cost_most_are_in_slots_of_their_own():
    tasks = tasks_of([4, 2, 2])
    found = spread(tasks, 5, {TaskId(0, 0): 50.0, TaskId(0, 1): 40.0, TaskId(1, 1): 30.0})
    assert len({found[TaskId(0, 0)], found[TaskId(0, 1)], found[TaskId(1, 1)]}) == 3
    assert sorted(Counter(found.values()).values()) == [1, 1, 2, 2, 2]


def waits(user: str, wait_ms: int) -> bool:
    time.sleep(wait_ms / 1000)
    return True


def test_a_run_spreads_tasks_by_what_all_runs_before_have_measured(tmp_path):
    """Two of four partitions take long; while nothing is known, they share a slot."""
    slow, wait_ms, records = {0, 2}, 50, 4
    rows = [
        [(b"ann", struct.pack(">q", wait_ms * (partition in slow)), number) for number in range(records)]
        for partition in range(4)
    ]
    builder = StreamsBuilder()
    builder.stream("calls", key=String("user"), value=Int64("wait_ms")).filter(waits).to_delta("out")
    place = Place(
        Application("app", builder, commit_interval=timedelta(milliseconds=1)),
        Topics({("calls", partition): list(rows[partition]) for partition in range(4)}),
        tmp_path,
    )

    def slots_of_the_slow() -> set[int]:
        spec = replace(place.spec(), slots=2, newest=place.commit_before())
        return {spec.slot_of[TaskId(0, partition)] for partition in slow}

    assert len(slots_of_the_slow()) == 1
    for runs in (1, 2):
        place.run()
        for partition in range(4):
            task = place.commit_before().tasks[place.name_of(f"0_{partition}")]
            assert task.busy_s >= runs * records * wait_ms / 1000 * (partition in slow)
            place.topics.rows["calls", partition] += rows[partition]
        assert len(slots_of_the_slow()) == 2


FOUR = {TaskId(0, 0): 0, TaskId(0, 1): 1, TaskId(1, 0): 2, TaskId(1, 1): 2}
"""The slots of four tasks."""


@pytest.mark.parametrize(
    ("slots", "costs", "slot"),
    [
        (3, {}, 1),
        (3, {TaskId(0, 1): 0.5, TaskId(1, 0): 0.2, TaskId(1, 1): 0.2}, 2),
        (3, {TaskId(0, 1): 0.3, TaskId(1, 0): 0.2, TaskId(1, 1): 0.2}, 1),
        (4, {}, 3),
        (1, {}, 0),
    ],
)
def test_the_freest_slot_is_another_one_whose_tasks_cost_least(slots, costs, slot):
    """Without costs, the one with the fewest tasks."""
    slot_of = FOUR if slots > 1 else dict.fromkeys(FOUR, 0)
    assert freest(TaskId(0, 0), slot_of, slots, costs) == slot


@pytest.mark.parametrize(
    ("held", "slots", "costs", "moves"),
    [
        ([0, 0, 0, 0], 2, [4, 3, 2, 1], {1: 1, 3: 1}),
        ([0, 0, 0, 0], 3, [4, 3, 2, 1], {1: 1, 2: 2, 3: 1}),
        ([0, 0, 1, 1], 3, [1, 1, 2, 2], {3: 2}),
        ([0, 1], 4, [9, 9], {}),
        ([0, 0, 1], 2, [9, 9, 0], {}),
    ],
)
def test_tasks_of_the_fullest_slots_move_into_empty_ones(held, slots, costs, moves):
    tasks = [TaskId(0, number) for number in range(len(held))]
    found = relieved(dict(zip(tasks, held, strict=True)), slots, dict(zip(tasks, costs, strict=True)), tasks)
    assert {task.partition: slot for task, slot in found.items()} == moves


@pytest.mark.parametrize(
    ("held", "slots", "resting", "moves"),
    [
        pytest.param([0, 1, 1], 3, {1, 2}, {2: 2}, id="a slot whose only task is at work is not empty"),
        pytest.param([0, 0, 0], 2, {1, 2}, {1: 1}, id="what is at work stays"),
        pytest.param([0, 0], 2, {0}, {0: 1}, id="the one at rest moves"),
        pytest.param([0, 0], 2, (), {}, id="nothing rests"),
    ],
)
def test_tasks_at_work_stay_and_their_slots_are_not_empty(held, slots, resting, moves):
    tasks = [TaskId(0, number) for number in range(len(held))]
    found = relieved(dict(zip(tasks, held, strict=True)), slots, {}, {tasks[number] for number in resting})
    assert {task.partition: slot for task, slot in found.items()} == moves


@pytest.mark.parametrize(
    ("held", "slots", "work_s", "moves"),
    [
        pytest.param([0, 1, 0, 1], 2, [6, 1.3, 1.3, 1.4], {2: 1}, id="the heavy one gets a slot to itself"),
        pytest.param([0, 0, 0, 1], 2, [1, 1, 1, 0.5], {}, id="nobody is busy"),
        pytest.param([0, 1, 1], 2, [9.5, 2, 2], {}, id="one task cannot be divided"),
        pytest.param([0, 0, 1], 2, [5, 4, 8.5], {}, id="what little a move brings is not worth it"),
        pytest.param([0, 0, 0, 0], 2, [2.4] * 4, {0: 1, 1: 1}, id="several move at once"),
        pytest.param([0, 0], 1, [5, 5], {}, id="there is one slot"),
    ],
)
def test_tasks_leave_a_busy_slot_for_those_with_less_work(held, slots, work_s, moves):
    tasks = [TaskId(0, number) for number in range(len(held))]
    found = evened(dict(zip(tasks, held, strict=True)), slots, dict(zip(tasks, work_s, strict=True)))
    assert {task.partition: slot for task, slot in found.items()} == moves


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.floats(0, 9)), min_size=1, max_size=12))
def test_evened_slots_are_relieved_and_then_stay(slots, placed):
    tasks = {TaskId(0, number): slot % slots for number, (slot, _) in enumerate(placed)}
    work_s = {task: seconds for task, (_, seconds) in zip(tasks, placed, strict=True)}

    def greatest(slot_of):
        return max(sum(work_s[task] for task, slot in slot_of.items() if slot == each) for each in range(slots))

    after = tasks | (moves := evened(tasks, slots, work_s))
    if moves:
        assert greatest(tasks) >= BUSY_S
        assert greatest(after) <= greatest(tasks) + 1e-9
    assert evened(after, slots, work_s) == {}
    if slots == 2 and greatest(after) >= BUSY_S:
        ideal = max(*work_s.values(), sum(work_s.values()) / slots, 0.0)
        assert greatest(after) <= (ideal + max(work_s.values()) / 2) / (1 - GAIN) + 1e-9


def test_slots_without_tasks_go_first_to_an_executor_that_has_joined():
    assert shared_out(["1", "1", "1", "1"], ["1", "2"], {0, 1, 2, 3}, {0}) == {0: "2", 3: "2"}
    assert shared_out(["1", "1", "1", "1"], ["1", "2"], {0, 1, 2, 3}) == {3: "2", 2: "2"}
