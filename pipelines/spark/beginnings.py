"""Where the tasks of a program begin over what another program has committed.

A task goes on with the local stores of one committed task if they hold just what it needs. Otherwise it gets a state
that no local store holds, so its stores are restored from their changelogs, whichever tasks wrote them
(PROTOCOL 26). What is the same store is decided in ``weir.pipelines.topology.changes``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weir.pipelines.tasks.epoch import partition_clock
from weir.pipelines.tasks.order import merge_clock
from weir.pipelines.topology.changes import Fate, Origin, TopologyChange, partition_of_task, sub_topology_of
from weir.pipelines.topology.topology import Topology
from weir.state.commit.record import CommitRecord, StoreAside, TaskCommit
from weir.state.engine.instances import new_instance
from weir.state.types import BlobRef, Positions, StateId, TaskId


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
        return replace(
            commit,
            positions={
                **_of_partition(self._left, topics, task.partition),
                **self._of_topics(topics, task.partition, lambda old: old.positions),
            },
            leader_epochs=self._of_topics(topics, task.partition, lambda old: old.leader_epochs),
        )

    def is_restored(self, task: TaskId) -> bool:
        """Whether the task is restored from changelogs."""
        origin = self.change.origins[task.sub_topology]
        has_rows = any(True for _ in self._parts(task, origin)) or bool(self._come_back(task))
        return origin.goes_on is None and has_rows

    def reason(self, task: TaskId) -> str:
        """Why the task is restored, as a part of a sentence."""
        stores = {store.name for store in self.topology.sub_topology(task.sub_topology).stores}
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
        """A task made of parts of committed tasks; new, if there are none."""
        if not self.is_restored(task):
            return TaskCommit(state=None, instance=new_instance())
        back = self._come_back(task)
        gone = self._empty_stores(task) | set(back)
        clocks: dict[str, int] = {}
        for part in self._parts(task, origin):
            for name, time_ms in part.clocks.items():
                if not any(_is_clock_of(name, store) for store in gone):
                    clocks[name] = max(time_ms, clocks.get(name, time_ms))
        for store, aside in back.items():
            before = aside.clocks.get(task.partition, {})
            clocks |= {name: time_ms for name, time_ms in before.items() if _is_clock_of(name, store)}
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

    def _empty_stores(self, task: TaskId) -> set[str]:
        stores = {store.name for store in self.topology.sub_topology(task.sub_topology).stores}
        return stores & set(self.change.of(Fate.BEGINS_EMPTY, Fate.IS_REBUILT))

    def _come_back(self, task: TaskId) -> dict[str, StoreAside]:
        aside = self.record.topology.aside if self.record.topology else {}
        back = set(self.change.of(Fate.COMES_BACK))
        stores = self.topology.sub_topology(task.sub_topology).stores
        return {store.name: aside[store.name] for store in stores if store.name in back}

    @property
    def _left(self) -> Positions:
        return self.record.topology.topics_left if self.record.topology else {}

    def _of_topics(
        self, topics: Sequence[str], partition: int, kept: Callable[[TaskCommit], Mapping[str, Mapping[int, int]]]
    ) -> dict[str, dict[int, int]]:
        """What commits keep of one partition of ``topics``, whichever task read it."""
        return {
            topic: offsets
            for task in self.record.tasks.values()
            for topic, offsets in _of_partition(kept(task), topics, partition).items()
        }


def _of_partition(
    numbers: Mapping[str, Mapping[int, int]], topics: Sequence[str], partition: int
) -> dict[str, dict[int, int]]:
    """What there is of one partition of ``topics``."""
    return {
        topic: {partition: found[partition]}
        for topic, found in numbers.items()
        if topic in topics and partition in found
    }


def _is_clock_of(clock: str, store: str) -> bool:
    """Whether a task's clock is that of ``store``: named after it, alone or with a prefix, or after both sides of a
    join. Clocks of topics, which may have the names of stores, are not."""
    is_of_topic = clock in (merge_clock(store), partition_clock(store))
    return not is_of_topic and store in clock.rpartition(":")[2].split("&")
