"""Where a simulated application runs: the place of inline tests, with slots, restores and snapshots as processes.

What is under way in the slots is kept by the real ``PlansUnderWay``; workers are processes that may die, sleep, be
replaced while they are alive, and ask for a renewal as real ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.pipelines.spark.inline import InlineStandbys, Place
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.stores import Cache, Stores, none_open
from weir.pipelines.application import Application
from weir.pipelines.spark.driver import Driver, started_driver
from weir.pipelines.spark.parts import NOTHING_TO_PUBLISH, Executors, Listeners, Publishing, RunSpec
from weir.pipelines.spark.restore_jobs import Restored, RestoreRequest, restore
from weir.pipelines.spark.signs import SIGN_EVERY_S, Asks
from weir.pipelines.spark.snapshot_jobs import Published, SnapshotRequest, publish
from weir.pipelines.spark.under_way import Given, PlansUnderWay
from weir.pipelines.spark.worker import SettleRequest
from weir.pipelines.tasks.epoch import DriverGoneError, EpochRunner, NotWantedError, TaskSettings
from weir.pipelines.tasks.plan import Renewal, TaskPlan
from weir.state.changelog.restore import RestoreProgress
from weir.state.types import TaskId


@dataclass(frozen=True)
class Worker:
    """What a worker has as long as it lives."""

    runner: EpochRunner
    stores: Cache = field(default_factory=none_open)


class SimulatedSlots(PlansUnderWay):
    """Slots whose workers are processes of the world."""

    def __init__(self, scheduler: Scheduler, stores: Stores, spec: RunSpec, runner: Callable[[], EpochRunner]) -> None:
        super().__init__(spec.slot_of)
        self._slots_count = spec.slots
        self._departures: dict[int, list[TaskId]] = {}
        """Tasks that have moved to other slots, by the slot that has yet to hear of it."""
        self._scheduler, self._stores, self._new_runner = scheduler, stores, runner
        self._driver = scheduler.current
        self._workers: dict[int, Worker] = {}
        """The newest of each slot."""
        self._at_work: dict[int, tuple[Process, Given]] = {}

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        return [
            (request.task, self._settled(self._worker(self.slot_of[request.task]), request)) for request in requests
        ]

    @property
    def count(self) -> int:
        return self._slots_count

    def scale(self, count: int) -> None:
        self._slots_count = count

    def end_unused(self, used: Collection[int]) -> bool:
        for slot in [slot for slot in self._workers if slot >= self._slots_count and slot not in used]:
            if slot not in self._given:
                del self._workers[slot]
                self._departures.pop(slot, None)
        return any(slot >= self._slots_count for slot in (*used, *self._given))

    def move(self, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        """The worker of the old slot closes what it has open for the task now, or when it works again."""
        if with_store:
            self._leave(self._worker(self.slot_of[task]), task)
        else:
            self._departures.setdefault(self.slot_of[task], []).append(task)
        super().move(task, slot, with_store=with_store)

    def _leave(self, worker: Worker, task: TaskId) -> None:
        with self._stores.using(worker.stores):
            worker.runner.leave(task)

    def replaced(self, worker: Process) -> None:
        """Spark has given up ``worker``, dead or not: if it was the newest of its slot, another one takes its place."""
        for slot, (newest, given) in list(self._at_work.items()):
            if newest is worker and not given.has_ended and self._driver is not None and self._driver.is_alive:
                self._workers.pop(slot, None)
                self._begin(slot, given)

    def _settled(self, worker: Worker, request: SettleRequest) -> bool:
        with self._stores.using(worker.stores):
            return worker.runner.settle(
                request.task,
                request.instance,
                generation=request.generation,
                committed=request.committed,
                close=request.close,
            )

    def _worker(self, slot: int) -> Worker:
        if slot not in self._workers:
            self._workers[slot] = Worker(self._new_runner())
        return self._workers[slot]

    def _begin(self, slot: int, given: Given) -> None:
        number = 1 + getattr(self, "_count", 0)
        self._count = number
        name = f"{self._driver.name if self._driver else ''}/w{slot}.{number}"
        worker = self._worker(slot)
        self._at_work[slot] = self._scheduler.spawn(name, lambda: self._work(slot, given, worker)), given

    def _work(self, slot: int, given: Given, worker: Worker) -> None:
        me, began_s = self._scheduler.current, self._scheduler.now_s
        is_newest = lambda: self._at_work[slot][0] is me
        given.sent()

        def renewal(plan: TaskPlan) -> Renewal | None:
            if not plan.asks and self._scheduler.now_s - began_s <= SIGN_EVERY_S:
                return None
            answers: list[Renewal | None] = []
            given.heard(Asks(plan.task), answers.append)
            while not answers:
                if not is_newest() or self._driver is None or not self._driver.is_alive:
                    raise DriverGoneError
                self._scheduler.sleep(0.01)
            if answers[0] is None:
                raise NotWantedError
            return answers[0]

        worker.runner._renewal = renewal
        for task in self._departures.pop(slot, ()):
            self._leave(worker, task)
        for plan in given.plans[len(given.receipts) :]:
            try:
                with self._stores.using(worker.stores):
                    receipt = worker.runner.run(plan)
            except DriverGoneError:
                return
            self._scheduler.point(f"answers {plan.task} {plan.state}: {receipt.status.value} {receipt.error}".rstrip())
            if not is_newest():
                return
            given.heard(receipt, lambda renewed: None)
            self._scheduler.point("is heard")
        given.ended()


@dataclass
class SimulatedRestores:
    """Restores as processes of the world."""

    scheduler: Scheduler
    restore: Callable[[RestoreRequest], Restored]
    done: list[Restored] = field(default_factory=list)

    def keep_ready(self) -> None:
        pass

    def start(self, requests: Sequence[RestoreRequest], *, beside_epochs: bool) -> None:
        for request in requests:
            self.scheduler.note(f"restore of {request.task}: {request.reason}")
            self.scheduler.spawn(f"restore {request.task}", lambda request=request: self._work(request))

    def finished(self) -> list[Restored]:
        found, self.done = self.done, []
        return found

    def progress(self) -> Mapping[TaskId, RestoreProgress]:
        return {}

    def _work(self, request: RestoreRequest) -> None:
        try:
            restored = self.restore(request)
        except Exception as error:
            restored = Restored(request=request, rows=0, seconds=0.0, error=f"{type(error).__name__}: {error}")
        self.done.append(restored)


@dataclass
class SimulatedSnapshots:
    """Snapshots as processes of the world."""

    scheduler: Scheduler
    publish: Callable[[SnapshotRequest], Published]
    waiting: dict[TaskId, SnapshotRequest] = field(default_factory=dict)
    done: list[Published] = field(default_factory=list)

    @property
    def tasks(self) -> set[TaskId]:
        return set(self.waiting)

    def start(self, request: SnapshotRequest) -> None:
        self.waiting[request.task] = request
        self.scheduler.spawn(f"snapshot {request.task}", lambda: self._work(request))

    def finished(self) -> list[Published]:
        found, self.done = self.done, []
        for each in found:
            del self.waiting[each.request.task]
        return found

    def _work(self, request: SnapshotRequest) -> None:
        published = self.publish(request)
        self.done.append(published)


@dataclass
class SimulatedPlace(Place):
    """A place whose parts are processes of a world."""

    scheduler: Scheduler = field(kw_only=True)
    stores: Stores = field(kw_only=True)
    slots_count: int = 1
    host: str = "a"
    """Whose local state the next driver and its workers find."""
    slots_now: list[SimulatedSlots] = field(default_factory=list)
    """Those of all drivers so far."""

    @property
    def state_folder(self) -> Path:
        return self.folder / f"state-{self.host}"

    def spec(self, **accepts: bool) -> RunSpec:
        return replace(super().spec(**accepts), slots=self.slots_count)

    def driver(
        self,
        on_step: Callable[[str], None] = lambda name: None,
        *_: Any,
        publishing: Publishing = NOTHING_TO_PUBLISH,
        **accepts: bool,
    ) -> Driver:
        scheduler, on_step = self.scheduler, self.scheduler.point
        spec = self.spec(**accepts)
        application, settings = spec.application, replace(spec.task_settings, reads_ahead=False)
        slots = SimulatedSlots(scheduler, self.stores, spec, lambda: self._runner(application, settings, on_step))
        self.slots_now.append(slots)
        executors = Executors(
            slots=slots,
            restores=SimulatedRestores(
                scheduler, lambda request: restore(application, settings, request, self.topics.reader)
            ),
            snapshots=SimulatedSnapshots(scheduler, lambda request: publish(application, settings, request)),
            standbys=InlineStandbys(application, settings),
        )
        listeners = Listeners(control=self.desk, publishing=publishing, wait_for_disk=self._waits)
        return started_driver(spec, spec.committer(on_step), executors, listeners)

    def _waits(self, error: Exception) -> bool:
        self.scheduler.note(f"waits for room: {error}")
        self.scheduler.sleep(1.0)
        return True

    def _runner(self, application: Application, settings: TaskSettings, on_step: Callable[[str], None]) -> EpochRunner:
        readers = cache(self.topics.reader)
        return EpochRunner(application.topology, settings, readers, on_step, application.error_handling)
