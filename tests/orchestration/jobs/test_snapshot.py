"""The job that has tasks publish snapshots waits for the commit that lists them, and asks for it."""

import os
from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS, TASKS
from tests.waiting import wait_for
from weir.infra.control import TaskStatusRow, this_host
from weir.infra.control.rows import RequestRow
from weir.orchestration.application import definitions
from weir.orchestration.jobs import snapshot as module
from weir.orchestration.resources import WeirResource
from weir.pipelines.operations.registry import register
from weir.state.commit.record import CommitRecord, SnapshotRef
from weir.state.types import StateId


def with_snapshots(record: CommitRecord, rows: dict[str, int]) -> CommitRecord:
    """The same commit; these tasks have snapshots of so many rows."""
    tasks = {
        name: replace(task, snapshot=snapshot(name, record.epoch, rows[name])) if name in rows else task
        for name, task in record.tasks.items()
    }
    return replace(record, tasks=tasks)


def snapshot(task: str, epoch: int, rows: int) -> SnapshotRef:
    path = f"_snapshots/{task}/{epoch}.mdb"
    return SnapshotRef(path=path, state=StateId(1, epoch), size_bytes=100 * rows, crc32=0, rows=rows)


@pytest.fixture
def run(settings, database, instance, committer, monkeypatch):
    """``run(commit, drive, restoring)`` runs the job for an application whose newest commit is ``commit``, beside
    ``drive``, which stands for its driver; the text of its failure, empty if it succeeded."""
    monkeypatch.setattr(module, "FIRST_COMMIT_S", 0.0)
    register(settings, "flights", FLIGHTS.reference)

    def once(commit: CommitRecord, drive: Callable[[], None], restoring: tuple[str, ...] = ()) -> str:
        committer.commit(commit)
        lease = database.acquire_lease("flights", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=60)
        rows = [
            TaskStatusRow(task=task, slot=0, status="restoring" if task in restoring else "running")
            for task in ("0_0", "1_0")
        ]
        database.report_tasks("flights", rows)
        driver = Thread(target=lambda: (drive(), database.release(lease)))
        driver.start()
        job = definitions(FLIGHTS, weir=WeirResource(dir=str(settings.dir))).resolve_job_def("weir_snapshot")
        result = job.execute_in_process(instance=instance, partition_key="flights", raise_on_error=False)
        driver.join()
        failed = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        assert result.success == (not failed)
        return failed[0].user_failure_data.description if failed else ""

    return once


@pytest.fixture
def asked(database):
    """``asked(kind)`` waits for a request of that kind."""

    def wait(kind: str) -> RequestRow:
        def found() -> list[RequestRow]:
            return [request for request in database.pending_requests("flights") if request.kind == kind]

        wait_for(found, f"{kind} is asked")
        return found()[0]

    return wait


@pytest.fixture
def recorded(instance):
    """``recorded()`` is the metadata of each task's newest checkpoint."""

    def checkpoints() -> dict[str, dict[str, object]]:
        records = instance.fetch_materializations(FLIGHTS.checkpoints, limit=20).records
        events = [record.asset_materialization for record in reversed(records)]
        return {event.partition: {name: each.value for name, each in event.metadata.items()} for event in events}

    return checkpoints


def test_each_task_shows_the_snapshot_that_the_next_commit_lists(
    run, asked, database, instance, committer, commit_of, recorded
):
    first = with_snapshots(commit_of(1), {TASKS[0]: 3})

    def drive() -> None:
        database.finish_request(asked("snapshot").id, "publishing snapshots of 2 of 2 tasks")
        request = asked("commit")
        assert request.reason == "to list snapshots"
        committer.commit(with_snapshots(commit_of(2), {TASKS[0]: 4, TASKS[1]: 5}))
        database.finish_request(request.id, "committed epoch 2")

    assert run(first, drive) == ""
    assert instance.get_dynamic_partitions("flights_checkpoints") == ["0_0", "1_0"]
    shown = recorded()
    for task, name, rows in (("0_0", TASKS[0], 4), ("1_0", TASKS[1], 5)):
        expected = {"kind": "snapshot", "state": "1.2", "rows": rows, "bytes": 100 * rows}
        assert shown[task].items() >= expected.items()
        assert shown[task]["path"] == f"_snapshots/{name}/2.mdb"
    assert instance.get_materialized_partitions(FLIGHTS.checkpoints) == {"0_0", "1_0"}


def test_a_task_that_restores_is_not_waited_for(run, asked, database, committer, commit_of, recorded):
    def drive() -> None:
        database.finish_request(asked("snapshot").id, "publishing snapshots of 1 of 2 tasks")
        committer.commit(with_snapshots(commit_of(2), {TASKS[1]: 5}))

    assert run(commit_of(1), drive, restoring=("0_0",)) == ""
    assert recorded().keys() == {"1_0"}


def test_a_driver_that_ends_without_listing_a_snapshot_fails_the_run_which_names_the_task(
    run, asked, database, committer, commit_of, recorded
):
    def drive() -> None:
        database.finish_request(asked("snapshot").id, "publishing snapshots of 2 of 2 tasks")
        committer.commit(with_snapshots(commit_of(2), {TASKS[1]: 5}))

    said = run(commit_of(1), drive)
    assert said == f"no commit lists a new snapshot of {TASKS[0]}: the driver has ended; the driver's log says why"
    assert recorded() == {}


def test_without_a_driver_the_run_fails_and_names_the_job_that_starts_one(settings, instance, committer, commit_of):
    register(settings, "flights", FLIGHTS.reference)
    committer.commit(commit_of(1))
    job = definitions(FLIGHTS, weir=WeirResource(dir=str(settings.dir))).resolve_job_def("weir_snapshot")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failed.user_failure_data.description == "flights is not running; start it with the job flights_run"
    assert instance.fetch_materializations(dg.AssetKey(["flights", "checkpoints"]), limit=1).records == []
