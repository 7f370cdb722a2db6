"""Where the tasks of a program begin over what another program has committed.

A task goes on with the local stores of one committed task if they hold just what it needs. Otherwise it gets a state
that no local store holds, so its stores are restored from their changelogs, whichever tasks wrote them
(PROTOCOL 26). What is the same store is decided in ``weir.pipelines.topology.changes``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from weir.pipelines.topology.changes import Fate, Origin, TopologyChange, partition_of_task, sub_topology_of
from weir.pipelines.topology.clocks import clocks_of
from weir.pipelines.topology.topology import Topology
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.engine.instances import new_instance
from weir.state.types import BlobRef, StateId, StoreSpec, TaskId


def unlogged_of(stores: Sequence[StoreSpec], known: TaskCommit, change: TopologyChange | None) -> tuple[str, ...]:
    """Of a task's stores, those whose rows are not in their changelogs when it begins at ``known``; ``change`` is None
    before the first commit (PROTOCOL 37)."""
    empty = {store.name for store in stores}
    if change is not None:
        empty &= {*change.of(Fate.BEGINS_EMPTY, Fate.IS_REBUILT)}
    return tuple(
        store.name for store in stores if (not store.is_logged if store.name in empty else store.name in known.unlogged)
    )


@dataclass(frozen=True, kw_only=True)
class Beginnings:
    """Where the tasks of a new generation begin, over a commit of the same or another program."""

    record: CommitRecord
    change: TopologyChange
    topology: Topology
    state: StateId
    """Of tasks that are restored; no local store holds it."""

    def of(self, task: TaskId, topics: Sequence[str]) -> TaskCommit:
        """A task that reads ``topics``."""
        origin = self.change.origins[task.sub_topology]
        commit = self._going_on(task, origin) if origin.goes_on else self._gathered(task, origin)
        partition, known = task.partition, self.record.topics
        return replace(
            commit,
            positions={
                topic: {partition: known[topic].positions[partition]}
                for topic in topics
                if topic in known and partition in known[topic].positions
            },
            leader_epochs={
                topic: {partition: known[topic].leader_epochs[partition]}
                for topic in topics
                if topic in known and partition in known[topic].leader_epochs
            },
        )

    def is_restored(self, task: TaskId) -> bool:
        """Whether the task is restored from changelogs."""
        origin = self.change.origins[task.sub_topology]
        return origin.goes_on is None and (
            not self._stores(task).isdisjoint(self.change.restored) or any(True for _ in self._parts(task, origin))
        )

    def reason(self, task: TaskId) -> str:
        """Why the task is restored, as a part of a sentence."""
        stores = self._stores(task)
        told = [
            f"{each.store} {each.fate}" + (f" ({', '.join(each.notes)})" if each.notes else "")
            for each in self.change.stores
            if each.store in stores and each.fate not in (Fate.GOES_ON, Fate.BEGINS_EMPTY)
        ]
        return f"the program has changed: {'; '.join(told) or 'its stores were in other tasks'}"

    def pending(self) -> Iterable[tuple[TaskId, BlobRef]]:
        """The rows on their way between tasks, with the names that the tasks have now."""
        edges = {edge.name: edge for edge in self.topology.edges}
        for blob in self.record.pending_blobs:
            edge = edges[blob.edge]
            target = TaskId(edge.target, partition_of_task(blob.target))
            source = TaskId(edge.source, partition_of_task(blob.source))
            yield (
                target,
                replace(blob, target=self.topology.task_name(target), source=self.topology.task_name(source)),
            )

    @property
    def ended(self) -> list[str]:
        """Committed tasks with whose local stores no task goes on."""
        kept = {origin.goes_on for origin in self.change.origins.values()}
        return [task for task in self.record.tasks if sub_topology_of(task) not in kept]

    def _going_on(self, task: TaskId, origin: Origin) -> TaskCommit:
        """The committed task itself; its folder stays where it is, under its old name if it has another now."""
        name, name_now = f"{origin.goes_on}_{task.partition}", self.topology.task_name(task)
        committed = self.record.tasks[name]
        if name == name_now:
            return committed
        folder = os.path.normpath(os.path.join(name, committed.instance))
        return replace(committed, instance=os.path.relpath(folder, name_now))

    def _gathered(self, task: TaskId, origin: Origin) -> TaskCommit:
        """A task made of parts of committed tasks and of stores that come back; new, if there are none."""
        if not self.is_restored(task):
            return TaskCommit(state=None, instance=new_instance())
        empty = self._stores(task) & set(self.change.of(Fate.BEGINS_EMPTY, Fate.IS_REBUILT))
        back = self._stores(task) & set(self.change.of(Fate.COMES_BACK))
        aside = self.record.topology.aside if self.record.topology else {}
        clocks: dict[str, int] = {}
        for part in self._parts(task, origin):
            for name in part.clocks.keys() - clocks_of(empty | back, part.clocks).keys():
                clocks[name] = max(part.clocks[name], clocks.get(name, part.clocks[name]))
        for store in sorted(back):
            clocks |= aside[store].clocks.get(task.partition, {})
        return TaskCommit(state=self.state, instance=new_instance(), clocks=clocks, totals=self._totals(task))

    def _parts(self, task: TaskId, origin: Origin) -> Iterable[TaskCommit]:
        for name in origin.parts:
            if (part := self.record.tasks.get(f"{name}_{task.partition}")) is not None:
                yield part

    def _totals(self, task: TaskId) -> dict[str, int]:
        """The counts of the committed tasks that end; of those whose parts have become several tasks, in the first."""
        totals: dict[str, int] = {}
        for name in self.change.origins[task.sub_topology].parts:
            heirs = [index for index, origin in self.change.origins.items() if name in origin.parts]
            goes_on = any(origin.goes_on == name for origin in self.change.origins.values())
            part = self.record.tasks.get(f"{name}_{task.partition}")
            if part is not None and not goes_on and heirs[0] == task.sub_topology:
                for count, number in part.totals.items():
                    totals[count] = totals.get(count, 0) + number
        return totals

    def _stores(self, task: TaskId) -> set[str]:
        return {store.name for store in self.topology.sub_topology(task.sub_topology).stores}
