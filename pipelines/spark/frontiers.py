"""How far the sources of each task have come, and so which rows a task may take (PROTOCOL 31).

A source is a topic partition or a task that sends. It has more if records up to the ends of the plan are unread, or if
rows are on their way to it, however far upstream; edges that lead back do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import groupby

from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import TaskState
from weir.pipelines.tasks.order import BEFORE_ALL, Key, Mark, topic_mark
from weir.pipelines.topology import Topology
from weir.pipelines.topology.changes import partition_of_task
from weir.state.types import BlobRef, TaskId, TopicPartition


@dataclass(frozen=True, order=True)
class Frontier:
    """Nothing that a task still sends comes before ``key``."""

    key: Key
    via: tuple[TaskId, ...]
    """The tasks on which that depends: first the one that reads or takes next, last the task itself."""


class Frontiers:
    """The frontiers of all tasks at one moment."""

    def __init__(
        self,
        topology: Topology,
        tasks: Mapping[TaskId, Task],
        ends: Mapping[TopicPartition, int],
        given_up: Collection[TaskId] = (),
        rows_wait: bool | None = None,
    ) -> None:
        """``given_up``: tasks for whose topics and waiting rows nobody waits. ``rows_wait``: whether rows were on their
        way when the epoch began; None for whether they are now."""
        self._topology, self._tasks, self._ends, self._given_up = topology, tasks, ends, given_up
        self._rows_wait = any(task.pending for task in tasks.values()) if rows_wait is None else rows_wait
        self._of: dict[TaskId, Frontier] = {}
        self._senders: dict[int, list[tuple[Mark, Frontier]]] = {}
        """By sub-topology, those that send to it and have more, the one furthest behind first."""
        sending = {edge.source for edge in topology.edges if not edge.leads_back}
        by_sub_topology: dict[int, list[Task]] = {index: [] for index in sending}
        for task in tasks.values() if sending else ():
            if task.id.sub_topology in sending:
                by_sub_topology[task.id.sub_topology].append(task)
        for index in (sub_topology.index for sub_topology in topology.sub_topologies):  # writers come first
            self._senders[index] = sorted(self._senders_of(index, by_sub_topology))
            for task in by_sub_topology.get(index, ()):
                if (found := self._frontier(task)) is not None:
                    self._of[task.id] = found

    @property
    def may_hold(self) -> bool:
        """Whether rows of a task may have to wait for others: not if each task reads one topic and nothing else."""
        return bool(self._topology.edges) or any(len(each.sources) > 1 for each in self._topology.sub_topologies)

    def marks(self, task: Task, *, reads: Collection[str]) -> tuple[Mark, ...]:
        """Of the sources that have more, other than the topics that the task ``reads``, the two furthest behind."""
        marks = [mark for mark, _ in self._least(task)]
        marks += [mark for _, mark in self._topics(task, apart_from=reads)]
        return tuple(sorted(marks)[:2])

    def is_held(self, task: Task, topic: str) -> bool:
        """Whether none of the task's next records of ``topic`` could be taken: other tasks may still send rows that
        come before."""
        if not (least := self._least(task)):
            return False
        own = dict(self._topics(task)).get(topic)
        return own is not None and least[0][0] < own

    def takeable(self, task: Task, marks: Collection[Mark]) -> tuple[BlobRef, ...]:
        """The blobs of which the task may take at least the first row, given ``marks``."""
        return tuple(blob for blob, bound in self._bounds(task, marks) if bound is None)

    def waited_for(self, task: Task, *, by_topics: bool = False) -> tuple[TaskId, ...]:
        """The tasks on which it depends how long rows that have reached ``task`` wait, if some do: first the one that
        has to read, or to take rows, next. ``by_topics``: also what records that it has not read yet wait for."""
        if task.state is not TaskState.RUNNING or not (task.pending or (by_topics and self._has_several(task))):
            return ()
        via: dict[Mark, tuple[TaskId, ...]] = {mark: (task.id,) for _, mark in self._topics(task)}
        own = sorted(via)
        via |= {mark: frontier.via for mark, frontier in self._least(task)}
        bounds = [bound for _, bound in self._bounds(task, via) if bound is not None]
        if by_topics and own and min(via) < own[-1]:
            bounds.append(min(via))
        return via[min(bounds)] if bounds else ()

    def merge_ms(self, task: Task, topic: str) -> int | None:
        """The merge time with which the task's next record of ``topic`` is compared; None for its own time."""
        return task.merge_ms(topic, rows_wait=self._rows_wait)

    def is_given_up(self, task: Task) -> bool:
        """Whether nobody waits for the task's topics and waiting rows."""
        return task.id in self._given_up

    def _has_several(self, task: Task) -> bool:
        """Whether one source of the task may have to wait for another."""
        return len(task.topics) > 1 or bool(self._senders[task.id.sub_topology])

    def _least(self, task: Task) -> list[tuple[Mark, Frontier]]:
        """Of those that send to the task and have more, the two furthest behind. What a sender has sent last comes
        before all that it still sends, even if its own records begin anew."""
        senders = self._senders[task.id.sub_topology]
        if not task.pending:
            return senders[:2]
        highest = dict[tuple[int, int], Key]()
        for blob in task.pending:
            source = self._source(task, blob)
            highest[source] = max(blob.last or BEFORE_ALL, highest.get(source, BEFORE_ALL))
        raised = [
            (max(mark, Mark(*highest.get(mark.source, BEFORE_ALL), *mark.source)), frontier)
            for mark, frontier in senders
        ]
        return nsmallest(2, raised)

    def _bounds(self, task: Task, marks: Collection[Mark]) -> Iterator[tuple[BlobRef, Mark | None]]:
        """The task's blobs, each with the mark that keeps back its first row, or None."""
        highest = dict[tuple[int, int], Key]()
        """By source, the greatest key of an earlier epoch: nothing overtakes what was sent before."""
        for _, sent in groupby(sorted(task.pending, key=_epoch), key=_epoch):
            together = [(blob, self._source(task, blob)) for blob in sent]
            for blob, source in together:
                first = max(blob.first or BEFORE_ALL, highest.get(source, BEFORE_ALL))
                bound = min((mark for mark in marks if mark.source != source), default=None)
                yield blob, bound if bound is not None and bound <= Mark(*first, *source) else None
            for blob, source in together:
                highest[source] = max(blob.last or BEFORE_ALL, highest.get(source, BEFORE_ALL))

    def _frontier(self, task: Task) -> Frontier | None:
        found = [frontier for _, frontier in self._senders[task.id.sub_topology][:1]]
        if task.id not in self._given_up:
            found += [Frontier((mark.merge_ms, mark.origin), ()) for _, mark in self._topics(task)]
            found += [Frontier(blob.first or BEFORE_ALL, ()) for blob in task.pending]
        if not found:
            return None
        least = min(found)
        return Frontier(least.key, (*least.via, task.id))

    def _senders_of(self, index: int, tasks: Mapping[int, list[Task]]) -> Iterator[tuple[Mark, Frontier]]:
        """The marks of the tasks that send to the sub-topology, of those that have more."""
        sub_topology = self._topology.sub_topology(index)
        ranks = {edge.source: sub_topology.ranks[edge.name] for edge in sub_topology.edges_in if not edge.leads_back}
        for source, rank in ranks.items():
            for task in tasks.get(source, ()):
                if (frontier := self._of.get(task.id)) is not None:
                    yield Mark(*frontier.key, rank, task.id.partition), frontier

    def _topics(self, task: Task, *, apart_from: Collection[str] = ()) -> Iterator[tuple[str, Mark]]:
        """The task's topics that have more, with their marks."""
        if self._given_up and task.id in self._given_up:
            return
        ranks, partition = self._topology.sub_topology(task.id.sub_topology).ranks, task.id.partition
        for topic in task.topics:
            if topic in apart_from:
                continue
            position = task.positions[topic][partition]
            if self._ends.get((topic, partition), position) > position:
                merge_ms, rank = self.merge_ms(task, topic), self._topology.topic_ranks[topic]
                yield topic, topic_mark(merge_ms, rank, partition, position, ranks[topic])

    def _source(self, task: Task, blob: BlobRef) -> tuple[int, int]:
        return self._topology.sub_topology(task.id.sub_topology).ranks[blob.edge], partition_of_task(blob.source)


def _epoch(blob: BlobRef) -> int:
    return blob.state.version
