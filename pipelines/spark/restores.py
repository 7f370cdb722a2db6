"""The restores of a run: when one begins, what the other tasks wait for meanwhile, and what its end changes.

The work itself is done by ``weir.pipelines.spark.restore_jobs``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from weir.infra.control.rows import FREEST_SLOT, RequestRow
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.spark.beat import LOOK_S
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.errors import (
    CompactedTopicError,
    RangeLostError,
    RestoreFailedError,
    RunError,
    UnloggedStoreLostError,
)
from weir.pipelines.spark.parts import RestoreExecutor
from weir.pipelines.spark.restore_jobs import Restored, RestoreRequest
from weir.pipelines.spark.task_state import TaskState
from weir.pipelines.tasks.plan import Receipt, ReceiptStatus
from weir.state.commit.record import TaskCommit
from weir.state.engine.doubts import clear_doubt
from weir.state.engine.instances import instance_folder, new_instance
from weir.state.full_disk import DISK_FULL_WAIT_S
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

HOLD_S = 5.0
"""How long epochs wait when every task restores."""
ASK_AGAIN_S = 1.0
"""How long to wait after brokers gave no answer."""
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
"""How long to wait after the first failed restore of a task in doubt, and at most; the wait doubles each time."""
TELL_EVERY_S = 10.0
"""How often the log has the progress of a restore."""


class Restores:
    """Begins restores and tells the coordinator how they ended."""

    def __init__(
        self,
        coordinator: Coordinator,
        executor: RestoreExecutor,
        commit: Callable[[str], None],
        *,
        state_folder: Path,
        takes_snapshots: bool,
    ) -> None:
        """``commit`` is called with the reason; ``takes_snapshots`` lets a snapshot's own file become the instance."""
        self._coordinator, self._executor, self._commit = coordinator, executor, commit
        self._state_folder, self._takes_snapshots = state_folder, takes_snapshots
        self._hold_until = self._ask_after = self._look_after = 0.0
        self._said = ""
        self._waiting: dict[TaskId, RestoreRequest] = {}
        """Restores that begin once the brokers answer, a disk has room, or it is time to try again."""
        self._not_before: dict[TaskId, float] = {}
        """When to try those again."""
        self._failed: dict[TaskId, int] = {}
        """How often the restore of a task in doubt has failed."""
        self.waits = ""
        """For which disk a restore waits; empty if none does."""
        self._unchecked: list[Restored] = []
        """Restores that have ended, until the brokers say whether what they read was all there."""
        self._told_at: dict[TaskId, float] = {}

    @property
    def hold_epochs(self) -> bool:
        """Whether epochs should wait for restores.

        When all tasks restore, they do so in the slots' workers, and the first one to finish would take the workers
        away from the others.
        """
        return time.monotonic() < self._hold_until and any(
            task.state is TaskState.RESTORING for task in self._coordinator.tasks.values()
        )

    def require_whole_topics(self) -> None:
        """Ask whether topics hold all records from which stores without changelogs would be computed again.

        Raises:
            CompactedTopicError: One keeps only the newest record of each key.
            BrokerUnreachableError: No broker answered in time.
        """
        application = self._coordinator.application
        topics = {
            store.name: application.topology.topic_of(store.name)
            for task in self._coordinator.tasks
            for store in self._coordinator.rebuilt(task)
            if application.on_error != "fail" or application.topology.needs_all_records(store)
        }
        compacted = self._coordinator.compacted(sorted(set(topics.values())))
        for store, topic in sorted(topics.items()):
            if topic in compacted:
                raise CompactedTopicError(application.id, store, topic)

    def begin_those_of_the_start(self) -> None:
        """Restore the tasks in doubt, and those whose stores another program has left in other tasks, or with other
        columns.

        Raises:
            FencedError: A newer driver has taken over.
        """
        doubted = self._begin_doubted()
        if rest := {task: why for task, why in self._coordinator.to_restore.items() if task not in doubted}:
            self._begin(rest)

    def _begin_doubted(self) -> Collection[TaskId]:
        """Restore the tasks whose stores a check has found to differ since the last look (PROTOCOL 41)."""
        self._look_after = time.monotonic() + LOOK_S
        if found := self._coordinator.take_doubted():
            self._begin(found, from_snapshots=False)
        return found

    def begin(self, receipts: Sequence[Receipt]) -> None:
        """Restore the tasks whose receipts ask for it.

        Raises:
            RestoreFailedError: A task needs a restore although its store has just been rebuilt from the changelog.
            UnloggedStoreLostError: A store's changelog does not have its rows yet.
            RangeLostError, CompactedTopicError: A topic no longer has the records that a store is computed again from.
            FencedError: A newer driver has taken over.
        """
        for receipt in receipts:
            task = self._coordinator.tasks[receipt.task]
            if (
                receipt.status is not ReceiptStatus.NEEDS_RESTORE
            ):  # it wrote too late, which says nothing of its restore
                continue
            is_where_restored = task.is_restored and task.restored_on == self._coordinator.slots.executor_of(task.slot)
            if is_where_restored and task.is_from_snapshot:
                task.distrust_copies()  # the changelog may know better
            elif is_where_restored:
                self._commit("failure")
                raise RestoreFailedError(
                    self._coordinator.application.id,
                    str(task.id),
                    f"the restored state is no better than the one before: {receipt.error}",
                )
        self._begin({receipt.task: receipt.error for receipt in receipts}, is_corrupted=True)

    def answer(self, request: RequestRow) -> str:
        """Restore the task that ``request`` names, and say so; in the freest slot, if it says so.

        Raises:
            RunError: There is no such task, or nothing to restore it from.
            FencedError: A newer driver has taken over.
        """
        coordinator, wanted = self._coordinator, request.arguments.get("task", "")
        name_of = coordinator.application.topology.task_name
        task = next((task for task in coordinator.tasks.values() if wanted in (str(task.id), name_of(task.id))), None)
        if task is None:
            raise RunError(f"there is no task {wanted!r}; the tasks are {', '.join(map(str, coordinator.tasks))}")
        to_freest = request.arguments.get("slot") == FREEST_SLOT
        if task.state is TaskState.RESTORING:
            return f"task {wanted} is restoring already"
        if task.state is TaskState.CORRUPTED and to_freest:
            coordinator.whereabouts.move_to_freest(task.id)
        if task.state is TaskState.CORRUPTED and task.id in self._waiting:
            self._start([self._waiting[task.id]])
            return f"task {wanted} is restoring in slot {task.slot}"
        if task.state is TaskState.CORRUPTED or coordinator.difference_of(task) is not None:
            self._look_after = 0.0  # the next look restores it, from its changelog alone
            return f"task {wanted} is restoring in slot {task.slot}"
        if task.committed is None and not coordinator.has_uncommitted:
            raise RunError(f"task {wanted} has no committed state to restore from yet")
        why = f": {request.reason}" if request.reason else ""
        self._begin(
            {task.id: f"requested by {request.requested_by}{why}"},
            from_snapshots=request.arguments.get("source") != "changelog",
            to_freest=to_freest,
        )
        return f"task {wanted} is restoring in slot {task.slot}"

    def take_up(self) -> None:
        """Let tasks continue whose restores have finished; begin those that have waited, and those of tasks in doubt
        or whose executor is lost.

        Raises:
            RestoreFailedError: A restore failed, of a task that is not in doubt; everything that was accepted is
                committed.
            StateInDoubtError: What a task in doubt has done is in no commit yet.
            FencedError: A newer driver has taken over.
            UnloggedStoreLostError, RangeLostError, CompactedTopicError: As for ``begin``.
        """
        now_s = time.monotonic()
        self._executor.keep_ready()
        if now_s >= self._look_after:
            self._begin_doubted()
        if lost := self._coordinator.whereabouts.take_lost():
            self._begin(lost)
        self._start([each for task, each in self._waiting.items() if now_s >= self._not_before.get(task, 0.0)])
        ended = [*self._unchecked, *self._executor.finished()]
        self._unchecked = [
            # retention may have passed meanwhile
            restored
            for restored in ended
            if not (restored.error or self._has_records(restored.request.task, restored.request.commit))
        ]
        for restored in [restored for restored in ended if restored not in self._unchecked]:
            if restored.lacks:
                self._wait(restored)
                continue
            if restored.is_without_standby:
                self._do_without_standby(restored)
                continue
            self.waits = ""
            if restored.error:
                self._coordinator.check_claim()  # it fails, too, if a newer driver has taken over
                if self._coordinator.tasks[restored.request.task].doubt:
                    self._try_again(restored)
                    continue
                if self._coordinator.has_uncommitted:
                    self._commit("failure")
                raise RestoreFailedError(self._coordinator.application.id, str(restored.request.task), restored.error)
            was_in_doubt = self._coordinator.tasks[restored.request.task].doubt
            self._coordinator.restored(restored)
            if was_in_doubt:
                self._end_doubt(restored.request)
            log.info(
                "task %s: restored %s rows in %.2f s from its %s",
                restored.request.task,
                restored.rows,
                restored.seconds,
                restored.source,
            )
            for store in restored.request.commit.unlogged:
                if store in restored.request.commit.beginnings:
                    continue
                log.warning(
                    'task %s: its store %r begins empty, since it has no changelog (on_loss="empty"): its results '
                    "count only what is read from now on",
                    restored.request.task,
                    store,
                )

    def _do_without_standby(self, restored: Restored) -> None:
        task = self._coordinator.tasks[restored.request.task]
        log.warning("%s; it is restored without", restored.error)
        task.has_no_standby(self._coordinator.slots.executor_of(task.slot))
        self._start([replace(restored.request, takes_standby=False, is_short=False)])

    def _try_again(self, restored: Restored) -> None:
        """A task in doubt stays so, and is restored once that is possible; meanwhile the others go on."""
        task = restored.request.task
        self._failed[task] = times = self._failed.get(task, 0) + 1
        wait_s = min(FIRST_RETRY_S * 2 ** (times - 1), LONGEST_RETRY_S)
        self._waiting[task], self._not_before[task] = restored.request, time.monotonic() + wait_s
        often = f"{times} time{'s' * (times > 1)}"
        message = f"its restore has failed {often}; the next attempt is in {wait_s:.0f} s: {restored.error}"
        log.warning("task %s: %s", task, message)
        self._coordinator.tasks[task].not_restored(message)

    def _end_doubt(self, request: RestoreRequest) -> None:
        """Commit that the task has another instance: only then nobody can go on with the one in doubt."""
        self._failed.pop(request.task, None)
        self._commit("restored")
        name = self._coordinator.application.topology.task_name(request.task)
        clear_doubt(instance_folder(self._state_folder / name, request.commit.instance))

    def _wait(self, restored: Restored) -> None:
        """Try a restore again in a moment: a full disk, or a store that is away, says nothing about what it reads."""
        task, message = restored.request.task, f"{restored.error}; its restore waits for {restored.lacks}"
        self._coordinator.check_claim()  # else it would take the room of a newer driver's
        self._waiting[task], self._not_before[task] = restored.request, time.monotonic() + DISK_FULL_WAIT_S
        self._coordinator.tasks[task].restoring(message)
        if message != self.waits:
            log.warning(message)
        self.waits = message

    def tell_progress(self) -> None:
        """Pass on the progress of the restores."""
        for task, progress in self._executor.progress().items():
            self._coordinator.restoring(task, progress)
            if time.monotonic() >= self._told_at.setdefault(task, time.monotonic()) + TELL_EVERY_S:
                self._told_at[task] = time.monotonic()
                log.info("task %s: restores: %s", task, progress)

    def _has_records(self, task: TaskId, commit: TaskCommit) -> bool:
        """Whether the topics still have what stores are computed again from; False while brokers give no answer.

        Raises:
            RangeLostError, CompactedTopicError: They do not have it.
        """
        if commit.beginnings and time.monotonic() < self._ask_after:
            self._coordinator.tasks[task].progress = f"waits for the brokers: {self._said}"
            return False
        try:
            self._require_records(commit, task)
            if commit.beginnings:
                self.require_whole_topics()
        except BrokerUnreachableError as error:
            self._ask_after = time.monotonic() + ASK_AGAIN_S
            if str(error) != self._said:
                log.warning("task %s: to compute its stores again: %s; trying again until stopped", task, error)
            self._said = str(error)
            self._coordinator.tasks[task].progress = f"waits for the brokers: {error}"
            return False
        self._said = ""
        return True

    def _require_records(self, commit: TaskCommit, task: TaskId) -> None:
        """Raise ``RangeLostError`` unless the topics still have what stores are computed again from."""
        for store in self._coordinator.rebuilt(task):
            if store.name not in commit.unlogged:
                continue
            beginning = commit.beginnings.get(store.name)
            if beginning is None:
                reason = "it had rows before it was declared so, and where they begin is not known"
                raise RangeLostError(self._coordinator.application.id, str(task), store.name, reason)
            wanted = beginning.topic, task.partition
            first = self._coordinator.first_offsets([wanted])[wanted]
            if beginning.offset < min(first, commit.positions[beginning.topic][task.partition]):
                reason = (
                    f"its rows begin at offset {beginning.offset} of {beginning.topic}-{task.partition}, and the topic "
                    f"now begins at {first}"
                )
                raise RangeLostError(self._coordinator.application.id, str(task), store.name, reason)

    def move(self, slots: Mapping[TaskId, int], reasons: Mapping[TaskId, str]) -> None:
        """Restore tasks that run in slots of other executors, each for a reason; raises as ``begin``."""
        self._begin(reasons, to=slots)

    def _begin(
        self,
        reasons: Mapping[TaskId, str],
        *,
        from_snapshots: bool = True,
        to_freest: bool = False,
        to: Mapping[TaskId, int] | None = None,
        is_corrupted: bool = False,
    ) -> None:
        """Commit what was accepted, then begin to restore each task as of that commit (PROTOCOL 20); ``to_freest``
        moves it to another slot, ``to`` to the one it names (PROTOCOL 27).

        A restore moves a folder that a newer driver may be using, so a driver that was overtaken must not begin one.
        """
        coordinator = self._coordinator
        # 1. Accepted epochs committed
        if coordinator.has_uncommitted:
            self._commit("restore")
        else:
            coordinator.check_claim()
        for task_id, reason in reasons.items():
            if to_log := coordinator.tasks[task_id].to_log:
                raise UnloggedStoreLostError(coordinator.application.id, str(task_id), to_log[0], reason)
            self._has_records(task_id, coordinator.tasks[task_id].to_commit())
        for task_id, reason in reasons.items():
            coordinator.lost(task_id, reason, is_corrupted=is_corrupted)
            if to_freest:
                coordinator.whereabouts.move_to_freest(task_id)
            elif to is not None:
                coordinator.tasks[task_id].leave(coordinator.slots.executor_of(coordinator.tasks[task_id].slot))
                coordinator.whereabouts.move_to(task_id, to[task_id])
            elif from_snapshots:
                coordinator.whereabouts.move_to_standby(task_id)
        requests = []
        for task_id, reason in reasons.items():
            task, instance = coordinator.tasks[task_id], new_instance()
            if not from_snapshots:
                task.distrust_copies()
            log.warning(
                "task %s: %s; it restores into instance %s in slot %s while the other tasks continue",
                task_id,
                reason,
                instance,
                task.slot,
            )
            request = RestoreRequest(
                task=task_id,
                instance=instance,
                commit=task.to_commit(),
                through=coordinator.committed_id,
                generation=coordinator.generation,
                reason=reason,
                take_snapshot=self._takes_snapshots,
            )
            requests.append(self._as_is_best(request))
        self._start(requests)

    def _start(self, requests: Sequence[RestoreRequest]) -> None:
        """Start the restores; those whose stores are computed again wait for brokers that give no answer."""
        for request in requests:
            self._coordinator.tasks[request.task].restoring()
        ready = [request for request in requests if self._has_records(request.task, request.commit)]
        self._waiting |= {request.task: request for request in requests if request not in ready}
        if not ready:
            return
        ready = [self._where_slots_are(request) for request in ready]
        for request in ready:
            self._waiting.pop(request.task, None)
        are_others_running = any(
            task.state is TaskState.RUNNING or not self._coordinator.slots.is_free(task.id)
            for task in self._coordinator.tasks.values()
        )
        if not are_others_running:
            self._hold_until = time.monotonic() + HOLD_S
        self._executor.start(ready, beside_epochs=are_others_running)

    def _where_slots_are(self, request: RestoreRequest) -> RestoreRequest:
        """The same elsewhere, if the executor of the task is lost or leaves."""
        coordinator, task = self._coordinator, self._coordinator.tasks[request.task]
        if task.slot not in coordinator.whereabouts.closed:
            return request
        coordinator.whereabouts.move_to_standby(task.id)
        return self._as_is_best(request)

    def _as_is_best(self, request: RestoreRequest) -> RestoreRequest:
        """From the standby, if the task has one where its slot is."""
        task = self._coordinator.tasks[request.task]
        executor = self._coordinator.slots.executor_of(task.slot)
        standing = task.standbys.get(executor)
        is_of_before = standing is None and executor in task.standbys_before
        takes_standby = standing is not None or is_of_before
        return replace(
            request,
            takes_standby=takes_standby,
            left=None if standing is None else standing.left,
            before=self._coordinator.continues if is_of_before else None,
            is_short=takes_standby or not task.has_stores,
        )
