"""The work of a restore: Spark jobs that rebuild tasks whose state is lost or in doubt, while the others continue.

The old folder goes to quarantine, and the changelog's newest rows become a new instance (PROTOCOL 19 to 21). A restore
reports its progress through a small file in the task's folder, which the driver reads on the same host. Reading the
changelog belongs to ``weir.state.changelog.restore``; deciding that a task restores, to
``weir.pipelines.spark.restores``.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from pyspark import SparkContext

from weir.infra.spark.executors import executor_id
from weir.pipelines.application import Application
from weir.pipelines.spark.background import BackgroundJobs, first_line
from weir.pipelines.spark.ready import ReadyWorkers
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings, worker_for
from weir.pipelines.tasks.ahead import Reader
from weir.pipelines.tasks.epoch import TaskSettings, task_rows
from weir.pipelines.tasks.rebuilding import rebuilt
from weir.pipelines.topology.clocks import clocks_of
from weir.state.changelog.restore import OnProgress, RestoreProgress, restore_task
from weir.state.commit.log import newest_commit, newest_generation
from weir.state.commit.record import TaskCommit
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.contract import StateView
from weir.state.engine.in_memory import place
from weir.state.engine.instances import instance_folder, set_current
from weir.state.engine.quarantine import quarantine
from weir.state.engine.standby import Left, StandbyError
from weir.state.errors import FencedStoreError
from weir.state.full_disk import disk_full, is_disk_full
from weir.state.storage.object_store import away, is_away
from weir.state.storage.places import Place, disks, folder_at
from weir.state.types import IsolationLevel, StateId, TaskId

_PROGRESSES = msgspec.json.Decoder(RestoreProgress)

log = logging.getLogger(__name__)

POOL = "restores"
TELL_EVERY_S = 0.2

_PROGRESS = "restoring.json"
_REBUILDING = ".rebuilding"
"""No instance: its name begins with a dot."""


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """Builds ``instance`` of a task as of a commit."""

    task: TaskId
    instance: str
    commit: TaskCommit
    """Where the task stood; its ``instance`` is the folder that goes to quarantine."""
    through: StateId
    """The commit whose changelog rows are the newest to count."""
    generation: int
    reason: str
    take_snapshot: bool
    """Whether the snapshot's own file may become the instance; the driver then has a new one published."""
    takes_standby: bool = False
    """Whether the task's standby on the executor becomes the instance; if that cannot be, there is none."""
    left: Left | None = None
    """What the task has left on the executor, which is to be its standby and has not followed yet."""
    before: int | None = None
    """The generation whose standby it may be, as everything else of it goes on; None if there is none."""
    is_short: bool = False
    """Whether it takes a moment, so that the slot of the task may do it between two epochs."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """How a restore ended."""

    request: RestoreRequest
    rows: int
    seconds: float
    source: str = ""
    """What the new instance was built from."""
    from_snapshot: bool = False
    is_without_standby: bool = False
    """Whether the standby that was to be taken cannot be used; nothing is there of the new instance."""
    is_snapshot_gone: bool = False
    """Whether the snapshot that the commit lists was used up, or was missing."""
    error: str = ""
    """Why there is no new instance, in one sentence; empty when there is one."""
    lacks: str = ""
    """What it waits for, if it can be tried again: a disk that is full, an object store that does not answer, or an
    executor that is gone. Then nothing is left of the new instance."""


def restore(
    application: Application,
    settings: TaskSettings,
    request: RestoreRequest,
    reader: Callable[[str, int], Reader],
) -> Restored:
    """Carry out ``request`` on this host; what an attempt that died left behind goes to quarantine too. A full disk is
    an answer, since the restore can be tried again.

    Its driver may have been frozen since it began this. So the commit log is asked here too, before anything is moved
    and before queries get another instance, and the folder itself once it is moved.

    Raises:
        FencedStoreError: A newer driver has taken over; its instance is where it was.
    """
    try:
        return _restore(application, settings, request, reader)
    except StandbyError as error:
        return Restored(request=request, rows=0, seconds=0.0, error=str(error), is_without_standby=True)
    except Exception as error:
        if not (is_disk_full(error) or is_away(error)):
            raise
        folder = Path(settings.state_folder, application.topology.task_name(request.task))
        shutil.rmtree(folder / request.instance, ignore_errors=True)
        folders = [folder, *disks(folder_at(settings.application_folder))]
        return Restored(
            request=request,
            rows=0,
            seconds=0.0,
            error=str(
                away(settings.application_folder, error)
                if is_away(error)
                else disk_full(error, f"task {folder.name}", folders)
            ),
            lacks="an answer" if is_away(error) else "space",
        )


def _restore(
    application: Application,
    settings: TaskSettings,
    request: RestoreRequest,
    reader: Callable[[str, int], Reader],
) -> Restored:
    started = time.perf_counter()
    sub_topology = application.topology.sub_topology(request.task.sub_topology)
    name = application.topology.task_name(request.task)
    folder = Path(settings.state_folder, name)
    application_folder = folder_at(settings.application_folder)
    _require_newest(application_folder, name, request.generation)
    (folder / _PROGRESS).unlink(missing_ok=True)
    # 2. The old instance quarantined
    quarantine(instance_folder(folder, request.commit.instance), request.reason, request.generation)
    quarantine(folder / request.instance, "the restore that built it did not finish", request.generation)
    tell = _Teller(folder)
    with _rebuilt(application, folder / _REBUILDING, request, reader, tell) as rebuilt:
        store = restore_task(
            application_folder,
            folder / request.instance,
            name,
            sub_topology.stores,
            request.commit,
            request.through,
            generation=request.generation,
            task_rows=task_rows(request.commit.positions, request.commit.clocks),
            take_snapshot=request.take_snapshot,
            standby=folder if request.takes_standby else None,
            standby_only=request.takes_standby,
            left=request.left,
            before=request.before,
            rebuilt=rebuilt,
            on_progress=tell,
        )
    with store.reader(IsolationLevel.READ_COMMITTED) as held:
        count = sum(held.count(spec.name) for spec in sub_topology.stores)
    store.close()  # not synced: after a restart of the machine it would not be trusted in any case
    place(store.folder, in_memory=sub_topology.is_in_memory)
    _require_newest(application_folder, name, request.generation)
    # 5. The new instance named
    set_current(folder, request.instance)
    try:
        _require_newest(application_folder, name, request.generation)
    except FencedStoreError:  # frozen since it was asked before: the newer driver's instance is named again
        newest = newest_commit(application_folder.parent, application_folder.name)
        if newest is not None and name in newest.tasks:
            set_current(folder, newest.tasks[name].instance)
        raise
    (folder / _PROGRESS).unlink(missing_ok=True)
    snapshot = request.commit.snapshot
    return Restored(
        request=request,
        rows=count,
        seconds=time.perf_counter() - started,
        source=tell.source,
        from_snapshot=tell.from_snapshot,
        is_snapshot_gone=snapshot is not None and application_folder.find(snapshot.path) is None,
    )


def _require_newest(application_folder: Place, task: str, generation: int) -> None:
    newest = newest_generation(application_folder.parent, application_folder.name)
    if newest > generation:
        raise FencedStoreError(task, generation, newest)


@contextmanager
def _rebuilt(
    application: Application,
    folder: Path,
    request: RestoreRequest,
    reader: Callable[[str, int], Reader],
    tell: OnProgress,
) -> Iterator[Mapping[str, StateView]]:
    """Views of the stores that are computed again, in ``folder``, which is removed afterwards (PROTOCOL 38)."""
    commit, partition = request.commit, request.task.partition
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that died
    try:
        with ExitStack() as views:
            found = {}
            for name, beginning in commit.beginnings.items():
                topology = application.topology.rebuilding(name)
                together = [spec.name for each in topology.sub_topologies for spec in each.stores]
                store = rebuilt(
                    topology,
                    folder / name,
                    name,
                    partition,
                    beginning,
                    commit.positions[beginning.topic][partition],
                    clocks_of(together, commit.clocks),
                    reader,
                    tell,
                )
                views.callback(TaskStoreCache.discard, store.folder)
                found[name] = views.enter_context(store.reader(IsolationLevel.READ_UNCOMMITTED))
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Teller:
    """Writes the newest progress into the task's folder, a few times a second."""

    def __init__(self, folder: Path) -> None:
        self._path, self._part = folder / _PROGRESS, folder / f".{_PROGRESS}.{os.getpid()}"
        self._after = 0.0
        self.source, self.from_snapshot = "", False

    def __call__(self, progress: RestoreProgress) -> None:
        self.source, self.from_snapshot = progress.source, progress.from_snapshot
        if time.monotonic() < self._after:
            return
        self._after = time.monotonic() + TELL_EVERY_S
        self._part.write_bytes(msgspec.json.encode(progress))
        self._part.replace(self._path)


def read_progress(folder: Path) -> RestoreProgress | None:
    """The progress of the restore of the task in ``folder``, if it has begun on this host."""
    try:
        return _PROGRESSES.decode((folder / _PROGRESS).read_bytes())
    except FileNotFoundError:
        return None


def run_restores(
    settings: WorkerSettings, requests: Sequence[RestoreRequest], rows: Iterable[object] = (), executor: str = ""
) -> Iterator[Restored]:
    """``restore`` one after another, in a slot or a Spark task of its own; a failure is an answer, since a retry would
    fail too. Elsewhere than on ``executor``, if one is given, nothing would find what is restored."""
    list(rows)
    if executor and executor != executor_id():
        yield from (_away(request, executor) for request in requests)
        return
    worker = worker_for(settings)
    settings = settings.here()
    for request in requests:
        try:
            yield restore(settings.application(), settings.tasks, request, worker.reader)
        except Exception as error:
            log.exception("task %s: its restore failed", request.task)
            yield _failed(request, error)


class RestoreJobs:
    """Restores under way, in at most as many jobs as there are slots."""

    def __init__(
        self,
        spark_context: SparkContext,
        settings: WorkerSettings,
        slots: SlotPool,
        names: Callable[[TaskId], str],
    ) -> None:
        """``names`` gives the name of a task's folder."""
        self._settings, self._slots, self._names = settings, slots, names
        self._jobs = BackgroundJobs[Restored](spark_context, POOL, at_once=slots.count)
        self._requests: dict[TaskId, RestoreRequest] = {}
        self._ready = ReadyWorkers(spark_context, settings, slots, POOL)

    def keep_ready(self) -> None:
        """Have workers wait, on a cluster."""
        if self._settings.is_on_cluster:
            self._ready.keep()

    def start(self, requests: Sequence[RestoreRequest], *, beside_epochs: bool) -> None:
        """Begin; ``finished`` tells when they are done.

        Beside epochs, each restore is a separate job. Otherwise the slots' workers are free to help; what is short is
        done there in any case, before the worker of a job would have started.
        """
        self._requests |= {request.task: request for request in requests}
        of_slots: dict[int, list[RestoreRequest]] = {}
        for request in requests:
            if beside_epochs and not request.is_short:
                home, wanted = self._slots.home_of(request.task), ""
                if self._settings.is_on_cluster:
                    wanted = self._slots.executor_of(self._slots.slot_of[request.task])
                work = partial(run_restores, self._settings, [request], executor=wanted)
                self._jobs.start([request.task], work, home)
            else:
                of_slots.setdefault(self._slots.slot_of[request.task], []).append(request)
        for slot, group in of_slots.items():
            self._jobs.watch([request.task for request in group], self._slots.ask(slot, run_restores, group))

    def finished(self) -> list[Restored]:
        """Those that ended since the last call, including the failed ones."""
        return [
            _failed(self._requests[task], answer) if isinstance(answer, BaseException) else answer
            for task, answer in self._jobs.finished()
        ]

    def progress(self) -> dict[TaskId, RestoreProgress]:
        """The progress of those that have begun."""
        folders = {task: Path(self._settings.tasks.state_folder, self._names(task)) for task in self._jobs.tasks}
        return {task: found for task, folder in folders.items() if (found := read_progress(folder)) is not None}

    def close(self) -> None:
        self._jobs.close()
        self._ready.close()


def _away(request: RestoreRequest, executor: str) -> Restored:
    why = f"executor {executor}, where the task runs, is lost; its slot begins on another one"
    return Restored(request=request, rows=0, seconds=0.0, error=why, lacks="its executor")


def _failed(request: RestoreRequest, error: BaseException) -> Restored:
    return Restored(request=request, rows=0, seconds=0.0, error=first_line(error))
