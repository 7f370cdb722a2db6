"""The tasks of an application as the driver sees them: epochs run in stages, receipts accepted, commits made.

Nothing here waits or decides by the clock; when to run an epoch and when to commit is up to
``weir.pipelines.spark.driver``. What happened to a task elsewhere (a restore, a snapshot) is reported by a method.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.application import Application
from weir.pipelines.backfill.shadow import remove_shadow, remove_swapped
from weir.pipelines.backfill.swap import read_prepared, reason_of
from weir.pipelines.serdes.source import BadRecord
from weir.pipelines.spark.admission import admit
from weir.pipelines.spark.assignments import Assignments
from weir.pipelines.spark.beginnings import Beginnings, unlogged_of
from weir.pipelines.spark.errors import CommitOutOfSpaceError, RunError, StateInDoubtError
from weir.pipelines.spark.frontiers import Frontiers
from weir.pipelines.spark.late_log import log_late
from weir.pipelines.spark.pace import NO_SHARES, Share, Took
from weir.pipelines.spark.parts import Slots, Source
from weir.pipelines.spark.planner import Limits, aligned_until, paced_until, plan_task, reads_all
from weir.pipelines.spark.profile import NOT_PROFILED, Done, Profiling
from weir.pipelines.spark.restore_jobs import Restored
from weir.pipelines.spark.snapshot_jobs import SnapshotRequest
from weir.pipelines.spark.stalls import Stalls
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import SETTLED, TaskState, TransitionLog
from weir.pipelines.spark.uncommitted import UncommittedLimits, uncommitted_bytes
from weir.pipelines.spark.under_way import ATTEMPTS
from weir.pipelines.spark.whereabouts import Whereabouts
from weir.pipelines.spark.worker import CopyRequest, SettleRequest
from weir.pipelines.tasks.blobs import BLOBS, blob_files, remove_blobs, remove_orphans, sync_blobs
from weir.pipelines.tasks.plan import OffsetRange, Receipt, ReceiptStatus, Renewal, TaskPlan
from weir.pipelines.tasks.run_metrics import MetricsLevel, RunMetrics
from weir.pipelines.topology import SubTopology, Topology
from weir.pipelines.topology.changes import Fate, TopologyChange
from weir.pipelines.topology.clocks import clocks_of
from weir.pipelines.topology.global_tables import GlobalJoinNode
from weir.pipelines.topology.naming import lacks_lineages
from weir.pipelines.topology.processors import ProcessorNode
from weir.state.changelog.forgetting import forget_stores
from weir.state.changelog.restore import RestoreProgress
from weir.state.changelog.rows import changelog_spec
from weir.state.changelog.snapshot import remove_snapshots, remove_snapshots_but, snapshot_files
from weir.state.commit.evolution import evolution
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.commit.record import (
    LOST_RECORDS_ACCEPTED,
    Beginning,
    CommitRecord,
    CommittedTopology,
    SnapshotRef,
    SwapNote,
    TableSwap,
    TaskCommit,
)
from weir.state.full_disk import disk_full, is_disk_full
from weir.state.storage.object_store import away, is_away
from weir.state.storage.places import Place, disks
from weir.state.types import FileEntry, StateId, StoreSpec, TaskId, TopicPartition

log = logging.getLogger("weir.driver")

FIRST_INSTANCE = "first"
SMALLEST_BLOB = 4_096
"""What a waiting blob counts at least, in bytes: many small ones cost time in every epoch."""


@dataclass
class EpochResult:
    """The outcome of an epoch."""

    records_in: int = 0
    wants_commit: bool = False
    """Whether a task stopped early because the uncommitted state is at its limit."""
    moved: bool = False
    """Whether there is something new to commit."""
    took: dict[TaskId, Took] = field(default_factory=dict)
    """What each task's part took, of those that took part."""
    bad_records: dict[TaskId, BadRecord] = field(default_factory=dict)
    """Of each task that cannot go on because of one, that record."""
    has_answers: bool = False
    """Whether a task has answered."""
    stopped_early: set[TopicPartition] = field(default_factory=set)
    """Topic partitions whose next record is after the time to stop at."""
    failures: list[Receipt] = field(default_factory=list)
    """Receipts with the status ``FAILED``, ``DISK_FULL`` or ``STORE_AWAY``."""
    to_restore: list[Receipt] = field(default_factory=list)


class Coordinator:
    """One generation of one application."""

    def __init__(
        self,
        application: Application,
        warehouse: Place,
        committer: Committer,
        slots: Slots,
        on_commit: Callable[[Mapping[TopicPartition, int]], None] = lambda positions: None,
        metrics_level: MetricsLevel = MetricsLevel.INFO,
    ) -> None:
        """``on_commit`` gets the positions of each commit once it is durable; it must not hold the commit up."""
        self.application, self.slots = application, slots
        self._committer, self._warehouse, self._on_commit = committer, warehouse, on_commit
        slots.renewal = self._renewal
        self._under_way: dict[TaskId, TaskPlan] = {}
        """The plans that are not answered yet."""
        self._late = EpochResult()
        """What has come of plans that were left, and nobody has been told yet."""
        self.folder = warehouse / application.id
        """The application's, in the warehouse."""
        self._blobs = self.folder / BLOBS
        self.tasks: dict[TaskId, Task] = {}
        self.transitions = TransitionLog()
        self.topic_ids: dict[str, str] = {}
        """By topic, the id under which its positions were read; the next commit keeps them."""
        self.global_beginnings: dict[TopicPartition, int] = {}
        """Where the topic partitions of global tables begin."""
        self._told: dict[str, dict[TopicPartition, int]] = {}
        """By executor, up to where its copies of global tables have been asked to be."""
        self.metrics = RunMetrics(level=metrics_level)
        self.profiling: Profiling = NOT_PROFILED
        """Hears of each accepted receipt."""
        self.assignments = Assignments(self.tasks, slots)
        self.whereabouts = Whereabouts(self.tasks, slots, self.metrics, self.assignments, forget=self._forget)
        self.generation = self.epoch = self.commits = 0
        self.committed_id, self.committed_at_ms = StateId(0, 0), 0
        self.continues: int | None = None
        """The generation that made the newest commit before this one, if the program is the same."""
        self._has_uncommitted = False
        self._stages, self._meetings = _stages(application), _meetings(application)
        self._stalls = Stalls(application.max_source_wait)
        self._uncommitted = UncommittedLimits.of(application)
        self._listed: set[str] = set()
        """The blobs that the newest commit lists, which are synced."""
        self._ended: set[TaskId] = set()
        """Tasks whose stream time has moved to the end of the input."""
        self.to_restore: dict[TaskId, str] = {}
        """Tasks whose stores the program's start has changed, and how: they are restored before they run."""
        self.difference_of: Callable[[Task], str | None] = lambda task: None
        """Finds what a check has found in a task's store, if anything (PROTOCOL 41)."""
        self.wait_for_disk: Callable[[Exception], bool] = lambda error: False
        """Called when the disk has no room for a commit, or the object store does not answer; False to give up."""
        self.wait_for_brokers: Callable[[Exception], bool] = lambda error: False
        """Called when no broker answers a question of the start; False to give up."""
        self._form = application.topology.committed_form
        self._changelogs = {
            store.name: changelog_spec(store)
            for each in application.topology.sub_topologies
            for store in each.stores
            if store.is_logged
        }

    def start(self, source_counts: Mapping[str, int], source: Source, *, accept_state_loss: bool = False) -> None:
        """Claim a generation, redo what a dead driver left, and start every task where the commit log has it.

        ``source`` says where to begin with topic partitions that no commit knows; those of topics that match a
        pattern later begin with their first record. Under another program stores keep
        their rows where ``weir.pipelines.topology.changes`` finds them again; with ``accept_state_loss`` the others
        begin empty at the committed positions of their topics.

        Raises:
            TopologyChangedError, PartitionCountError: Committed state would be lost, and that was not accepted.
            PendingRowsError, TableSchemaError: What is committed does not fit this program.
            FencedError: Another driver claimed at the same moment.
            BrokerUnreachableError: No broker answered, and ``wait_for_brokers`` waits no longer.
        """
        self._source = source
        application, topology = self.application, self.application.topology
        counts = topology.partition_counts(source_counts)
        ids = [TaskId(index, partition) for index, count in sorted(counts.items()) for partition in range(count)]
        folder = self.folder
        admit(application, folder, newest_commit(self._warehouse, application.id), source_counts, accept_state_loss)

        # Before the claim: what a newer driver writes is not among them.
        blobs, snapshots = blob_files(self._blobs), snapshot_files(folder)
        claim = self._committer.claim()
        remove_swapped(folder, claim.newest)
        self.generation = claim.generation
        record = claim.newest
        # Again, now under the claim: another driver may have committed meanwhile.
        change = admit(application, folder, record, source_counts, accept_state_loss)
        if record is not None:
            self.epoch, self.committed_id, self.committed_at_ms = record.epoch, record.state_id, record.at_ms
            read = {*topology.topics(), *(table.source.topic for table in topology.global_tables)}
            left = {topic: each.topic_id for topic, each in record.topics.items() if topic in read}
            self.topic_ids = {**{topic: found for topic, found in left.items() if found}, **record.topic_ids}
        beginnings = None
        if record is not None and change is not None:
            beginnings = Beginnings(
                record=record,
                change=change,
                topology=topology,
                state=StateId(self.generation, self.epoch + 1),
            )
            self._form = committed_form(topology, record, change)
            if not change.is_other_topology and self._form == record.topology:
                self.continues = record.generation
        empty = set() if change is None else {*change.of(Fate.BEGINS_EMPTY, Fate.IS_REBUILT)}
        for task_id in ids:
            sub_topology = topology.sub_topology(task_id.sub_topology)
            topics_read = tuple(
                node.topic for node in sub_topology.sources if task_id.partition < source_counts[node.topic]
            )
            known = (
                beginnings.of(task_id, topics_read)
                if beginnings is not None
                else TaskCommit(state=None, instance=FIRST_INSTANCE)
            )
            self.tasks[task_id] = Task.of(
                task_id,
                topics_read,
                replace(known, unlogged=unlogged_of(sub_topology.stores, known, change)),
                sub_topology.stores,
                self.transitions.note,
            )
            if change is not None and not {store.name for store in sub_topology.stores}.isdisjoint(
                change.no_longer_divided
            ):
                self.tasks[task_id].sought = topics_read
            if beginnings is not None and beginnings.is_restored(task_id):
                self.to_restore[task_id] = beginnings.reason(task_id)
        unknown = [
            (topic, task.id.partition)
            for task in self.tasks.values()
            for topic in task.topics
            if task.id.partition not in task.positions.get(topic, {})
        ]
        offsets = dict(self._asked(source.start_offsets, unknown)) if unknown else {}
        if change is not None and not change.is_other_topology:  # what matches a pattern now was not there before
            later = set(topology.matched(topic for topic, _ in unknown))
            added = [place for place in unknown if place[0] in later]
            offsets |= self._asked(source.beginning_offsets, added) if added else {}
        for task in self.tasks.values():
            for topic in task.topics:
                if (offset := offsets.get((topic, task.id.partition))) is not None:
                    task.positions.setdefault(topic, {})[task.id.partition] = offset
        for task in self.tasks.values():
            self._begin_rebuilt(task, {name for name in task.unlogged if change is None or name in empty})
        global_topics = [table.source.topic for table in topology.global_tables]
        if global_topics:
            partitions = [(topic, partition) for topic in global_topics for partition in range(source_counts[topic])]
            self.global_beginnings = dict(self._asked(source.beginning_offsets, partitions))
        pending = list(beginnings.pending()) if beginnings is not None else []
        self._listed = {blob.path for _, blob in pending}
        for task_id, blob in pending:
            self.tasks[task_id].pending.append(blob)
        for task in self.tasks.values():
            if task.id not in self.to_restore:
                task.opened()
        orphans = remove_orphans(self._blobs, blobs, [blob for _, blob in pending])
        remove_snapshots_but(folder, snapshots, [task.snapshot for task in self.tasks.values() if task.snapshot])
        log.info(
            "generation %s of %r starts after epoch %s with %s tasks%s",
            self.generation,
            application.id,
            self.epoch,
            len(self.tasks),
            f"; removed {orphans} orphaned blobs" if orphans else "",
        )
        is_first_of_lineages = record is not None and lacks_lineages(self._form, record.topology)
        # Another program is committed before it writes anything: with that its tables evolve (PROTOCOL 34).
        if (
            beginnings is not None
            and change is not None
            and (
                self.to_restore
                or beginnings.ended
                or change.restored
                or change.is_other_topology
                or is_first_of_lineages
            )
        ):
            self.epoch += 1
            self.commit(
                _reason(change, is_first_of_lineages),
                forget_stores(folder, self._forgotten(change), self.epoch),
            )

    def _asked(
        self,
        question: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]],
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, int]:
        while True:
            try:
                return question(partitions)
            except BrokerUnreachableError as error:
                if not self.wait_for_brokers(error):
                    raise

    def _begin_rebuilt(self, task: Task, empty: Collection[str]) -> None:
        """Note where the stores begin that are computed again if they are lost; ``empty`` are those that begin now."""
        topics = {store.name: self.application.topology.topic_of(store.name) for store in self.rebuilt(task.id)}
        task.beginnings = {
            name: Beginning(
                topic=topic, offset=task.positions[topic][task.id.partition], clocks=clocks_of([name], task.clocks)
            )
            if name in empty
            else task.beginnings[name]
            for name, topic in topics.items()
            if topic in task.topics
            and (name in empty or (name in task.beginnings and task.beginnings[name].topic == topic))
        }
        task.kept_ms = {
            store.name: kept_ms
            for store in self.rebuilt(task.id)
            if (kept_ms := self.application.topology.kept_ms(store)) is not None
        }

    def rebuilt(self, task: TaskId) -> list[StoreSpec]:
        """The stores of a task that are computed again if they are lost."""
        return [store for store in self.stores(task) if store.is_rebuilt]

    def first_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """What topic partitions begin with now."""
        return self._source.beginning_offsets(partitions) if partitions else {}

    def compacted(self, topics: Sequence[str]) -> set[str]:
        """Those of which the brokers keep only the newest record of each key."""
        return self._source.compacted(topics) if topics else set()

    def _forgotten(self, change: TopologyChange) -> list[str]:
        """The stores whose rows are deleted one by one; where a changelog gets other keys, its rows go with them."""
        needed = {
            store: evolution(self.folder, self._changelogs[store])
            for store in change.of(Fate.BEGINS_EMPTY, Fate.IS_REBUILT)
            if store in self._changelogs
        }
        return [store for store, found in needed.items() if found is not None and found.keys is None]

    def run_epoch(
        self,
        ends: Mapping[TopicPartition, int],
        limits: Limits,
        now_ms: int,
        is_live: bool = False,
        end_time_ms: int | None = None,
        upto_ms: int | None = None,
        shares: Mapping[TaskId, Share] = NO_SHARES,
        begins: bool = False,
    ) -> EpochResult | None:
        """One step of every task that has something to do, stage by stage; None when none has, and nothing has come.

        Tasks that were left with their plans are waited for no longer than ``Slots.is_patient``; what comes of them
        later is in the result of a later epoch, or of ``take_up``.

        ``is_live``: whether topics without further records count as idle, for operators to which that matters.
        ``end_time_ms``: the input has ended, and stream time moves to this. ``upto_ms``: no record after this time is
        read, not even one. ``shares``: what tasks may take within ``limits``.

        With ``begins`` only one stage begins, and nothing is waited for: a commit follows, and then a call without it
        goes on with the epoch. Until then its tasks write nothing.
        """
        result = None if begins else self.take_up()
        running, rows_wait = list[Task](), False
        for task in self.tasks.values():  # once for all, as the objects of many tasks do not fit into a cache
            task.try_again(now_ms)
            rows_wait = rows_wait or bool(task.pending)
            if task.state is TaskState.RUNNING:
                running.append(task)
        until_ms = self._until(running, ends, limits, shares) if upto_ms is None else dict.fromkeys(self.tasks, upto_ms)
        is_all_read = not (until_ms or self._under_way) and reads_all(self.tasks.values(), ends, limits, shares)
        state = StateId(self.generation, self.epoch + 1)
        given_up = self._stalls.given_up(self.tasks, now_ms)
        for number, stage in enumerate(self._stages, 1):
            frontiers = Frontiers(self.application.topology, self.tasks, ends, given_up, rows_wait)
            may_wait = rows_wait or result is not None
            blocked = self._blocked(frontiers, limits.max_pending_bytes) if may_wait else set()
            unended = (
                {task.sub_topology for task in self.tasks.keys() - self._ended} if end_time_ms is not None else set()
            )
            ready = [
                task
                for task in running
                if task.id.sub_topology in stage
                and task.id not in blocked
                and self._is_free(task, state)
                and (end_time_ms is None or self._may_end(task, unended))
            ]
            plan = partial(
                plan_task,
                state=state,
                ends=ends,
                frontiers=frontiers,
                limits=limits,
                shares=shares,
                now_ms=now_ms,
                is_strict=upto_ms is not None,
                is_live=is_live,
                is_all_read=is_all_read,
                end_time_ms=end_time_ms,
            )
            plans = [planned for task in ready if (planned := plan(task, until_time_ms=until_ms.get(task.id)))]
            if plans or (self.slots.has_begun and not begins):
                busy = {planned.task for planned in plans}
                plans += [
                    planned
                    for task in ready
                    if task.id not in busy
                    and task.owes_settling
                    and (planned := plan(task, until_time_ms=until_ms.get(task.id), is_visit=True))
                ]
                if plans:
                    self.epoch = state.epoch
                result = result or EpochResult()
                later = set[int]().union(*self._stages[number:])
                following = [task for task in running if task.id.sub_topology in later]
                plans = self._uncommitted.shared(plans, self.tasks, following, is_before_commit=begins)
                plans = self._with_global_tables(plans, ends)
                if begins:
                    plans = [structs.replace(planned, asks=True) for planned in plans]
                    self._note_given(plans)
                    self.slots.begin(plans)
                    return None
                self._give(plans, result)
        self._stalls.note(Frontiers(self.application.topology, self.tasks, ends, given_up), self.tasks, now_ms)
        return result

    def take_up(self) -> EpochResult | None:
        """What has come since of plans that were left; None if nothing has."""
        self._accept_all(self.slots.late(), self._late)
        result, self._late = self._late, EpochResult()
        return result if result.has_answers else None

    def finish_begun(self) -> None:
        """Wait for an epoch that has begun before a commit; what has come of it is in the result of ``take_up``."""
        if self.slots.has_begun:
            self._accept_all(self.slots.run(()), self._late)

    def finish_writing(self) -> None:
        """Wait for the tasks that write under an epoch that the next commit passes (PROTOCOL 40)."""
        self._accept_all(self.slots.finish_writing(), self._late)

    @property
    def under_way(self) -> Collection[TaskId]:
        """The tasks that were left with their plans."""
        return self._under_way.keys()

    def lost(self, task: TaskId, reason: str, *, is_corrupted: bool = False) -> None:
        """A task's local state is gone or given up, or not what it should be: what the task is still doing counts for
        nothing, and it is to be restored."""
        self._forget(task)
        self.tasks[task].lost(reason, is_corrupted=is_corrupted)

    def _forget(self, task: TaskId) -> None:
        if self._under_way.pop(task, None) is not None:
            self.slots.forget(task)

    def named(self, wanted: str) -> list[Task]:
        """The task with this id or stored name, or those of the sub-topology with this number or stored name.

        Raises:
            RunError: There is none.
        """
        topology = self.application.topology
        found = [
            task
            for task in self.tasks.values()
            if wanted
            in (
                str(task.id),
                topology.task_name(task.id),
                str(task.id.sub_topology),
                topology.sub_topology(task.id.sub_topology).stored_name,
            )
        ]
        if not found:
            raise RunError(f"there is no task {wanted!r}; the tasks are {', '.join(map(str, self.tasks))}")
        return found

    def take_doubted(self) -> dict[TaskId, str]:
        """Take tasks out of the epochs whose stores a check has found to differ since; returns what it has found.

        Raises:
            StateInDoubtError: What one of them has done is in no commit yet.
        """
        self._require_no_doubt()
        found = {
            task.id: difference
            for task in self.tasks.values()
            if task.state in (TaskState.CREATED, TaskState.RUNNING)
            and (difference := self.difference_of(task)) is not None
        }
        for task_id, difference in found.items():
            self._forget(task_id)
            self.tasks[task_id].doubted(difference)
        return found

    def _require_no_doubt(self) -> None:
        """Raise ``StateInDoubtError`` if a commit would make what was counted on from a wrong row durable."""
        for task in self.tasks.values():
            if task.has_uncommitted and (difference := self.difference_of(task)) is not None:
                raise StateInDoubtError(str(task.id), difference)

    def _is_free(self, task: Task, state: StateId) -> bool:
        """Whether a task can be given a plan that leads to ``state``."""
        return task.current != state and self.slots.is_free(task.id)

    def _give(self, plans: Sequence[TaskPlan], result: EpochResult) -> None:
        self._note_given(plans)
        self._accept_all(self.slots.run(plans), result)

    def _note_given(self, plans: Sequence[TaskPlan]) -> None:
        self._under_way |= {plan.task: plan for plan in plans}
        for plan in plans:
            self.tasks[plan.task].given_plan()

    def _renewal(self, task: TaskId) -> Renewal:
        """What holds for a task that asks before it writes: the epoch that the next commit makes durable, and what was
        committed while it worked (PROTOCOL 40)."""
        if self.epoch == self.committed_id.epoch:
            self.epoch += 1
        return Renewal(state=StateId(self.generation, self.epoch), committed=self.tasks[task].committed)

    def close_processors(self, ends: Mapping[TopicPartition, int], limits: Limits, now_ms: int) -> None:
        """Run one more epoch, without input, in which all processors are closed; what they forward is committed with
        the rest. A task that fails is only logged: its processor is then not closed, as after a kill."""
        indices = {
            sub_topology.index
            for sub_topology in self.application.topology.sub_topologies
            if any(isinstance(node, ProcessorNode) for node in sub_topology.nodes)
        }
        state = StateId(self.generation, self.epoch + 1)
        frontiers = Frontiers(self.application.topology, self.tasks, ends, set())
        plans = [
            planned
            for task in self.tasks.values()
            if task.id.sub_topology in indices and task.state is TaskState.RUNNING and task.visited
            if self._is_free(task, state)
            if (
                planned := plan_task(
                    task,
                    state=state,
                    ends=ends,
                    frontiers=frontiers,
                    limits=limits,
                    now_ms=now_ms,
                    until_time_ms=None,
                    stops=True,
                )
            )
        ]
        if not plans:
            return
        self.epoch, result = state.epoch, EpochResult()
        self._give(self._with_global_tables(plans, ends), result)
        for receipt in result.failures:
            log.warning("task %s: its processors were not closed: %s", receipt.task, receipt.error)

    @property
    def has_ended(self) -> bool:
        """Whether the stream time of every task has moved to the end of the input, and no row is on its way."""
        return self._ended == self.tasks.keys() and not any(task.pending for task in self.tasks.values())

    def commit(
        self,
        reason: str,
        files: Sequence[FileEntry] = (),
        swaps: Sequence[TableSwap] = (),
        notes: Sequence[SwapNote] = (),
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        """Make every accepted epoch durable, and record which instances hold the tasks' state.

        During a run, call ``finish_writing`` before; in between slots may be given what asks before it writes, but no
        task may be answered.

        ``files``, ``swaps`` and ``notes`` of a backfill are committed too, in addition to the tasks' files.
        ``confirm`` is called just before the pivot; an error that it raises is raised here, and nothing is committed.

        Raises:
            FencedError: A newer driver has taken over.
            CommitOutOfSpaceError: The disk of the warehouse is full, and ``wait_for_disk`` waits no longer.
            StateInDoubtError: A check has found the store of a task to differ whose epochs would be committed.
        """
        if self.epoch == self.committed_id.epoch:
            self.epoch += 1  # every commit has a number of its own
        record = CommitRecord(
            kind="commit",
            generation=self.generation,
            epoch=self.epoch,
            at_ms=time.time_ns() // 1_000_000,
            fingerprint=self.application.topology.fingerprint,
            topic_ids=self.topic_ids,
            reason=reason,
            tasks={self.application.topology.task_name(task.id): task.to_commit() for task in self.tasks.values()},
            files=(*files, *(file for task in self.tasks.values() for file in task.files)),
            swaps=tuple(swaps),
            swapped=tuple(notes),
            topology=self._form,
            pending_blobs=tuple(blob for task in self.tasks.values() for blob in task.pending),
        )
        while True:
            try:
                self._make_durable(record, confirm)
                break
            except Exception as error:
                if is_away(error) and self.wait_for_disk(away(str(self.folder), error)):
                    continue
                if not is_disk_full(error) or not (folders := disks(self.folder)):
                    raise
                full = disk_full(error, "a commit", folders)
                if not self.wait_for_disk(full):
                    raise CommitOutOfSpaceError(self.application.id, full) from error
        # 7. The tasks told: by their next plans
        passed = [blob for task in self.tasks.values() for blob in task.consumed]
        replaced = [snapshot for task in self.tasks.values() if (snapshot := task.settled()) is not None]
        self._patiently(lambda: remove_blobs(self._blobs, passed))
        self._patiently(lambda: remove_snapshots(self._blobs.parent, replaced))
        self.committed_id, self.committed_at_ms, self._has_uncommitted = record.state_id, record.at_ms, False
        self._listed = {blob.path for blob in record.pending_blobs}
        self.commits += 1
        self._on_commit(
            {
                (topic, partition): offset
                for task in self.tasks.values()
                for topic, offsets in task.positions.items()
                for partition, offset in offsets.items()
            }
        )

    def _patiently(self, call: Callable[[], None]) -> None:
        """Do it again while an object store does not answer."""
        while True:
            try:
                return call()
            except Exception as error:
                if not (is_away(error) and self.wait_for_disk(away(str(self.folder), error))):
                    raise

    def _make_durable(self, record: CommitRecord, confirm: Callable[[], None]) -> None:
        # 1. Files written and synced: the tasks' files already are, blobs only now
        try:
            sync_blobs(self._blobs, [blob for blob in record.pending_blobs if blob.path not in self._listed])
        except FileNotFoundError:  # a newer driver's start removes what no commit names
            self._committer.check_claim()
            raise
        self._committer.commit(record, partial(self._confirm, confirm))

    def _confirm(self, confirm: Callable[[], None]) -> None:
        confirm()
        self._require_no_doubt()

    def read_on_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit that these topic partitions are read from elsewhere, by tasks that keep their state (PROTOCOL 28)."""
        self.epoch += 1
        for task in self.tasks.values():
            task.read_on_at(offsets, StateId(self.generation, self.epoch))
        self.commit(LOST_RECORDS_ACCEPTED)

    def swap(self, backfill: str) -> str:
        """Swap a prepared backfill in by a commit, and remove its shadow (docs/backfill.md).

        Returns what was done, as a sentence. A backfill that is already swapped in is left as it is.

        Raises:
            SwapRefusedError: It must not be swapped in; nothing was changed.
            FencedError: A newer driver has taken over.
        """
        folder = self.folder
        if (note := self._committer.note_of(backfill)) is not None:
            return f"swapped in already, by the commit of epoch {note.epoch}"
        prepared = read_prepared(folder, self.application.id, backfill)
        self._committer.check_swap(prepared.note(self.epoch), prepared.swaps, prepared.at_s, prepared.published)
        published = prepared.for_outboxes(folder, self.epoch)
        self.epoch = max(self.epoch + 1, published.epoch)
        # 3. The pivot
        self.commit(reason_of(backfill), published.files, prepared.swaps, (prepared.note(self.epoch),))
        # 7. The shadow removed
        remove_shadow(folder, backfill)
        return f"swapped in by the commit of epoch {self.committed_epoch}: {prepared}"

    def restoring(self, task_id: TaskId, progress: RestoreProgress) -> None:
        """A task's restore has made this progress; it may have ended since that was noted."""
        if self.tasks[task_id].state is not TaskState.RESTORING:
            return
        self.tasks[task_id].restoring(str(progress), progress.per_cent)
        self.metrics.restoring(str(task_id), progress.rows, progress.rows_left)

    def restored(self, restored: Restored) -> None:
        """A task's restore has built a new instance; the next commit records that it holds the state."""
        task = self.tasks[restored.request.task]
        task.restored(
            restored.request.instance,
            self.slots.executor_of(task.slot),
            source=restored.source,
            from_snapshot=restored.from_snapshot,
            is_snapshot_gone=restored.is_snapshot_gone,
        )
        self.metrics.restored(str(task.id), restored.rows)
        self._has_uncommitted = True

    def published(self, request: SnapshotRequest, snapshot: SnapshotRef) -> bool:
        """A snapshot was published: True when the next commit lists it.

        One of a task that is restoring, or that has another instance by now, is not listed and will be removed.
        """
        task = self.tasks[request.task]
        if task.state is not TaskState.RUNNING or task.instance != request.instance:
            return False
        task.published(snapshot, request.rows_since)
        self._has_uncommitted = True
        return True

    def check_claim(self) -> None:
        """Raise ``FencedError`` when a newer driver has taken over."""
        self._patiently(self._committer.check_claim)

    def look_at_claim(self) -> None:
        """The same where nothing is to be written: a warehouse that does not answer will be asked again."""
        try:
            self._committer.check_claim()
        except Exception as error:
            if not (isinstance(error, OSError) or is_away(error)):
                raise

    def settle(self, *, close: bool = False) -> None:
        """Let tasks that are idle after a commit drop their undo logs; ``close`` is for a clean stop.

        A task that cannot is visited by the next epoch, whose receipt says what is wrong.
        """
        requests = [
            SettleRequest(
                task=task.id, instance=task.instance, generation=self.generation, committed=task.committed, close=close
            )
            for task in self.tasks.values()
            if task.committed is not None
            and task.committed == task.current
            and task.state is TaskState.RUNNING
            and (task.has_undo or close)
            and self.slots.is_free(task.id)
        ]
        for task_id, settled in self._settled(requests) if requests else ():
            self.tasks[task_id].has_undo, self.tasks[task_id].visited = False, settled

    def closed(self, reason: str) -> None:
        """The generation has ended, and so has the life of its tasks."""
        for task in self.tasks.values():
            task.closed(reason)

    @property
    def settled_instances(self) -> Mapping[str, str] | None:
        """The instance of each task, by its stored name, if the newest commit lists them and none is being built."""
        if self._has_uncommitted or any(task.state not in SETTLED for task in self.tasks.values()):
            return None
        return {self.application.topology.task_name(task.id): task.instance for task in self.tasks.values()}

    def stores(self, task: TaskId) -> Sequence[StoreSpec]:
        """The stores of a task."""
        return self.application.topology.sub_topology(task.sub_topology).stores

    @property
    def has_uncommitted(self) -> bool:
        """Whether there is something that a commit would make durable."""
        return self._has_uncommitted

    @property
    def committed_epoch(self) -> int:
        """The newest durable epoch."""
        return self.committed_id.epoch

    @property
    def needs_settling(self) -> bool:
        """Whether a task still holds the undo log of a commit, not having heard of it."""
        return any(task.owes_settling and self.slots.is_free(task.id) for task in self.tasks.values())

    @property
    def uncommitted_bytes(self) -> int:
        """What a rollback would undo, in bytes, over all tasks."""
        return uncommitted_bytes(self.tasks.values())

    @property
    def reached_limit(self) -> str | None:
        """Which limit on what is uncommitted is reached, if any."""
        return self._uncommitted.reached(self.tasks.values())

    def totals(self) -> dict[str, int]:
        """Counts over all tasks since the application began; ``open_windows`` as of now."""
        totals: dict[str, int] = {}
        for task in self.tasks.values():
            counts = task.to_commit().totals
            for name, count in counts.items():
                if name != "records_in" or task.topics:
                    totals[name] = totals.get(name, 0) + count
        return totals

    def _settled(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        """The answers to ``requests``; a job that Spark loses is run again, which repeats nothing (PROTOCOL 8)."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.slots.settle(requests)
            except Exception as error:
                if attempt == ATTEMPTS:
                    raise
                log.warning(
                    "epoch %s: Spark lost the job (%s); it is run again unchanged",
                    self.epoch,
                    (str(error).splitlines() or [type(error).__name__])[0],
                )
        raise AssertionError("unreachable")

    def _with_global_tables(self, plans: list[TaskPlan], ends: Mapping[TopicPartition, int]) -> list[TaskPlan]:
        """Add to the plans of tasks that join with global tables how far those are to be read."""
        if not self.global_beginnings:
            return plans
        wanted = self._global_ranges(ends)
        for plan in plans:
            self._tell(plan.task, wanted[plan.task.sub_topology])
        return [structs.replace(plan, global_ranges=wanted[plan.task.sub_topology]) for plan in plans]

    def copies_behind(self, ends: Mapping[TopicPartition, int]) -> list[tuple[int, CopyRequest]]:
        """Which slots to ask, and for what, so that the executors' copies of global tables reach ``ends`` though no
        plan asks for it; none while a plan is under way, which may want less."""
        if not self.global_beginnings or self._under_way or self.slots.has_begun:
            return []
        found, wanted = list[tuple[int, CopyRequest]](), self._global_ranges(ends)
        for task in self.tasks.values():
            ranges, told = wanted[task.id.sub_topology], self._told.get(self.slots.executor_of(task.slot), {})
            is_behind = any(each.end > told.get((each.topic, each.partition), each.end) for each in ranges)
            if is_behind and task.state is TaskState.RUNNING and self.slots.is_ready(task.slot):
                found.append((task.slot, CopyRequest(ranges=ranges, generation=self.generation)))
                self._tell(task.id, ranges)
        return found

    def _tell(self, task: TaskId, ranges: Sequence[OffsetRange]) -> None:
        told = self._told.setdefault(self.slots.executor_of(self.tasks[task].slot), {})
        told.update({(each.topic, each.partition): each.end for each in ranges})

    def _global_ranges(self, ends: Mapping[TopicPartition, int]) -> Mapping[int, tuple[OffsetRange, ...]]:
        """By sub-topology, how far the global tables that it joins are to be read."""
        ranges = {
            table: tuple(
                OffsetRange(topic=topic, partition=partition, start=start, end=ends.get((topic, partition), start))
                for (topic, partition), start in self.global_beginnings.items()
                if topic == table.source.topic
            )
            for table in self.application.topology.global_tables
        }
        joined = {
            sub_topology.index: {node.table for node in sub_topology.nodes if isinstance(node, GlobalJoinNode)}
            for sub_topology in self.application.topology.sub_topologies
        }
        return {
            index: tuple(each for table, of_table in ranges.items() if table in tables for each in of_table)
            for index, tables in joined.items()
        }

    def _accept_all(self, receipts: Sequence[Receipt], result: EpochResult) -> None:
        for receipt in receipts:
            self._accept(receipt, self._under_way.pop(receipt.task), result)
        self._has_uncommitted |= result.moved

    def _accept(self, receipt: Receipt, plan: TaskPlan, result: EpochResult) -> None:
        task, result.has_answers = self.tasks[receipt.task], True
        match receipt.status:
            case ReceiptStatus.DONE if receipt.state is None or receipt.state.epoch <= self.committed_epoch:
                # a worker that Spark had given up was quicker than its successor, under an epoch that is committed
                result.to_restore.append(replace(receipt, error="it has written under an epoch that was committed"))
            case ReceiptStatus.DONE:
                result.moved |= task.accept(receipt, plan.now_ms)
                if plan.end_time_ms is not None:
                    self._ended.add(task.id)
                if receipt.waiting is not None:
                    log.warning("task %s waits %s ms and %s", task.id, receipt.waiting.wait_ms, task.retrying)
                name = str(task.id)
                self.metrics.epoch(name, receipt.metrics, receipt.counts)
                self.metrics.worked(name, receipt.seconds)
                if receipt.work is not None and receipt.state is not None:
                    self.metrics.work(name, receipt.work)
                    self.profiling.done(
                        Done(
                            generation=self.generation,
                            epoch=receipt.state.epoch,
                            task=name,
                            slot=task.slot,
                            records=receipt.metrics.records,
                            given_s=task.given_s,
                            accepted_s=time.monotonic(),
                            work=receipt.work,
                        )
                    )
                log_late(name, receipt.metrics.late, receipt.counts.get("late_records", 0))
                self.metrics.freshness.took(receipt.arrived)
                result.wants_commit |= receipt.wants_commit
                took = Took(
                    receipt.counts.get("records_in", 0) if task.topics else 0,
                    receipt.seconds,
                    receipt.function_seconds,
                    ran_out_of_time=receipt.ran_out_of_time,
                    sent_rows=receipt.sent_rows,
                )
                result.took[task.id] = result.took[task.id] + took if task.id in result.took else took
                result.records_in += took.records
                if receipt.bad_record is not None:
                    result.bad_records[task.id] = receipt.bad_record
                result.stopped_early |= {(topic, task.id.partition) for topic in receipt.stopped_early}
                for blob in receipt.blobs:
                    self.tasks[self.application.topology.task_of(blob.target)].pending.append(blob)
            case ReceiptStatus.MAP_FULL:
                log.info("task %s: %s", task.id, receipt.error)
            case ReceiptStatus.NEEDS_RESTORE:
                result.to_restore.append(receipt)
            case _:
                result.failures.append(receipt)

    def _until(
        self,
        running: Sequence[Task],
        ends: Mapping[TopicPartition, int],
        limits: Limits,
        shares: Mapping[TaskId, Share],
    ) -> dict[TaskId, int]:
        """By task, the time that its topics should not pass in this epoch; empty for no such time."""
        if limits.max_skew_ms is not None:
            until_ms = aligned_until(running, ends, limits.max_skew_ms)
            return {} if until_ms is None else {task.id: until_ms for task in running}
        if limits.max_task_idle_ms is None:
            return {}
        found: dict[TaskId, int] = {}
        for together in self._meetings:
            tasks = [task for task in running if task.id.sub_topology in together]
            if (until_ms := paced_until(tasks, ends, limits, shares)) is not None:
                found |= {task.id: until_ms for task in tasks}
        return found

    def _may_end(self, task: Task, unended: Collection[int]) -> bool:
        """Whether everything that sends to the task has ended, and it has not, or rows have come back to it.

        ``unended`` are the sub-topologies with tasks that have not.
        """
        has_more = any(edge.source in unended for edge in self._sub_topology(task).edges_in if not edge.leads_back)
        return not has_more and (task.id not in self._ended or bool(task.pending))

    def _sub_topology(self, task: Task) -> SubTopology:
        return self.application.topology.sub_topology(task.id.sub_topology)

    def _blocked(self, frontiers: Frontiers, limit: int) -> set[TaskId]:
        """The tasks of whose rows too much waits, except those for which others wait.

        Rows on edges that lead back do not count: their sender may be waiting for their target.
        """
        topology, waiting = self.application.topology, dict[str, int]()
        leads_back = {edge.name for edge in topology.edges if edge.leads_back}
        for task in self.tasks.values():
            for blob in task.pending:
                if blob.edge not in leads_back:
                    size = max(SMALLEST_BLOB, blob.size_bytes * (blob.rows - blob.taken) // blob.rows)
                    waiting[blob.source] = waiting.get(blob.source, 0) + size
        if not waiting:
            return set()
        awaited = {each for task in self.tasks.values() for each in frontiers.waited_for(task)}
        return {task for task in self.tasks if waiting.get(topology.task_name(task), 0) > limit} - awaited


def _reason(change: TopologyChange, is_first_of_lineages: bool) -> str:
    if change.is_other_topology:
        return "another topology"
    return "lineages of stores" if is_first_of_lineages else "other partition counts"


def committed_form(topology: Topology, record: CommitRecord, change: TopologyChange) -> CommittedTopology:
    """What a commit keeps of the program, and of stores of earlier ones."""
    removed = record.topology.removed if record.topology else ()
    present = {store.name for each in topology.sub_topologies for store in each.stores}
    owners = (record.topology.identities if record.topology else None) or {}
    aside = record.topology.aside if record.topology else {}
    return replace(
        topology.committed_form,
        identities={
            name: replace(identity, owner=(owners.get(name) or aside[name].identity or identity).owner)
            if name in change.no_longer_divided
            else identity
            for name, identity in (topology.committed_form.identities or {}).items()
        },
        aside=change.aside,
        topics_aside={topic: each for topic, each in record.topics.items() if topic not in topology.topics()},
        removed=(*(name for name in removed if name not in present), *change.of(Fate.IS_DROPPED)),
    )


def _stages(application: Application) -> list[set[int]]:
    """Sub-topologies by distance from the sources; those of one stage run in one Spark job.

    Rows on an edge that leads back to an earlier stage are taken in the next epoch.
    """
    depth: dict[int, int] = {}
    for sub_topology in application.topology.sub_topologies:
        depth.setdefault(sub_topology.index, 0)
        for edge in sub_topology.edges_out:
            if not edge.leads_back:
                depth[edge.target] = max(depth.get(edge.target, 0), depth[sub_topology.index] + 1)
    return [{index for index, found in depth.items() if found == stage} for stage in range(max(depth.values()) + 1)]


def _meetings(application: Application) -> list[set[int]]:
    """Sub-topologies that rows connect, in groups."""
    groups: list[set[int]] = []
    for edge in application.topology.edges:
        joined = [group for group in groups if group & {edge.source, edge.target}]
        groups = [group for group in groups if group not in joined]
        groups.append({edge.source, edge.target}.union(*joined))
    return groups
