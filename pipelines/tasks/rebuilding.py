"""Computes stores without changelogs again from their topic, in a folder of their own (PROTOCOL 38).

Only the operators between the topic and the store run: no output, sink, timer or other store sees the records again.
Where reading begins, and whether the topic still has the records, is up to ``weir.pipelines.spark.restores``.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from weir.pipelines.on_error import ErrorHandling
from weir.pipelines.tasks.ahead import Reader
from weir.pipelines.tasks.epoch import EpochRunner, TaskSettings, task_rows
from weir.pipelines.tasks.plan import OffsetRange, ReceiptStatus, TaskPlan
from weir.pipelines.topology import Topology
from weir.state.changelog.restore import OnProgress, RestoreProgress
from weir.state.commit.record import Beginning
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.instances import instance_folder
from weir.state.engine.task_store import TASK_STORE, TaskStore
from weir.state.errors import StateError
from weir.state.types import StateId, TaskId

EPOCH_RECORDS = 100_000
"""Records at a time."""

_INSTANCE = "rebuilt"
_LEAVE_OUT = ErrorHandling(deserialization="continue", processing="continue", overrules_expectations=True)
"""Records that fail again were left out the first time."""


class RebuildError(StateError):
    """A store cannot be computed again."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        return f"store {self.store!r} could not be computed again from its topic: {self.reason}"


def rebuilt(
    topology: Topology,
    folder: Path,
    store: str,
    partition: int,
    beginning: Beginning,
    end: int,
    clocks: Mapping[str, int],
    reader: Callable[[str, int], Reader],
    on_progress: OnProgress = lambda progress: None,
) -> TaskStore:
    """An open instance below ``folder``, which must not exist, with the rows of ``store`` at the offset ``end``.

    ``topology`` is ``Topology.rebuilding`` of the store, ``clocks`` are those of its operator at ``end``. Progress is
    told after each epoch.

    Raises:
        RebuildError: An epoch failed.
    """
    (sub_topology,) = topology.sub_topologies
    task, names = TaskId(sub_topology.index, partition), [spec.name for spec in sub_topology.stores]
    settings = TaskSettings(
        application_folder=str(folder / "warehouse"), state_folder=str(folder / "state"), partition_counts={}
    )
    name, state = topology.task_name(task), StateId(1, 1)
    instance = instance_folder(folder / "state" / name, _INSTANCE)
    created = TaskStore.create(instance, name, names)
    created.bulk_load({TASK_STORE: _batch(task_rows({}, beginning.clocks))}, state=state, generation=1)
    created.close()
    runner = EpochRunner(topology, settings, reader, lambda step: None, _LEAVE_OUT)
    position, is_ended, started = beginning.offset, False, time.monotonic()
    while not is_ended:
        is_ended = position >= end  # one more epoch, in which stream time moves to where it was
        ranges = () if is_ended else (_range(beginning.topic, partition, position, end),)
        following = StateId(1, state.epoch + 1)
        receipt = runner.run(
            TaskPlan(
                task=task,
                instance=_INSTANCE,
                state=following,
                expected=state,
                committed=state,
                now_ms=0,
                ranges=ranges,
                end_time_ms=max(clocks.values(), default=None) if is_ended else None,
            )
        )
        if receipt.status is ReceiptStatus.MAP_FULL:
            is_ended = False
        elif receipt.status is ReceiptStatus.DISK_FULL:
            raise OSError(errno.ENOSPC, receipt.error)
        elif receipt.status is not ReceiptStatus.DONE:
            raise RebuildError(store, receipt.error)
        else:
            state = following
            position = receipt.positions.get(beginning.topic, {}).get(partition, position)
            on_progress(
                RestoreProgress(
                    task=name,
                    source=f"the records of {beginning.topic}-{partition}",
                    from_snapshot=False,
                    rows=position - beginning.offset,
                    bytes_read=0,
                    bytes_total=0,
                    seconds=time.monotonic() - started,
                    computed=store,
                    records_total=end - beginning.offset,
                )
            )
    runner.settle(task, _INSTANCE, generation=1, committed=state, close=False)
    return TaskStoreCache.get(instance, name, names)


def _range(topic: str, partition: int, position: int, end: int) -> OffsetRange:
    return OffsetRange(topic=topic, partition=partition, start=position, end=min(end, position + EPOCH_RECORDS))


def _batch(rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[list[bytes], list[bytes]]]:
    keys, values = zip(*rows, strict=True)
    return [(list(keys), list(values))]
