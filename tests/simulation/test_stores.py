"""Processes of a world that have one store open: what one does with it takes nothing from another, as in real life."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import lmdb
import pytest

from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.stores import Stores, none_open
from weir.pipelines.tasks import epoch
from weir.state.engine.copies import committed_copy
from weir.state.engine.task_store import TaskStore
from weir.state.types import IsolationLevel, StateId


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(Random(1))


@pytest.fixture
def stores(scheduler):
    stores = Stores(scheduler)
    with stores.substituted():
        yield stores
    scheduler.end()
    stores.close_all()


@pytest.fixture
def instance(stores, tmp_path) -> Path:
    TaskStore.create(tmp_path / "0_0" / "first", "0_0", ["a"]).close()
    return tmp_path / "0_0" / "first"


def opened(folder: Path) -> TaskStore:
    """The store of a folder in the process that runs."""
    return epoch.TaskStoreCache.get(folder, "0_0", ["a"])


def rows(store: TaskStore) -> list[tuple[bytes, bytes]]:
    with store.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
        return list(reader.scan("a"))


def write(store: TaskStore) -> None:
    with store.session() as session:
        session.put_many("a", [b"key"], [b"value"])
        store.apply(
            session,
            state=StateId(1, 1),
            expected=None,
            generation=1,
            plan_hash="plan",
            make_receipt=lambda uncommitted: b"receipt",
        )


def run_beside(scheduler: Scheduler, one: Callable[[], object], other: Callable[[], object]) -> list[Process]:
    """``one`` until it sleeps for a second, then all of ``other``, then the rest."""
    first = scheduler.spawn("one", one)
    second = scheduler.spawn("other", lambda: (scheduler.sleep(0.5), other())[1])
    scheduler.run(lambda: not first.is_alive and not second.is_alive, 100)
    for process in (first, second):
        if process.error is not None:
            raise process.error
    return [first, second]


def test_a_store_that_another_process_closes_or_replaces_stays_open(scheduler, stores, instance, tmp_path):
    second = tmp_path / "0_0" / "second"
    TaskStore.create(second, "0_0", ["a"]).close()

    def write_late() -> list[tuple[bytes, bytes]]:
        store = opened(instance)
        scheduler.sleep(1.0)
        assert opened(instance) is store
        write(store)
        return rows(store)

    def close_and_replace() -> None:
        store = opened(instance)
        store.close(clean=True)
        epoch.TaskStoreCache.discard(instance)
        opened(instance)
        opened(second)

    first, _ = run_beside(scheduler, write_late, close_and_replace)
    assert first.result == [(b"key", b"value")]


def test_a_process_cannot_use_what_it_has_closed_itself(stores, instance):
    store = opened(instance)
    epoch.TaskStoreCache.discard(instance)
    with pytest.raises(lmdb.Error, match="has closed"):
        store.used_bytes  # noqa: B018


def test_a_store_is_copied_beside_the_process_that_has_it_open(scheduler, stores, instance):
    def write_and_wait() -> None:
        write(opened(instance))
        scheduler.sleep(1.0)

    def copied() -> tuple[object, object]:
        with committed_copy(instance, "0_0") as copy:
            return copy.base, rows(copy)

    _, second = run_beside(scheduler, write_and_wait, copied)
    assert second.result == (None, []), "nothing of it is committed"


def test_an_environment_is_closed_once_the_last_process_has_closed_it(scheduler, stores, instance):
    is_open: list[bool] = []

    def look() -> None:
        try:
            lmdb.open(str(instance), create=False).close()
            is_open.append(False)
        except lmdb.Error:
            is_open.append(True)

    def hold() -> None:
        opened(instance)
        scheduler.sleep(1.0)
        look()
        epoch.TaskStoreCache.discard(instance)
        look()

    run_beside(scheduler, hold, lambda: (opened(instance), epoch.TaskStoreCache.discard(instance), look()))
    assert is_open == [True, True, False]


def test_a_part_of_a_process_has_the_stores_of_that_process(scheduler, stores, instance):
    worker = none_open()

    def open_in_worker() -> TaskStore:
        with stores.using(worker):
            return opened(instance)

    first, second = run_beside(scheduler, open_in_worker, open_in_worker)
    assert first.result is second.result
