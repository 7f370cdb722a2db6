"""The driver with slots that are threads of this process, so that one may be held up while the others go on.

As in a worker, a task asks before it writes; here every one does, however quick it is.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from msgspec import structs

from tests.faults.dying import KilledError
from tests.pipelines.spark.inline import InlineSlots, Place
from weir.pipelines.spark.parts import RunSpec
from weir.pipelines.spark.progress import RunSummary
from weir.pipelines.spark.signs import Asks, Sign
from weir.pipelines.spark.under_way import ATTEMPTS, Given, PlansUnderWay
from weir.pipelines.tasks.epoch import DriverGoneError, EpochRunner, NotWantedError
from weir.pipelines.tasks.plan import Renewal, TaskPlan
from weir.state.types import TaskId

HELD_LIMIT_S = 100.0


class WorkerKilledError(KilledError):
    """Stands for kill -9 of one worker, which Spark starts again."""


class Gate:
    """Holds up a call that a program makes for a certain record, until a test opens it."""

    def __init__(self, held: int | None = None, *, each_time: bool = False) -> None:
        """``held`` is the number of the record, of which the first call is held up, or each one."""
        self.held, self._each_time = held, each_time
        self.opened, self.is_in = threading.Event(), threading.Event()
        """The second says that a call is held up, or was."""
        self.calls = Counter[int]()
        """By number of the record."""
        self.thread = 0
        """The one that was held up last."""

    def passes(self, number: int) -> None:
        """A record is there."""
        self.calls[number] += 1
        if number == self.held and (self._each_time or self.calls[number] == 1):
            self.hold()

    def hold(self) -> None:
        """Wait until it is opened."""
        self.thread = threading.get_ident()
        self.is_in.set()
        assert self.opened.wait(HELD_LIMIT_S)


class ThreadedSlots(PlansUnderWay):
    """A thread per slot, each with a runner of its own."""

    def __init__(self, spec: RunSpec, runner: Callable[[Callable[[TaskPlan], Renewal | None]], EpochRunner]) -> None:
        super().__init__(spec.slot_of)
        self._make = runner
        self._count = spec.slots
        self._threads = [ThreadPoolExecutor(1) for _ in range(spec.slots)]
        self._runners = {slot: self._runner(slot) for slot in range(spec.slots)}
        self._replies = [queue.SimpleQueue[Renewal | None]() for _ in range(spec.slots)]
        self._at_work: dict[int, Given] = {}
        self._is_gone = False
        self._lost = set[int]()

    def begin(self, plans: Sequence[TaskPlan]) -> None:
        """Without budgets, whose clock all threads would share."""
        super().begin([structs.replace(plan, budget_ms=None, batch_rows=None) for plan in plans])

    def settle(self, requests):
        assert all(self.is_free(request.task) for request in requests)
        found = []
        for request in requests:
            found += InlineSlots(self._runners[self.slot_of[request.task]]).settle([request])
        return found

    @property
    def count(self) -> int:
        return self._count

    def scale(self, count: int) -> None:
        for slot in range(len(self._threads), count):
            self._threads.append(ThreadPoolExecutor(1))
            self._replies.append(queue.SimpleQueue())
            self._runners[slot] = self._runner(slot)
        self._count = count

    def end_unused(self, used: Collection[int]) -> bool:
        while (last := len(self._threads) - 1) >= self._count and last not in used and last not in self._given:
            self._threads.pop().shutdown()
            self._replies.pop()
            del self._runners[last]
        return len(self._threads) > self._count

    def move(self, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        """The old slot closes what it has open for the task, as a worker does."""
        if with_store:
            assert self.is_free(task)
            self._runners[self.slot_of[task]].leave(task)
        super().move(task, slot, with_store=with_store)

    def lost(self) -> Collection[int]:
        return self._lost

    def lose(self, slot: int) -> None:
        """Its executor is gone for Spark, and its worker, which may be there still, is cut off from the driver."""
        self._lost.add(slot)
        self._replies[slot].put(None)

    def driver_dies(self) -> None:
        """Whatever still runs here hears of no driver any more, and has ended when this returns: stores may be closed.

        A store that is closed under the transaction of another thread would leave its lock with that thread for ever.
        """
        self._is_gone = True
        for replies in self._replies:
            replies.put(None)
        for thread in self._threads:
            thread.shutdown()

    def _begin(self, slot: int, given: Given) -> None:
        self._threads[slot].submit(self._carry_out, slot, given)

    def _runner(self, slot: int) -> EpochRunner:
        def renewal(plan: TaskPlan) -> Renewal | None:
            self._at_work[slot].heard(Asks(plan.task), self._replies[slot].put)
            answer = self._replies[slot].get()
            if self._is_gone:
                raise DriverGoneError
            if answer is None:
                raise NotWantedError
            return answer

        return self._make(renewal)

    def _carry_out(self, slot: int, given: Given) -> None:
        self._at_work[slot] = given
        while True:
            given.sent()
            try:
                for plan in given.plans[len(given.receipts) :]:
                    given.heard(Sign(task=str(plan.task), asks=True), lambda renewed: None)
                    given.heard(self._runners[slot].run(plan), lambda renewed: None)
                given.ended()
                return
            except WorkerKilledError:
                self._runners[slot] = self._runner(slot)
            except DriverGoneError:
                return
            except BaseException as error:
                given.attempts = ATTEMPTS
                given.ended(error)
                return


@dataclass
class ThreadedPlace(Place):
    """Where an application runs in several slots."""

    slot_count: int = 2
    used: list[ThreadedSlots] = field(default_factory=list)
    """The slots of each generation."""

    def spec(self, **accepts: bool) -> RunSpec:
        return replace(super().spec(**accepts), slots=self.slot_count)

    def slots(self, spec: RunSpec, on_step: Callable[[str], None]) -> ThreadedSlots:
        self.used.append(ThreadedSlots(spec, lambda renewal: self.runner(spec, on_step, renewal)))
        return self.used[-1]

    def begin(
        self, on_step: Callable[[str], None] = lambda name: None, *, until_caught_up: bool = True
    ) -> tuple[Future[RunSummary], threading.Event]:
        """A new generation that runs beside the caller, and what stops it."""
        driver, stop = self.driver(on_step), threading.Event()
        with_thread = ThreadPoolExecutor(1)
        self.used[-1].while_waiting = driver.while_waiting
        run = with_thread.submit(driver.run, stop, until_caught_up=until_caught_up)
        with_thread.shutdown(wait=False)
        return run, stop

    def positions(self, topic: str) -> list[int]:
        """What is committed of a topic, by partition."""
        commit, found = self.commit_before(), dict[int, int]()
        for task in commit.tasks.values() if commit else ():
            found |= task.positions.get(topic, {})
        return [offset for _, offset in sorted(found.items())]
