"""The job that has every task publish a snapshot: asks the driver, then waits until a commit lists them.

Snapshots that are due by themselves (the setting ``snapshot_rows``) need no job.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.assets.partitions import task_partition_changes, tasks_of
from weir.orchestration.drivers.dagster_run import owner_of
from weir.orchestration.jobs.requests import RequestConfig, ask_driver
from weir.orchestration.jobs.shared import by_application, chosen, job_of
from weir.orchestration.partitions import make_changes
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.control import ask
from weir.pipelines.operations.errors import OperationError
from weir.state.changelog.snapshot import has_snapshots
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord, SnapshotRef
from weir.state.storage.places import folder_at

SNAPSHOT, SNAPSHOT_OP = "weir_snapshot", "weir_ask_snapshot"
LOOK_EVERY_S = 0.2
FIRST_COMMIT_S, LONGEST_COMMIT_S = 1.0, 30.0
"""After how long a commit is asked for, which lists what has been published by then, and at most between two; the pause
doubles each time."""
LIMIT_S = 600.0


def snapshot_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_snapshot``, with one partition per application."""

    @dg.op(name=SNAPSHOT_OP, description="Ask the driver for snapshots, and wait until a commit lists them.")
    def snapshot(context: dg.OpExecutionContext, config: RequestConfig, weir: WeirResource) -> None:
        supervised, settings = chosen(context, applications), weir.settings()
        before = newest_commit(folder_at(settings.warehouse), supervised.id)
        wanted = _tasks(supervised, settings, before)
        ask_driver(context, supervised, settings, "snapshot", config.reason)
        newest = _listing(context, supervised, settings, before, wanted)
        if newest is None:
            return
        make_changes(task_partition_changes(supervised, newest, context.instance), context.instance)
        for event in _materializations(supervised, newest, _published(before, newest)):
            context.log_event(event)

    return job_of(
        applications,
        SNAPSHOT,
        snapshot,
        by_application(applications),
        "Make the tasks of the running application publish snapshots, so that a later restore is faster.",
    )


def _tasks(supervised: Supervised, settings: Settings, newest: CommitRecord | None) -> set[str]:
    """The stored names of the tasks that the driver can have publish a snapshot."""
    status = ControlDatabase(settings.control_database_url).application_status(supervised.id)
    if newest is None or status is None:
        return set()
    running = {row.task for row in status.tasks if row.status == "running"}
    return {
        name
        for name, task in tasks_of(supervised, newest).items()
        if str(task) in running
        and newest.tasks[name].state is not None
        and has_snapshots(supervised.application.topology.sub_topology(task.sub_topology).stores)
    }


def _published(before: CommitRecord | None, newest: CommitRecord) -> Mapping[str, SnapshotRef]:
    """The snapshots that ``newest`` lists and ``before`` did not, by the stored names of their tasks."""
    earlier = {task.snapshot.path for task in before.tasks.values() if task.snapshot} if before else set()
    return {
        name: task.snapshot
        for name, task in newest.tasks.items()
        if task.snapshot is not None and task.snapshot.path not in earlier
    }


def _listing(
    context: dg.OpExecutionContext,
    supervised: Supervised,
    settings: Settings,
    before: CommitRecord | None,
    wanted: set[str],
) -> CommitRecord | None:
    """The first commit that lists a new snapshot of every task in ``wanted``; None if nothing was ever committed.

    Raises:
        dagster.Failure: The driver ended before, or it takes too long.
    """
    database, began_s, pause_s = ControlDatabase(settings.control_database_url), time.monotonic(), FIRST_COMMIT_S
    commit_at_s = began_s + pause_s
    while True:
        has_ended = database.has_ended(supervised.id)
        newest = newest_commit(folder_at(settings.warehouse), supervised.id)
        missing = wanted - _published(before, newest).keys() if newest is not None else wanted
        if not missing:
            return newest
        if has_ended or time.monotonic() - began_s > LIMIT_S:
            how = "the driver has ended" if has_ended else f"after {LIMIT_S:.0f} s"
            raise dg.Failure(
                f"no commit lists a new snapshot of {', '.join(sorted(missing))}: {how}; the driver's log says why",
                allow_retries=False,
            )
        if time.monotonic() >= commit_at_s:
            with contextlib.suppress(OperationError):  # has just ended
                ask(settings, supervised.id, "commit", by=owner_of(context.run_id), reason="to list snapshots")
            pause_s = min(2 * pause_s, LONGEST_COMMIT_S)
            commit_at_s = time.monotonic() + pause_s
        time.sleep(LOOK_EVERY_S)


def _materializations(
    supervised: Supervised, newest: CommitRecord, published: Mapping[str, SnapshotRef]
) -> Iterator[dg.AssetMaterialization]:
    tasks = tasks_of(supervised, newest)
    for name, snapshot in published.items():
        yield dg.AssetMaterialization(
            supervised.checkpoints,
            partition=str(tasks[name]),
            description=f"snapshot of {snapshot.state}, listed by commit {newest.state_id}",
            metadata={
                "kind": "snapshot",
                "state": str(snapshot.state),
                "rows": snapshot.rows,
                "bytes": snapshot.size_bytes,
                "rows_since_snapshot": newest.tasks[name].rows_since_snapshot,
                "committed_at": dg.MetadataValue.timestamp(newest.at_ms / 1000),
                "path": snapshot.path,
            },
        )
