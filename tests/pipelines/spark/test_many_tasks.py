"""What the driver does for an epoch grows with the tasks, no faster, and little of it is for tasks without records.

Lines that are run are counted, so it does not matter how fast the machine is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from bench.many_tasks import Turns
from weir.infra.spark import DRIVER


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of Python ``work`` goes through in this thread; each turn of a loop counts."""
    lines, before = 0, sys.gettrace()

    def note(frame: FrameType, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return note

    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_a_start_with_ten_times_the_tasks_is_ten_times_the_work(tmp_path):
    few, many = (
        lines_of(lambda: Turns(tmp_path / str(tasks), tasks, 2, slots=4).close())  # noqa: B023
        for tasks in (100, 1_000)
    )
    assert many < 11 * few


@pytest.fixture
def turns(tmp_path) -> Iterator[Callable[[int, int], Turns]]:
    """Makes drivers with so many tasks and sub-topologies, which have run two epochs and made a commit."""
    made: list[Turns] = []

    def make(tasks: int, sub_topologies: int) -> Turns:
        found = Turns(tmp_path / str(len(made)), tasks, sub_topologies, slots=tasks // 10)
        made.append(found)
        found.run(2, 1.0)
        found.coordinator.commit("test")
        return found

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("sub_topologies", [1, 4])
def test_ten_times_the_tasks_are_ten_times_the_work(turns, sub_topologies):
    few, many = turns(100, sub_topologies), turns(1_000, sub_topologies)
    for work in (
        lambda driver: driver.run(1, 1.0),
        lambda driver: driver.run(1, 0.0),
        lambda driver: driver.coordinator.commit("test"),
        lambda driver: driver.report(),
        lambda driver: driver.coordinator.whereabouts.even_slots(driver.ends),
        lambda driver: driver.end(),
    ):
        assert lines_of(lambda: work(many)) < 11 * lines_of(lambda: work(few))  # noqa: B023


def test_slots_for_tasks_that_come_are_found_by_one_look_at_all_of_them(tmp_path):
    found = []
    for tasks in (100, 1_000):
        driver = Turns(tmp_path / str(tasks), tasks, 1, slots=4)
        coming = dict.fromkeys(driver.coordinator.tasks, DRIVER)
        found.append(lines_of(lambda: driver.coordinator.whereabouts.slots_at(coming)))  # noqa: B023
        slots = Counter(driver.coordinator.whereabouts.slots_at(coming).values())
        assert slots == dict.fromkeys(range(4), tasks // 4)
        driver.close()
    assert found[1] < 11 * found[0]


def test_a_task_without_records_is_a_small_part_of_the_work_of_one_with_records(turns):
    driver = turns(400, 1)
    every, none = lines_of(lambda: driver.run(1, 1.0)), lines_of(lambda: driver.run(1, 0.0))
    assert none < every / 5


def test_a_long_history_does_not_add_to_an_epoch(turns):
    driver = turns(100, 1)
    early = lines_of(lambda: driver.run(1, 1.0))
    driver.run(47, 1.0)
    assert lines_of(lambda: driver.run(1, 1.0)) < 1.1 * early


def test_the_row_of_a_commit_grows_with_the_tasks(tmp_path):
    lengths = []
    for tasks in (40, 400):
        driver = Turns(tmp_path / str(tasks), tasks, 1, slots=4)
        driver.run(2, 1.0)
        driver.coordinator.commit("test")
        lengths.append(driver.row_bytes())
        driver.close()
    assert 5 < lengths[1] / lengths[0] < 11
    assert lengths[1] / 400 < 600
