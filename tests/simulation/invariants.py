"""What has to hold at every step of a world, by the rules of docs/protocol.md: checked as it is written."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from deltalake import DeltaTable

from tests.simulation.brokers import Brokers
from tests.simulation.delta_log import transactions
from tests.simulation.place import SimulatedPlace
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.topic_watch import TopicWatch
from weir.pipelines.tasks.blobs import BLOBS
from weir.state.commit.log import COMMITS
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.engine.task_store import TaskStore
from weir.state.types import FileEntry, StateId, TopicPartition

LIVES = {
    "created": "running restoring corrupted suspended",
    "restoring": "running paused corrupted suspended",
    "running": "paused isolated corrupted suspended",
    "paused": "running corrupted suspended",
    "isolated": "running paused corrupted suspended",
    "corrupted": "restoring suspended",
    "suspended": "running restoring closed",
    "closed": "",
}
"""Of each state of a task, those that may follow it, by docs/state.md."""


class BrokenInvariantError(AssertionError):
    """A rule of the protocol was broken; the message begins with its number."""


class Invariants:
    """Watches the commit log and the stores of a place."""

    def __init__(self, place: SimulatedPlace, brokers: Brokers) -> None:
        self._place, self._brokers = place, brokers
        self.commits: list[CommitRecord] = []
        """The rows of the commit log that are commits, in its order."""
        self.generations: list[int] = []
        """Those that were claimed, in the order of the log."""
        self.positions: dict[TopicPartition, int] = {}
        """The committed ones."""
        self.confirmed: dict[TopicPartition, int] = {}
        """Those that a commit may make durable, or has: its driver has asked the brokers about them."""
        self._files: set[tuple[str, str]] = set()
        self._applied: dict[tuple[str, StateId], str] = {}
        self.broken: BrokenInvariantError | None = None
        """The first that was broken; processes catch errors, so it is raised at the end too."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block everything that is written is checked."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(Committer, "_append_row", self._watched(Committer._append_row)))
            stack.enter_context(patch.object(TaskStore, "apply", self._applying(TaskStore.apply)))
            stack.enter_context(patch.object(TopicWatch, "confirm", self._confirming(TopicWatch.confirm)))
            stack.enter_context(patch.object(Task, "to", self._changing(Task.to)))
            stack.enter_context(patch.object(Task, "given_plan", self._giving(Task.given_plan)))
            yield

    def require_whole(self) -> None:
        """After the last commit: raise what was broken."""
        if self.broken is not None:
            raise self.broken
        self._require(bool(self.commits), "13: nothing was committed")

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            self.broken = self.broken or BrokenInvariantError(message)
            self._place.scheduler.note(f"BROKEN {message}")
            raise self.broken

    def _watched(self, append: Any) -> Any:
        def appending(committer: Committer, record: CommitRecord, *arguments: Any) -> None:
            append(committer, record, *arguments)
            if committer._application != self._place.application.id:  # the log of a backfill
                return
            self._place.scheduler.note(
                f"{record.kind} {record.state_id} {record.reason} {sorted(self._positions(record).items())}"
            )
            if record.kind == "claim":
                self._require(
                    record.generation > max(self.generations, default=0) or self._is_older(record.generation),
                    f"2: generation {record.generation} was claimed after {self.generations}",
                )
                insort(self.generations, record.generation)
            else:
                self._check_commit(record)

        return appending

    def _is_older(self, generation: int) -> bool:
        """Whether a claim that is heard of after newer ones comes before them in the log: its append got no answer, and
        its driver slept before it looked."""
        table = self._place.warehouse / self._place.application.id / COMMITS.name
        found = [version >> 32 for version in transactions(table, self._place.application.id)]
        return generation not in self.generations and generation in found and found == sorted(found)

    @staticmethod
    def _positions(record: CommitRecord) -> dict[TopicPartition, int]:
        return {
            (topic, partition): offset
            for task in record.tasks.values()
            for topic, offsets in task.positions.items()
            for partition, offset in offsets.items()
        }

    def _check_commit(self, record: CommitRecord) -> None:
        require, newest = self._require, self.commits[-1] if self.commits else None
        require(
            record.generation == max(self.generations),
            f"3: generation {record.generation} has committed after generation {max(self.generations)} claimed",
        )
        if newest is not None:
            require(
                record.state_id.version > newest.state_id.version,
                f"1: commit {record.state_id} follows {newest.state_id}",
            )
            require(record.epoch > newest.epoch, f"1: epoch {record.epoch} was committed after {newest.epoch}")
            for name, task in newest.tasks.items():
                self._check_task(name, task, record.tasks[name], record)
        positions = self._positions(record)
        for at, offset in positions.items():
            require(offset >= self.positions.get(at, 0), f"12: the position of {at} went back to {offset}")
            require(offset <= self._brokers.count(at), f"9: the position of {at} is beyond its end")
        folder = self._place.warehouse / self._place.application.id
        for entry in (*record.files, *(entry for swap in record.swaps for entry in swap.files)):
            path = folder / entry.table / entry.path
            if path.is_file():
                require(path.stat().st_size == entry.size_bytes, f"13: {entry.path} has not its full size")
            else:
                require(self._is_replaced(entry, record), f"13: {record.state_id} names {entry.path}, which is missing")
            require((entry.table, entry.path) not in self._files, f"7: two commits name {entry.path}")
            self._files.add((entry.table, entry.path))
        for blob in record.pending_blobs:
            require((folder / BLOBS / blob.path).is_file(), f"12: the waiting blob {blob.path} is missing")
        self.commits.append(record)
        self.positions = positions

    def _is_replaced(self, entry: FileEntry, record: CommitRecord) -> bool:
        """Whether the table had the file and has others in its place: a compaction may read a commit before the driver
        that wrote it hears that it did."""
        table = DeltaTable(self._place.warehouse / self._place.application.id / entry.table)
        has_commit = (table.transaction_version(self._place.application.id) or 0) >= record.state_id.version
        return has_commit and entry.path not in table.get_add_actions().column("path").to_pylist()

    def _check_task(self, name: str, before: TaskCommit, now: TaskCommit, record: CommitRecord) -> None:
        if before.state is not None:
            self._require(
                now.state is not None and now.state.version >= before.state.version,
                f"12: the state of task {name} went from {before.state} to {now.state}",
            )
        if now.state == before.state:
            self._require(
                now.positions == before.positions, f"12: task {name} has other positions in the same state {now.state}"
            )
        self._require(now.state is None or now.state.epoch <= record.epoch, f"12: task {name} is ahead of its commit")
        for clock, time_ms in before.clocks.items():
            if clock.startswith("_"):  # not a time: what is held, or who was last
                continue
            self._require(
                now.clocks.get(clock, time_ms) >= time_ms, f"12: the stream time {clock} of task {name} went back"
            )

    def _confirming(self, confirm: Any) -> Any:
        def confirming(watch: TopicWatch, *arguments: Any) -> None:
            confirm(watch, *arguments)
            for at, position in watch._positions().items():
                self.confirmed[at] = max(position.offset, self.confirmed.get(at, 0))

        return confirming

    def _changing(self, to: Any) -> Any:
        def changing(task: Task, state: Any, reason: str) -> None:
            before = str(task.state)
            self._require(
                str(state) in LIVES[before].split(), f"a task's life: {task.id} goes from {before} to {state}: {reason}"
            )
            to(task, state, reason)
            self._place.scheduler.note(f"task {task.id}: {before} -> {state}: {reason}")

        return changing

    def _giving(self, given_plan: Any) -> Any:
        def giving(task: Task) -> None:
            self._require(str(task.state) == "running", f"a task's life: {task.id} is {task.state} and gets a plan")
            given_plan(task)

        return giving

    def _applying(self, apply: Any) -> Any:
        def applying(store: TaskStore, session: Any, *, state: StateId, expected: Any, **options: Any) -> Any:
            before = store.current
            receipt = apply(store, session, state=state, expected=expected, **options)
            if receipt is not None:
                self._require(
                    before == expected, f"6: {store.task_id} went from {before} to {state}, which expects {expected}"
                )
            return receipt

        return applying
