"""One epoch of one task, from its plan to its receipt (PROTOCOL 4 to 9).

Read, decode, run the operators, write files that nobody sees yet, and change the local store in one transaction that
waits for them. Failures are returned, never raised. Running the operators belongs to
``weir.pipelines.tasks.processor``, what happens to a receipt to the driver.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import structs

from weir.pipelines.expectations import counts_of_dead_letters
from weir.pipelines.on_error import FAIL, ErrorHandling
from weir.pipelines.operators import calls
from weir.pipelines.operators.time_limit import OutOfTimeError, time_limit
from weir.pipelines.serdes.source import BadRecord, FetchedRecords, RawRecords, decode_source
from weir.pipelines.serdes.timestamps import UNKNOWN_MS, UsePartitionTimeOnInvalidTimestamp
from weir.pipelines.sinks.dead_letters import dead_letter_records
from weir.pipelines.tasks.ahead import Next, ReadAhead, Reader
from weir.pipelines.tasks.attempts import Attempts
from weir.pipelines.tasks.batch_sizes import FIRST_ROWS, BatchSizes, Written
from weir.pipelines.tasks.blobs import BLOBS, key_at, read_blob, write_blob
from weir.pipelines.tasks.dead_letters import (
    DEAD_LETTERS,
    dead_letter_frame,
    letter_id,
    replay_marks,
    with_headers,
    with_known_headers,
)
from weir.pipelines.tasks.freshness import Arrived, arrived
from weir.pipelines.tasks.global_table import READ_BYTES
from weir.pipelines.tasks.global_tables import GlobalTables
from weir.pipelines.tasks.order import (
    MERGE,
    Arrivals,
    Mark,
    Part,
    Turns,
    merge_clock,
    past_clock,
    topic_mark,
    with_keys,
)
from weir.pipelines.tasks.output import EpochOutput, joined
from weir.pipelines.tasks.placement import check_placement
from weir.pipelines.tasks.plan import OffsetRange, Receipt, ReceiptStatus, Renewal, TaskPlan
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.tasks.replay import PUT_ASIDE, failed_again
from weir.pipelines.tasks.replay import batches as replay_batches
from weir.pipelines.topology import SourceNode, SubTopology, Topology
from weir.pipelines.topology.changes import partition_of_task
from weir.pipelines.topology.topology import outbox_spec, table_spec
from weir.state.changelog.reading import TaskChangelog, encoded
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_frame, changelog_spec
from weir.state.changelog.whole import whole_changelog_frame
from weir.state.commit.files import write_file, write_files
from weir.state.engine.backing import suppliers_of
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.contract import Settlement, StateSession, StateView
from weir.state.engine.in_memory import place
from weir.state.engine.instances import current_instance, instance_folder, noted_generation, set_current
from weir.state.engine.meta import Uncommitted
from weir.state.engine.rollback_cost import RollbackCost
from weir.state.engine.session import EpochSession
from weir.state.engine.task_store import TASK_STORE, TaskStore
from weir.state.errors import (
    FencedStoreError,
    MapFullError,
    OwnStoreBehindError,
    RowFormatError,
    StateError,
    TaskCorruptedError,
)
from weir.state.frames import count_below, repeated, with_series
from weir.state.full_disk import disk_full, is_disk_full
from weir.state.stopwatch import Activity, during, measured
from weir.state.storage.contract import Folder
from weir.state.storage.object_store import away, is_away
from weir.state.storage.places import disks, folder_at
from weir.state.storage.syncs import Syncs
from weir.state.types import BlobRef, FileEntry, Positions, StateId, TableSpec, TaskId

log = logging.getLogger(__name__)
_RECEIPTS = msgspec.msgpack.Decoder(Receipt)

Row = TypeVar("Row")
"""A task's positions or clocks."""
POSITIONS_KEY, CLOCKS_KEY = b"positions", b"clocks"


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Settings shared by all tasks and epochs of a run."""

    application_folder: str
    """The application's folder in the warehouse: a path, or a URI of an object store."""
    state_folder: str
    """The application's folder in the state directory, with one folder per task."""
    partition_counts: Mapping[int, int]
    """Tasks by sub-topology."""
    is_debug: bool = False
    """Whether to measure what each node and store does."""
    is_profiled: bool = False
    """Whether what operators ask of the stores counts as time of the state."""
    reads_ahead: bool = False
    """Whether a slot reads and decodes on a thread of its own what a task will read next."""


@dataclass
class _Input:
    """What an epoch read: frames by topic with keys, positions of topic partitions, bad records, and what it takes.

    Bad records are ``dead`` if they are put into the dead letters, ``left_out`` if they are only counted.
    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    times_ms: dict[str, int] = field(default_factory=dict)
    dead: list[BadRecord] = field(default_factory=list)
    left_out: list[BadRecord] = field(default_factory=list)
    stopped_at: dict[str, BadRecord] = field(default_factory=dict)
    """By topic, the bad record before which reading stopped."""
    skipped: list[tuple[str, int]] = field(default_factory=list)
    """Topic and offset of records without a valid time."""
    raws: dict[str, FetchedRecords] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(()))
    blobs: tuple[BlobRef, ...] = ()
    """Those that the last parts of ``arrivals`` come from."""
    was_cut: bool = False
    """Whether rows are left for the next epoch because of ``max_uncommitted_bytes`` or ``max_rollback_us``."""
    ran_out_of_time: bool = False
    """Whether rows are left for the next epoch because of ``budget_ms``."""
    stopped_early: set[str] = field(default_factory=set)
    next_merge_ms: dict[str, int] = field(default_factory=dict)
    """By topic, the merge time of the next record, of those that were read and left."""

    def arrived(self) -> tuple[Arrived, ...]:
        """What was read and is not left for the next epoch, by topic."""
        found = []
        for topic, raw in self.raws.items():
            (position,) = self.positions[topic].values()
            rows = count_below(raw.frame.get_column("offset"), position)
            found.append(arrived(raw.frame.get_column("timestamp_ms")[:rows]))
        return tuple(found)

    def cut(self, topic: str, partition: int, rows: int) -> None:
        """Keep only the first ``rows`` of a topic's frame, fewer than all; the next epoch continues after them."""
        frame = self.frames[topic]
        position = int(frame["_offset"][rows])
        self.frames[topic], self.next_merge_ms[topic] = frame[:rows], int(frame[MERGE][rows])
        self.positions[topic][partition] = position
        self.times_ms.pop(f"{topic}-{partition}", None)
        if rows:
            self.times_ms[f"{topic}-{partition}"] = cast(int, frame["_ts"][:rows].max())
        self.dead = [record for record in self.dead if record.topic != topic or record.offset < position]
        self.left_out = [record for record in self.left_out if record.topic != topic or record.offset < position]
        self.skipped = [(name, offset) for name, offset in self.skipped if name != topic or offset < position]
        self.stopped_at.pop(topic, None)
        self.stopped_early.discard(topic)

    def cut_to_taken(self, partition: int) -> list[str]:
        """Leave the topics' rows that are not taken; the names of those topics."""
        names = []
        for part, taken in zip(self.arrivals.parts, self.arrivals.taken_of(), strict=True):
            if part.input in self.frames and taken < self.frames[part.input].height:
                self.cut(part.input, partition, taken)
                names.append(part.input)
        return names

    def split_blobs(self) -> tuple[tuple[BlobRef, ...], tuple[BlobRef, ...]]:
        """The blobs of which nothing is left, and those of which the first rows were taken, as they are now."""
        consumed, left = [], []
        counts = self.arrivals.taken_of()
        first = len(counts) - len(self.blobs)
        for blob, taken, part in zip(self.blobs, counts[first:], self.arrivals.parts[first:], strict=True):
            if taken == part.frame.height:
                consumed.append(blob)
            elif taken:
                left.append(replace(blob, taken=blob.taken + taken, first=key_at(part.frame, taken)))
        return tuple(consumed), tuple(left)


class DriverGoneError(Exception):
    """The driver has ended, or has given the plan to another worker; nothing was written."""


class NotWantedError(Exception):
    """Nobody waits for what the task has done any more; nothing of it was written."""


UNUSED_S = 10.0
"""How long a worker keeps what it holds of a global table while its plans are those of other tasks."""


class EpochRunner:
    """Runs epochs of the tasks of one topology. Keep it between epochs for its caches, which are safe to lose."""

    def __init__(
        self,
        topology: Topology,
        settings: TaskSettings,
        reader: Callable[[str, int], Reader],
        on_step: Callable[[str], None],
        handling: ErrorHandling = FAIL,
        renewal: Callable[[TaskPlan], Renewal | None] = lambda plan: None,
    ) -> None:
        """``renewal`` says before anything is written what holds instead of a plan's state ids, if they do not
        (PROTOCOL 40); it may raise ``NotWantedError``, and ``DriverGoneError``, which ``run`` then raises."""
        self._handling, self._renewal = handling, renewal
        self._topology, self._settings, self._connected, self._on_step = topology, settings, reader, on_step
        self._ahead = ReadAhead() if settings.reads_ahead else None
        self._folder = folder_at(settings.application_folder)
        self._tables = {sink.table: table_spec(sink) for sink in topology.sinks}
        self._global_tables = GlobalTables(topology, handling, Path(settings.state_folder))
        self._at_work: TaskStore | None = None
        """The store of the task that runs, or ran last."""
        self._written: list[tuple[Folder, str]] = []
        """The files of an epoch that no receipt names yet."""
        self._instances: dict[TaskId, tuple[StateId | None, dict[str, object]]] = {}
        """The processors of each task, and the state after the epoch in which they ran last."""
        self._last_writes: dict[TaskId, Written] = {}
        """What the last epoch with many records of each task has written: the next may begin with a large batch."""
        self._processors = {
            sub_topology.index: TaskProcessor(
                sub_topology,
                self._global_tables.by_store,
                is_debug=settings.is_debug,
                is_profiled=settings.is_profiled,
            )
            for sub_topology in topology.sub_topologies
        }

    def run(self, plan: TaskPlan) -> Receipt:
        """Carry out ``plan`` once, however often it arrives: the same plan again gets the stored receipt."""
        with measured(Activity.STATE) as stopwatch:
            receipt = self._carry_out(plan)
            return replace(receipt, work=stopwatch.work())

    def _carry_out(self, plan: TaskPlan) -> Receipt:
        started_s, store = time.monotonic(), None
        self._written = []
        try:
            if plan.expected is None:
                self._create(plan)
            self._at_work = store = self._store(plan.task, plan.instance)
            if (stored := _stored_receipt(plan.plan_hash, store)) is not None:
                return stored
            base = store.base
            settlement = self._settled(
                plan.task,
                store,
                generation=plan.state.generation,
                expected=plan.expected,
                committed=plan.committed,
                epoch=plan.state.epoch,
            )
            if settlement is Settlement.NEEDS_RESTORE:
                if (stored := _stored_receipt(plan.plan_hash, store)) is not None:  # another worker has just stored it
                    return stored
                return _refusal(
                    plan,
                    ReceiptStatus.NEEDS_RESTORE,
                    f"holds state {store.current} with base {store.base}, but the plan expects "
                    f"{plan.expected} and the commit log has {plan.committed}",
                )
            if current_instance(self._task_folder(plan.task)) != store.folder:  # it was a task of another name
                set_current(self._task_folder(plan.task), plan.instance)
            if settlement is Settlement.ROLLED_BACK:
                self._on_step("rolled back")
            elif plan.expected == plan.committed != base:
                self._on_step("undo dropped")
            return self._run_settled(plan, store, started_s)
        except DriverGoneError:
            raise
        except NotWantedError:
            return _refusal(plan, ReceiptStatus.FAILED, "its task has been given another store meanwhile")
        except TaskCorruptedError as error:
            TaskStoreCache.discard(self._folder_of(plan.task, plan.instance))
            return _refusal(plan, ReceiptStatus.NEEDS_RESTORE, error.reason)
        except RowFormatError as error:
            return _refusal(plan, ReceiptStatus.NEEDS_RESTORE, f"holds rows that cannot be read: {error.reason}")
        except MapFullError:
            self._store(plan.task, plan.instance).grow()
            return _refusal(plan, ReceiptStatus.MAP_FULL, "the store's map was full; it has grown")
        except Exception as error:
            if is_disk_full(error):
                if store is not None:
                    store.spare()
                if store is None or store.stored_receipt(plan.plan_hash) is None:  # else the epoch counts
                    for written, name in self._written:  # the next attempt needs the room
                        written.delete([name])
                what = f"task {self._topology.task_name(plan.task)}"
                folders = [*disks(self._folder), Path(self._settings.state_folder)]
                return _refusal(plan, ReceiptStatus.DISK_FULL, str(disk_full(error, what, folders)))
            if is_away(error):
                return _refusal(plan, ReceiptStatus.STORE_AWAY, str(away(self._settings.application_folder, error)))
            log.exception("task %s failed in epoch %s", plan.task, plan.state)
            return _refusal(plan, ReceiptStatus.FAILED, f"{type(error).__name__}: {error}")

    def spare(self) -> None:
        """The task at work takes long, so its worker may be killed for that, which says nothing about its store. May be
        called from another thread."""
        if (store := self._at_work) is not None:
            store.spare()

    def settle(self, task: TaskId, instance: str, *, generation: int, committed: StateId, close: bool) -> bool:
        """Drop the undo log of a task without a plan, whose state is committed; with ``close``, also close its store.

        False if the store does not hold the committed state, cannot be used, or belongs to a newer driver.
        """
        try:
            store = self._store(task, instance)
            settled = self._settled(
                task, store, generation=generation, expected=committed, committed=committed, epoch=0
            )
            if close:
                store.close(clean=True)
                TaskStoreCache.discard(store.folder)
        except StateError as error:
            log.warning("%s", error)
            return False
        return settled is Settlement.READY

    def leave(self, task: TaskId) -> None:
        """Close what is open for a task that runs elsewhere from now on."""
        self.wait_for_readers()
        self._instances.pop(task, None)
        self._last_writes.pop(task, None)
        TaskStoreCache.discard_all(self._task_folder(task))

    def rest(self) -> None:
        """There is no plan at the moment: hold nothing on to that others may want to use again."""
        self._global_tables.release()

    def bring_on(self, ranges: Sequence[OffsetRange], generation: int) -> bool:
        """Have the rows of global tables that workers share reach the end of each range, without a plan; False if they
        cannot: the next plan says why. No plan that wants less may come after it."""
        try:
            self._global_tables.read_on(ranges, self._read_global, time.time_ns() // 1_000_000, generation)
        except Exception as error:
            log.warning("global tables are not brought on: %s", error)
            return False
        finally:
            self._global_tables.release()
        return True

    def wait_for_readers(self) -> None:
        """Return once nothing is read ahead, so that others may use the readers."""
        if self._ahead is not None:
            self._ahead.wait()

    def _reader(self, topic: str, partition: int) -> Reader:
        self.wait_for_readers()
        return self._connected(topic, partition)

    def _with_headers(self, records: Sequence[BadRecord]) -> list[BadRecord]:
        return with_headers(records, self._connected)

    def _create(self, plan: TaskPlan) -> None:
        """Make the store of a task that has no state yet, if it is not there.

        Raises:
            FencedStoreError: A newer driver has another one.
        """
        task_folder, folder = self._task_folder(plan.task), self._folder_of(plan.task, plan.instance)
        if folder.exists():
            return
        named = current_instance(task_folder)
        newest = 0 if named is None else noted_generation(named)
        task_name, stores = self._topology.task_name(plan.task), self._sub_topology(plan.task).stores
        if newest > plan.state.generation:
            raise FencedStoreError(task_name, plan.state.generation, newest)
        TaskStore.create(folder, task_name, [spec.name for spec in stores], suppliers_of(stores)).close()
        set_current(task_folder, plan.instance)

    def _store(self, task: TaskId, instance: str) -> TaskStore:
        folder, sub_topology = self._folder_of(task, instance), self._sub_topology(task)
        place(folder, in_memory=sub_topology.is_in_memory)
        names, suppliers = [spec.name for spec in sub_topology.stores], suppliers_of(sub_topology.stores)
        return TaskStoreCache.get(folder, self._topology.task_name(task), names, suppliers)

    def _settled(
        self,
        task: TaskId,
        store: TaskStore,
        *,
        generation: int,
        expected: StateId | None,
        committed: StateId | None,
        epoch: int,
    ) -> Settlement:
        """Settle, once users' stores that lack committed rows have them from their changelogs (PROTOCOL 32).

        Raises:
            TaskCorruptedError: A changelog no longer has deletions that a user's store lacks.
        """
        while True:
            try:
                return store.settle(generation=generation, expected=expected, committed=committed, epoch=epoch)
            except OwnStoreBehindError as error:
                for spec in self._sub_topology(task).stores:
                    if spec.name in error.above:
                        changelog = TaskChangelog.of(
                            self._folder,
                            spec,
                            self._topology.task_name(task),
                            through=error.base.epoch,
                            above=error.above[spec.name],
                        )
                        if 0 <= changelog.above < changelog.horizon:
                            raise TaskCorruptedError(
                                store.task_id,
                                str(store.folder),
                                f"the store of your own behind {spec.name!r} is at epoch {changelog.above}, and "
                                f"compaction has dropped deletions up to epoch {changelog.horizon}",
                            ) from error
                        rows = encoded(spec, changelog.newest_rows())
                        store.fill(spec.name, ((part.keys, part.values) for part in rows), error.base)
                self._on_step("own stores filled")

    def _folder_of(self, task: TaskId, instance: str) -> Path:
        return instance_folder(self._task_folder(task), instance)

    def _task_folder(self, task: TaskId) -> Path:
        return Path(self._settings.state_folder, self._topology.task_name(task))

    def _sub_topology(self, task: TaskId) -> SubTopology:
        return self._topology.sub_topology(task.sub_topology)

    def _run_settled(self, plan: TaskPlan, store: TaskStore, started_s: float) -> Receipt:
        sub_topology = self._sub_topology(plan.task)
        with store.session() as session, ExitStack() as under_way:
            topics = {source.topic for source in sub_topology.sources}
            positions = {
                topic: offsets
                for topic, offsets in load_task_row(session, POSITIONS_KEY, Positions).items()
                if topic in topics  # an earlier program may have read others
            }
            clocks = load_task_row(session, CLOCKS_KEY, dict[str, int])
            for wanted in plan.ranges:
                found = positions.get(wanted.topic, {}).get(wanted.partition, wanted.start)
                if found != wanted.start:
                    return _refusal(
                        plan,
                        ReceiptStatus.NEEDS_RESTORE,
                        f"holds position {found} of {wanted.topic}-{wanted.partition}, "
                        f"but the plan continues from {wanted.start}",
                    )
            self._global_tables.release(UNUSED_S)
            with during(Activity.FETCH):
                self._global_tables.read_on(plan.global_ranges, self._read_global, plan.now_ms, plan.state.generation)
            with during(Activity.DECODE):
                read = self._read(plan, sub_topology, clocks)
                self._read_ahead(plan, sub_topology, read)
            at, instances = self._instances.pop(plan.task, (None, {}))
            if at != plan.expected:  # they have seen other epochs
                instances = {}
            attempts = self._attempts(plan, read.raws, session, instances, self._handling)
            attempts.tried = plan.tried
            function_seconds = calls.seconds
            with during(Activity.OPERATORS):
                output = self._process(plan, read, attempts, clocks, store.rollback_cost, started_s)
                dead = self._with_headers(read.dead + attempts.dead)
                if plan.letters:
                    output, dead = self._replay(plan, session, instances, output)
            plan_hash, asked_s = plan.plan_hash, time.monotonic()
            with during(Activity.WAITING):
                renewed = self._renewal(plan)
            started_s += time.monotonic() - asked_s  # a commit that it waits for is no work of its own
            if renewed is not None:
                plan = structs.replace(plan, state=renewed.state, committed=renewed.committed)
                self._on_step("renewed")
            with during(Activity.ENCODE):
                written = under_way.enter_context(self._writing(plan, sub_topology, session, output, dead))
                if disks(self._folder):
                    written()
            consumed, left = read.split_blobs()
            for topic, offsets in read.positions.items():
                positions.setdefault(topic, {}).update(offsets)
            _save(session, POSITIONS_KEY, positions)
            output.clocks.update(_partition_times(sub_topology, plan, read.times_ms, clocks))
            _keep_merge_times(output.clocks, plan, read)
            _save(session, CLOCKS_KEY, output.clocks)
            taken, of_topics = sum(read.arrivals.taken_of()), sum(frame.height for frame in read.frames.values())
            receipt = Receipt(
                task=plan.task,
                plan_hash=plan_hash,
                status=ReceiptStatus.DONE,
                state=plan.state,
                positions=positions,
                consumed=consumed,
                left=left,
                clocks=output.clocks,
                source_times_ms=read.times_ms,
                counts={
                    **output.counts,
                    **counts_of_dead_letters(dead),
                    "dead_letters": len(dead),
                    "failed_records": len(read.left_out) + len(attempts.left_out),
                    "retries": int(attempts.waiting is not None),
                    "invalid_timestamps": len(read.skipped) + output.counts.get("invalid_timestamps", 0),
                    "records_in": (of_topics if sub_topology.sources else taken)
                    + len(read.dead)
                    + len(read.left_out)
                    + len(read.skipped),
                },
                next_punctuation_ms=output.next_punctuation_ms,
                metrics=output.metrics,
                arrived=read.arrived(),
                stopped_early=tuple(sorted(read.stopped_early)),
                replayed=len(plan.letters),
                bad_record=attempts.stopped.record if attempts.stopped else next(iter(read.stopped_at.values()), None),
                wants_commit=read.was_cut or output.wants_commit,
                waiting=attempts.waiting,
                sent_rows=taken - of_topics,
                seconds=time.monotonic() - started_s,
                function_seconds=calls.seconds - function_seconds,
                ran_out_of_time=read.ran_out_of_time,
            )

            own_bytes = store.own_uncommitted_bytes

            def make_receipt(uncommitted: Uncommitted) -> bytes:
                nonlocal receipt
                files, blobs = written()
                receipt = replace(
                    receipt,
                    files=files,
                    blobs=blobs,
                    gauges={
                        **output.gauges,
                        "uncommitted_bytes": uncommitted.bytes + own_bytes,
                        "uncommitted_records": uncommitted.records,
                        "rollback_us": uncommitted.rollback_us,
                    },
                )
                return msgspec.msgpack.encode(receipt)

            applied = store.apply(
                session,
                state=plan.state,
                expected=plan.expected,
                generation=plan.state.generation,
                plan_hash=plan_hash,
                make_receipt=make_receipt,
                committed=plan.committed,
            )
        self._written = []
        if applied is None and (stored := _stored_receipt(plan_hash, store)) is not None:
            return stored  # a cancelled run of the same plan finished first (PROTOCOL 6)
        if applied is None:
            return _refusal(
                plan, ReceiptStatus.FAILED, "another run of this task has changed its store in the meantime"
            )
        if instances:
            self._instances[plan.task] = plan.state, instances
        self._on_step("state written")
        if consumed:
            self._on_step("blob consumed")
        figures = store.figures(with_stores=self._settings.is_debug)
        return replace(receipt, metrics=replace(receipt.metrics, figures=figures))

    def _read(self, plan: TaskPlan, sub_topology: SubTopology, clocks: Mapping[str, int]) -> _Input:
        read = _Input()
        sources = {source.topic: source for source in sub_topology.sources}
        for wanted in plan.ranges:
            self._read_topic(plan, wanted, sources[wanted.topic], read, clocks)
        ranks, partition = sub_topology.ranks, plan.task.partition
        parts = [
            Part(input=topic, rank=ranks[topic], partition=partition, frame=frame)
            for topic, frame in read.frames.items()
        ]
        inputs, schemas = sub_topology.inputs, {edge.name: edge.schema for edge in sub_topology.edges_in}
        blobs = sorted(plan.blobs, key=lambda blob: (blob.state.version, inputs.index(blob.edge)))
        with during(Activity.FETCH):
            frames = self._folder.at_once(
                partial(read_blob, self._folder / BLOBS, blob, schemas[blob.edge]) for blob in blobs
            )
        parts += [
            Part(
                input=blob.edge,
                rank=ranks[blob.edge],
                partition=partition_of_task(blob.source),
                frame=frame,
                batch=str(blob.state),
            )
            for blob, frame in zip(blobs, frames, strict=True)
        ]
        read.arrivals, read.blobs = Arrivals(parts), tuple(blobs)
        if len(inputs) > 1 or blobs:
            read.arrivals.wait_for([*plan.marks, *self._marks_of(plan, sub_topology, read)])
            self._cut_to_taken(read, partition)
        return read

    def _cut_to_taken(self, read: _Input, partition: int) -> None:
        for topic in read.cut_to_taken(partition):
            self._reader(topic, partition).take_back(read.raws[topic], read.positions[topic][partition])

    def _read_topic(
        self, plan: TaskPlan, wanted: OffsetRange, source: SourceNode, read: _Input, clocks: Mapping[str, int]
    ) -> None:
        topic, partition, until_ms = wanted.topic, wanted.partition, plan.until_time_ms
        with during(Activity.FETCH):
            raw = self._reader(topic, partition).read(
                wanted.start,
                wanted.end,
                max_bytes=plan.max_bytes,
                until_time_ms=until_ms if source.timestamp.is_records_own else None,
                is_strict=plan.is_strict,
            )
        if not (np.diff(raw.frame.get_column("offset").to_numpy()) > 0).all():
            raise RuntimeError(f"{topic}-{partition} was read out of order after offset {wanted.start}; start again")
        if topic in self._sub_topology(plan.task).sought_topics or topic in plan.sought:
            check_placement(raw, self._settings.partition_counts[plan.task.sub_topology])
        decoded = decode_source(
            source,
            raw,
            now_ms=plan.now_ms,
            partition_time_ms=clocks.get(partition_clock(topic), UNKNOWN_MS),
            parts=None if self._ahead is None else self._ahead.take(source, raw),
        )
        frame, position = decoded.frame, raw.next_offset
        is_shown = callable(self._handling.deserialization)
        for bad in self._with_headers(decoded.bad) if is_shown else decoded.bad:
            decision = self._handling.decide(bad)
            if decision == "fail":
                read.stopped_at[topic], position = bad, bad.offset
                frame = frame.filter(pl.col("_offset") < position)
                break
            (read.dead if decision == "dead_letter" else read.left_out).append(bad)
        read.skipped += [(topic, offset) for offset in decoded.skipped if offset < position]
        read.positions.setdefault(topic, {})[partition] = position
        read.raws[topic] = raw
        if frame.height:
            rank = self._topology.topic_ranks[topic]
            read.frames[topic] = with_keys(frame, rank, partition, wanted.merge_ms)
            read.times_ms[f"{topic}-{partition}"] = cast(int, frame["_ts"].max())
            if until_ms is not None and not source.timestamp.is_records_own:  # the reader does not know its times
                beyond = (frame["_ts"] > until_ms).arg_true()
                if len(beyond) and (rows := max(not plan.is_strict, beyond[0])) < frame.height:
                    read.cut(topic, partition, rows)
                    self._reader(topic, partition).take_back(raw, read.positions[topic][partition])
                    read.stopped_early.add(topic)
        if (
            until_ms is not None
            and source.timestamp.is_records_own
            and topic not in read.stopped_at
            and raw.next_time_ms is not None
            and raw.next_time_ms > until_ms
        ):
            read.stopped_early.add(topic)

    def _read_ahead(self, plan: TaskPlan, sub_topology: SubTopology, read: _Input) -> None:
        """Begin to read what follows on what the plan has read to its end."""
        if self._ahead is None:
            return
        sources = {source.topic: source for source in sub_topology.sources}
        self._ahead.begin(
            [
                Next(
                    self._reader(wanted.topic, wanted.partition),
                    sources[wanted.topic],
                    wanted.end,
                    wanted.end - wanted.start,
                    plan.max_bytes,
                )
                for wanted in plan.ranges
                if read.positions[wanted.topic][wanted.partition] == wanted.end
            ]
        )

    def _read_global(self, topic: str, partition: int, start: int, end: int) -> FetchedRecords:
        return self._reader(topic, partition).read(start, end, until_time_ms=None, max_bytes=READ_BYTES)

    def _marks_of(self, plan: TaskPlan, sub_topology: SubTopology, read: _Input) -> Iterator[Mark]:
        """How far the task's topics have been read, of those that have more."""
        for wanted in plan.ranges:
            topic, partition = wanted.topic, wanted.partition
            position = read.positions[topic][partition]
            if wanted.available is not None and position < wanted.available:
                frame = read.frames.get(topic)
                yield topic_mark(
                    wanted.merge_ms if frame is None or frame.is_empty() else int(frame[MERGE][-1]),
                    self._topology.topic_ranks[topic],
                    partition,
                    position,
                    sub_topology.ranks[topic],
                )

    def _attempts(
        self,
        plan: TaskPlan,
        raws: Mapping[str, RawRecords],
        session: EpochSession,
        instances: dict[str, object],
        handling: ErrorHandling,
    ) -> Attempts:
        processor = self._processors[plan.task.sub_topology]

        def run(
            turns: Turns,
            clocks: Mapping[str, int],
            *,
            is_last: bool,
            time_ms: int | None = None,
            begins_time: bool = False,
        ) -> EpochOutput:
            return processor.run(
                turns,
                session,
                clocks,
                plan.now_ms,
                partition=plan.task.partition,
                lets_idle=plan.lets_idle and is_last,
                end_time_ms=plan.end_time_ms if is_last else time_ms,
                instances=instances,
                passes_wall_clock=plan.passes_wall_clock,
                begins_time=begins_time,
                stops=plan.stops and is_last,
            )

        return Attempts(
            run=run,
            handling=handling,
            session=session,
            instances=instances,
            raws=raws,
            edges=self._sub_topology(plan.task).edges_in,
            partition=plan.task.partition,
            stops_records=self._sub_topology(plan.task).stops_records,
            with_headers=self._with_headers,
        )

    def _process(
        self,
        plan: TaskPlan,
        read: _Input,
        attempts: Attempts,
        clocks: Mapping[str, int],
        cost: RollbackCost,
        started_s: float,
    ) -> EpochOutput:
        """Run the operators; in batches if the plan limits time or what is uncommitted, on top of what would cost
        ``cost`` to undo. That may leave rows for later, and so does a record that is to be tried again, or at which the
        run stops."""
        sub_topology, turns = self._sub_topology(plan.task), read.arrivals.turns
        budget_s = plan.budget_ms / 1000 if plan.budget_ms is not None and sub_topology.calls_functions else None
        batches = BatchSizes(
            max_bytes=plan.max_uncommitted_bytes,
            max_rollback_us=plan.max_rollback_us,
            budget_s=budget_s,
            first=plan.batch_rows,
            before=self._last_writes.get(plan.task),
            started_s=started_s,
        )
        is_one_batch = batches.are_unlimited or not len(turns)
        outputs: list[EpochOutput] = []
        taken = 0
        while True:
            rows = len(turns) if is_one_batch else min(batches.next, len(turns) - taken)
            until_s = batches.stop_at_s if rows > 1 and not is_one_batch else math.inf
            before = attempts.mark() if until_s < math.inf else None
            try:
                with time_limit(until_s):
                    outputs += attempts.process(
                        turns[taken : taken + rows],
                        outputs[-1].clocks if outputs else clocks,
                        first=taken,
                        is_last=taken + rows == len(turns),
                    )
            except OutOfTimeError:
                assert before is not None
                attempts.back_to(before)
                batches.took_too_long(rows)
                continue
            taken = taken + rows if attempts.ends_at is None else attempts.ends_at
            if not is_one_batch and (taken < len(turns) or taken > FIRST_ROWS):  # else the next would begin as this one
                self._last_writes[plan.task] = written = _written(taken, attempts.session, cost)
            if taken == len(turns):
                return joined(outputs, sub_topology.sinks)
            if attempts.ends_at is None:
                batches.took(rows, written)
            if batches.next == 0 or attempts.ends_at is not None:
                read.arrivals.take(taken)
                self._cut_to_taken(read, plan.task.partition)
                read.was_cut, read.ran_out_of_time = batches.are_too_large, batches.are_late
                return joined(outputs, sub_topology.sinks)

    def _replay(
        self, plan: TaskPlan, session: EpochSession, instances: dict[str, object], output: EpochOutput
    ) -> tuple[EpochOutput, list[BadRecord]]:
        """Process dead letters after what ``output`` came of; all output, and the records that failed again."""
        sub_topology, outputs, dead = self._sub_topology(plan.task), [output], list[BadRecord]()
        for batch in replay_batches(
            plan.letters,
            sub_topology,
            output.clocks,
            {
                source.topic: output.clocks.get(partition_clock(source.topic), UNKNOWN_MS)
                for source in sub_topology.sources
            },
            plan.now_ms,
        ):
            attempts = self._attempts(plan, batch.raws, session, instances, PUT_ASIDE)
            outputs += attempts.process(batch.turns, outputs[-1].clocks, first=batch.first, is_last=False)
            dead += [*batch.bad, *attempts.dead]
        headers = {(letter.topic, letter.partition, letter.offset): letter.headers for letter in plan.letters}
        return joined(outputs, sub_topology.sinks), with_known_headers(dead, headers)

    @contextmanager
    def _writing(
        self,
        plan: TaskPlan,
        sub_topology: SubTopology,
        session: StateSession,
        output: EpochOutput,
        dead: Sequence[BadRecord],
    ) -> Iterator[Callable[[], tuple[tuple[FileEntry, ...], tuple[BlobRef, ...]]]]:
        """Write the rows of the epoch within the block: files of tables, and rows for other tasks. The block gets a
        function that returns them once they are written and durable; it may be called again."""
        syncs = Syncs()
        self._written = syncs.added
        of_tables = self._writes_of_files(plan, sub_topology, session, output, dead, syncs)
        with self._folder.begun(chain(of_tables, self._writes_of_blobs(plan, output))) as results:

            @cache
            def written() -> tuple[tuple[FileEntry, ...], tuple[BlobRef, ...]]:
                with during(Activity.FILES):
                    entries = [each for part in results() for each in part]
                    syncs.wait()
                blobs = tuple(each for each in entries if isinstance(each, BlobRef))
                if blobs:
                    self._on_step("blob written")
                self._on_step("files written")
                return tuple(each for each in entries if isinstance(each, FileEntry)), blobs

            yield written

    def _writes_of_files(
        self,
        plan: TaskPlan,
        sub_topology: SubTopology,
        session: StateSession,
        output: EpochOutput,
        dead: Sequence[BadRecord],
        syncs: Syncs,
    ) -> Iterator[Callable[[], Sequence[FileEntry]]]:
        """What writes the files, one call after another; each one's rows are read when it is asked for."""
        epoch = plan.state.epoch

        def of_epoch(rows: pl.DataFrame) -> pl.DataFrame:
            return with_series(rows, repeated("_epoch", epoch, rows.height, np.int64))

        def writes(spec: TableSpec, rows: pl.DataFrame, **partition: str) -> Callable[[], Sequence[FileEntry]]:
            return lambda: [write_file(self._folder, spec, rows, partition, syncs=syncs)]

        for name, frame in output.sinks.items():
            if frame.height:
                yield partial(write_files, self._folder, self._tables[name], of_epoch(frame), syncs=syncs)
        partition = {"task": self._topology.task_name(plan.task), "segment": str(epoch // SEGMENT_EPOCHS)}
        for store in sub_topology.stores:
            if not store.is_logged:
                continue
            if store.name in plan.to_log:
                changes = whole_changelog_frame(self._folder, store, session, self._topology.task_name(plan.task))
            else:
                changes = changelog_frame(store, session)
            if changes.height:
                yield writes(changelog_spec(store), of_epoch(changes), **partition)
        if dead:
            yield writes(DEAD_LETTERS, dead_letter_frame(dead, epoch))
            if (sink := self._topology.dead_letters) is not None:
                records = dead_letter_records(sink, dead, [letter_id(record, epoch) for record in dead])
                yield partial(write_files, self._folder, outbox_spec(sink), of_epoch(records), syncs=syncs)
        if plan.letters:
            marks = replay_marks(plan.letters, failed_again(plan.letters, dead), epoch)
            yield writes(DEAD_LETTERS, marks)

    def _writes_of_blobs(self, plan: TaskPlan, output: EpochOutput) -> Iterator[Callable[[], Sequence[BlobRef]]]:
        """What writes the rows for other tasks."""
        folder = self._folder / BLOBS

        def writes(rows: pl.DataFrame, edge: str, target: str) -> Callable[[], Sequence[BlobRef]]:
            def write() -> Sequence[BlobRef]:
                source = self._topology.task_name(plan.task)
                blob = write_blob(folder, rows, source=source, target=target, edge=edge, state=plan.state)
                self._written.append((folder, blob.path))
                return [blob]

            return write

        for edge in self._sub_topology(plan.task).edges_out:
            frame = output.edges.get(edge.name)
            if frame is None or not frame.height:
                continue
            target = edge.target
            targets = edge.partition_of(frame, self._settings.partition_counts[target]).alias("_target")
            parts = with_series(frame, targets).partition_by("_target", as_dict=True, include_key=False)
            for (partition,), rows in sorted(parts.items()):
                yield writes(rows, edge.name, self._topology.task_name(TaskId(target, partition)))


def task_rows(positions: Positions, clocks: Mapping[str, int]) -> list[tuple[bytes, bytes]]:
    """The rows of ``TASK_STORE`` for a task at ``positions``, by key, as a restore writes them."""
    return [(CLOCKS_KEY, msgspec.msgpack.encode(dict(clocks))), (POSITIONS_KEY, msgspec.msgpack.encode(positions))]


def partition_clock(topic: str) -> str:
    """The clock for the greatest timestamp read from the task's partition of ``topic``, if its source needs that."""
    return f"_partition_time:{topic}"


def _keep_merge_times(clocks: dict[str, int], plan: TaskPlan, read: _Input) -> None:
    """Note the merge time of each topic that was read; of one that has no more records, what comes is compared by its
    own times again, unless some of it still waits."""
    for wanted in plan.ranges:
        topic, frame = wanted.topic, read.frames.get(wanted.topic)
        last = wanted.merge_ms if frame is None or frame.is_empty() else int(frame[MERGE][-1])
        has_more = wanted.available is not None and read.positions[topic][wanted.partition] < wanted.available
        clocks.pop(merge_clock(topic), None)
        clocks.pop(past_clock(topic), None)
        if has_more and topic in read.next_merge_ms:
            clocks[merge_clock(topic)] = read.next_merge_ms[topic]
        elif last is not None and wanted.available is not None:
            clocks[merge_clock(topic) if has_more else past_clock(topic)] = last


def _partition_times(
    sub_topology: SubTopology, plan: TaskPlan, times_ms: Mapping[str, int], clocks: Mapping[str, int]
) -> dict[str, int]:
    found = {}
    for source in sub_topology.sources:
        read_ms = times_ms.get(f"{source.topic}-{plan.task.partition}")
        if read_ms is not None and isinstance(source.timestamp, UsePartitionTimeOnInvalidTimestamp):
            name = partition_clock(source.topic)
            found[name] = max(read_ms, clocks.get(name, UNKNOWN_MS))
    return found


def load_task_row(view: StateView, key: bytes, kind: type[Row]) -> Row:
    """A task's positions or clocks as ``TASK_STORE`` has them; empty before its first epoch."""
    (stored,) = view.get_many(TASK_STORE, [key])
    try:
        return msgspec.msgpack.decode(stored, type=kind) if stored is not None else kind()
    except msgspec.MsgspecError as error:
        raise RowFormatError((key.decode(),), str(error)) from error


def _written(records: int, session: EpochSession, cost: RollbackCost) -> Written:
    """What the first ``records`` of an epoch have written, on top of what would cost ``cost`` to undo."""
    return Written(
        records=records,
        bytes=session.approximate_num_uncommitted_bytes(),
        rollback_us=cost.us(session.num_changed_keys()) - cost.us(),
    )


def _save(session: StateSession, key: bytes, value: object) -> None:
    """Write ``value`` unless it is stored already, so that an epoch without input leaves nothing to undo."""
    encoded = msgspec.msgpack.encode(value)
    if session.get_many(TASK_STORE, [key]) != [encoded]:
        session.put_many(TASK_STORE, [key], [encoded])


def _stored_receipt(plan_hash: str, store: TaskStore) -> Receipt | None:
    """The receipt of the same plan, if that plan led to the state that the store holds."""
    stored = store.stored_receipt(plan_hash)
    return None if stored is None else _RECEIPTS.decode(stored)


def _refusal(plan: TaskPlan, status: ReceiptStatus, error: str) -> Receipt:
    return Receipt(task=plan.task, plan_hash=plan.plan_hash, status=status, error=error)
