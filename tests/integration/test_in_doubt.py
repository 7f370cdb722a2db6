"""A flipped bit in a store of a running application, on a real broker and real Spark (PROTOCOL 41).

The tables and every row that the changelog ever had are compared with sums over the records alone.
"""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.faults.applications import records
from tests.integration.place import Place
from tests.pipelines.spark.damage import flip_a_bit
from tests.waiting import wait_for
from weir.pipelines.operations.doubts import doubts
from weir.pipelines.operations.registry import register
from weir.pipelines.operations.verify import verify_application
from weir.state.changelog.verify import StateDifferenceError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.copies import committed_copy
from weir.state.engine.instances import current_instance
from weir.state.storage.places import folder_at
from weir.state.types import TaskId

pytestmark = [pytest.mark.broker, pytest.mark.spark]

VICTIM, USER = TaskId(0, 3), "user-7"
"""A task, and a user of its partition."""


@pytest.fixture
def place(settings, broker, kafka_admin) -> Callable[[str], Place]:
    """``place(name)`` is the place of an application, on the shared broker."""
    return lambda name: Place(name, settings.model_copy(update={"bootstrap_servers": broker}), kafka_admin)


def sums(count: int) -> dict[str, list[tuple[int, int]]]:
    """By user, the total and the number of events after each of the first ``count`` records."""
    found = defaultdict(list)
    for _, user, value, _ in records(count):
        total, events = found[user.decode()][-1] if found[user.decode()] else (0, 0)
        found[user.decode()].append((total + json.loads(value)["amount"], events + 1))
    return found


def rows(there: Place, table: str) -> list[tuple[str, int, int]]:
    return list(read_table(there.warehouse / table).select("user", "total", "events").iter_rows())


def flip_at_rest(instance: Path) -> None:
    """Flip a bit once nobody writes the store: what a worker writes at that moment would undo it."""
    looks = [b""]

    def is_at_rest() -> bool:
        looks.append((instance / "data.mdb").read_bytes())
        return looks.pop(0) == looks[0]

    wait_for(is_at_rest, "nobody writes the store")
    flip_a_bit(instance, USER)


def knows_of_its_commit(there: Place) -> bool:
    """Whether nothing of the task's store is undone before it is compared: a flipped bit would be, too."""
    task = there.name_of(VICTIM)
    with committed_copy(current_instance(there.state_of(VICTIM)), task) as copy:
        return copy.base == newest_commit(folder_at(there.settings.warehouse), "faulty").tasks[task].state


def find(there: Place) -> str:
    """The difference, found while the application runs or not."""
    with pytest.raises(StateDifferenceError, match=f"key user={USER}") as caught:
        list(verify_application(there.settings, there.app))
    assert caught.value.task_id == str(VICTIM)
    return str(caught.value)


def is_restored(there: Place, difference: str) -> bool:
    """Whether nobody is in doubt any more; until then, the check fails with the difference that was found."""
    (kept,) = doubts(there.settings, "faulty") or [None]
    assert kept is None or kept.difference == difference
    return kept is None


def assert_as_if_nothing_had_been(there: Place, count: int, before: str) -> None:
    wanted = sums(count)
    assert {user: tuple(both) for user, *both in rows(there, "user_sums")} == {
        user: after[-1] for user, after in wanted.items()
    }
    assert all((total, events) in wanted[user] for user, total, events in rows(there, "_changelog/sums"))
    assert current_instance(there.state_of(VICTIM)).name != before
    assert len(list(verify_application(there.settings, there.app))) == 8


def end(driver) -> None:
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 0, errors


def test_a_flipped_bit_of_a_running_application_never_reaches_the_changelog(place):
    there = place("flipped")
    register(there.settings, "faulty", there.reference)
    driver = there.start()
    try:
        wait_for(lambda: there.has_counted(2_000), "it has caught up")
        wait_for(lambda: knows_of_its_commit(there), "the task knows that its last epoch is committed")
        instance = current_instance(there.state_of(VICTIM))
        flip_at_rest(instance)
        difference = find(there)
        for first in range(2_000, 3_000, 100):
            there.produce(first, first + 100)
        wait_for(lambda: is_restored(there, difference), "the task is restored")
        wait_for(lambda: there.has_counted(3_000), "everything is counted")
        reason = there.state_of(VICTIM) / "quarantine" / instance.name / "reason.txt"
        assert difference in reason.read_text()
    finally:
        end(driver)
    assert_as_if_nothing_had_been(there, 3_000, instance.name)


def test_a_driver_that_is_killed_before_it_sees_the_mark_leaves_the_restore_to_the_next(place):
    there = place("killed")
    register(there.settings, "faulty", there.reference)
    driver = there.start()
    try:
        wait_for(lambda: there.has_counted(2_000), "it has caught up")
        wait_for(lambda: knows_of_its_commit(there), "the task knows that its last epoch is committed")
        workers = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGSTOP)  # perhaps while it writes to the control database
        instance = current_instance(there.state_of(VICTIM))
        flip_at_rest(instance)
        difference = find(there)
        there.produce(2_000, 3_000)
    finally:
        driver.kill()
        driver.communicate()
    psutil.wait_procs(workers, timeout=60)
    assert not is_restored(there, difference)
    driver = there.start()
    try:
        wait_for(lambda: there.has_counted(3_000), "everything is counted")
        assert is_restored(there, difference)
    finally:
        end(driver)
    assert_as_if_nothing_had_been(there, 3_000, instance.name)
