"""Whether a program may start over what is committed, and where tasks that have no committed state begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from deltalake import DeltaTable

from weir.pipelines.application import Application
from weir.pipelines.spark.errors import CommitLogLostError, PartitionCountError, PendingRowsError, TopologyChangedError
from weir.pipelines.tasks.tables import application_tables
from weir.pipelines.topology.changes import TopologyChange, compare
from weir.state.commit.log import COMMITS
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import require_fit
from weir.state.engine.instances import instances, new_instance


def admit(
    application: Application,
    app_folder: Path,
    committed: CommitRecord | None,
    source_counts: Mapping[str, int],
    accept_state_loss: bool,
) -> TopologyChange | None:
    """What a start changes, given the partitions of each source topic; None before the first commit.

    Raises:
        TopologyChangedError, PartitionCountError: Committed state would be lost, and that was not accepted.
        PendingRowsError: Rows between sub-topologies would be lost.
        TableSchemaError: A table's columns differ from those that the program writes.
    """
    if committed is None:
        return None
    counts = application.topology.partition_counts(source_counts)
    change = compare(committed, application.topology, counts)
    if change.is_blocked:
        raise PendingRowsError(application.id, change.pending_blobs)
    if change.loses_state and not accept_state_loss:
        if change.is_other_topology:
            raise TopologyChangedError(application.id, change.loss())
        topics = ", ".join(f"{topic}: {count} partitions" for topic, count in sorted(source_counts.items()))
        raise PartitionCountError(application.id, len(committed.tasks), sum(counts.values()), topics)
    if change.is_other_topology:
        for spec in application_tables(application.topology):
            require_fit(app_folder, spec)
    return change


def require_commit_log(application: Application, app_folder: Path, state_folder: Path) -> None:
    """Raise ``CommitLogLostError`` when something was committed but the log of it is gone, and with it every position.

    A first start writes to the log before anything else, so without one there is neither local state nor a table.
    """
    log = app_folder / COMMITS.name
    if DeltaTable.is_deltatable(str(log)):
        return
    tables = [spec.name for spec in application_tables(application.topology) if (app_folder / spec.name).exists()]
    if next(instances(state_folder), None) is not None:
        raise CommitLogLostError(application.id, str(log), f"local state in {state_folder}")
    if tables:
        raise CommitLogLostError(application.id, str(log), f"a table {tables[0]!r} beside it")


def without_state(record: CommitRecord, topics: Iterable[str], partition: int) -> TaskCommit:
    """A task that begins with empty stores at a commit's positions in one partition of ``topics``, whichever task read
    it."""
    wanted = set(topics)

    def of(kept: Callable[[TaskCommit], Mapping[str, Mapping[int, int]]]) -> dict[str, dict[int, int]]:
        return {
            topic: {partition: numbers[partition]}
            for task in record.tasks.values()
            for topic, numbers in kept(task).items()
            if topic in wanted and partition in numbers
        }

    return TaskCommit(
        state=None,
        instance=new_instance(),
        positions=of(lambda task: task.positions),
        leader_epochs=of(lambda task: task.leader_epochs),
    )
