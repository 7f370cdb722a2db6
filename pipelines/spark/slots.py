"""Slots: a Spark task each that runs as long as the driver, whose Python worker answers what the driver asks.

A Spark job per epoch would cost more than the work of a small one, so plans and receipts travel over a connection that
each worker makes to the driver (docs/adr/0002). Spark starts a worker again that is lost; it connects anew, and gets
what was not answered once more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import TypeVar, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException

from weir.infra.spark import DRIVER
from weir.infra.spark.executors import Executor, executors, most_slots_of_executor, row_at
from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.signs import SIGN_EVERY_S, Asks, Sign
from weir.pipelines.spark.under_way import FRESH_S, Given, PlansUnderWay
from weir.pipelines.spark.worker import (
    Failure,
    SettleRequest,
    WorkerSettings,
    run_departures,
    run_plans,
    run_settles,
    run_warm_up,
    send_at_once,
    serve,
)
from weir.pipelines.tasks.plan import Renewal
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Work = Callable[[WorkerSettings, Sequence[Item]], Iterable[Answer]]
"""What a slot does with items of one kind: a function of a module, which gives one answer per item, in their order."""
SLOT_VARIABLE = "_WEIR_SLOT"
TRIES = 4
"""How often a slot is asked the same before a lost worker is an error."""
LOOPBACK = "127.0.0.1"
BACKLOG = 64
"""How many workers may connect at the same time, at least: slots can be added."""
_BELOW = ("at ", "Driver stacktrace", "SQLSTATE")
"""How the lines begin that stand below the reason in a message of Spark's."""
MOVE_LIMIT_S = 5.0
"""How long a slot may take to close what it has open for a task that moves away."""
LOST_EVERY_S, LOST_SOON_S = 2.0, 0.2
"""How often it is looked whether executors are gone, and while a slot is without a worker."""
WORK_LIMIT_S = 0.5
"""How long a slot may still be at work at the end of the run; then its worker is killed."""
END_LIMIT_S = 3.0
"""How long that may take; then it ends with the Spark context."""


class SlotError(Exception):
    """A slot does not answer; the same may be asked again."""


class SlotLostError(SlotError):
    """A slot's worker was lost each time that it was asked the same."""

    def __init__(self, slot: int) -> None:
        super().__init__(f"the worker of slot {slot} was lost {TRIES} times")


class SlotFailedError(SlotError):
    """What a slot was asked raised an error there."""

    def __init__(self, slot: int, reason: str) -> None:
        super().__init__(f"slot {slot}: {reason}")


class WorkerStartError(RunError):
    """Spark cannot start the worker of a slot, or it fails before it connects."""

    def __init__(self, slot: int, reason: str) -> None:
        super().__init__(slot, reason)
        self.slot, self.reason = slot, reason

    def __str__(self) -> str:
        return f"the worker of slot {self.slot} does not start: {self.reason}; a new start begins at the last commit"


class SlotPool(PlansUnderWay):
    """The slots of an application.

    Once it is made, the workers are started, the application is imported and the consumers are connected.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        slots: int,
        settings: WorkerSettings,
        slot_of: Mapping[TaskId, int],
        homes: Sequence[Executor] = (),
        host: str = LOOPBACK,
    ) -> None:
        """``homes`` are the executors of the slots, one each, and ``host`` is where they reach the driver; none on a
        single host."""
        super().__init__(slot_of)
        self._context, self._settings, self._key = spark_context, settings, secrets.token_bytes(32)
        self._homes = homes
        self._racks: dict[str, str | None] = {}
        """By executor, as the workers of slots have told it."""
        self._lost: dict[int, str] = {}
        """The slots whose executor was gone at the last look, with its id."""
        self._leaving: frozenset[str] = frozenset()
        """The executors that Spark was decommissioning at the last look, if there are others."""
        self._looked_s = 0.0
        self._threads = max(slots, spark_context.defaultParallelism - slots)
        """How many slots the context of a single host has threads for, beside those of restores and snapshots."""
        self._listener = Listener((host, 0), backlog=max(slots, BACKLOG), authkey=self._key)
        self._count = slots
        self._slots = list[_Slot]()
        """Those that end have greater numbers than the others."""
        self._ended = list[_Slot]()
        """Those whose Spark tasks may still be there."""
        for slot in range(slots):
            self._add_slot(homes[slot] if homes else None)
        self._accepting = threading.Thread(target=self._accept, name="slots", daemon=True)
        self._accepting.start()
        try:
            started = [
                self.ask(slot, run_warm_up, [task for task, its_slot in slot_of.items() if its_slot == slot])
                for slot in range(slots)
            ]
            for each in started:
                each.result()
        except BaseException:
            self.close()
            raise

    def scale(self, count: int) -> None:
        """As ``parts.Slots`` has it; the new ones go to the executors that have the fewest. Call it from the driver's
        thread."""
        there = [each for each in self._there() if not each.is_leaving] if self._homes else []
        if count > self.count:
            self._require_room(count, there)
        if count > len(self._slots):
            self._await_ended()
        held = Counter(slot.executor for slot in self._slots[:count])
        for slot in range(len(self._slots), count):
            home = min(there, key=lambda executor: held[executor.id]) if there else None
            if home is not None:
                held[home.id] += 1
            self._add_slot(home)
            self._wake(slot)
        self._count = count

    def _require_room(self, count: int, there: Sequence[Executor]) -> None:
        if not self._homes:
            if count > self._threads:
                raise RunError(
                    f"there can be at most {self._threads} slots on the cores of this host; for more, start again with "
                    f"--set slots={count}"
                )
            return
        each = most_slots_of_executor(self._context)
        if count > (most := each * len(there)):
            raise RunError(
                f"there can be at most {most} slots on {len(there)} executors, whose cores are enough for {each} each; "
                f"have more executors join, or start again with --set slots={count}"
            )

    def end_unused(self, used: Collection[int]) -> bool:
        """As ``parts.Slots`` has it."""
        while (last := len(self._slots) - 1) >= self._count and last not in used and last not in self._given:
            slot = self._slots.pop()
            self._lost.pop(last, None)
            slot.close()
            self._ended.append(slot)
            log.info("slot %s has ended", last)
        return len(self._slots) > self._count

    def _await_ended(self) -> None:
        """See that the workers of slots that have ended are gone: others get their numbers."""
        jobs = {job: slot for slot in self._ended if (job := slot.job) is not None}
        for job in wait(jobs, WORK_LIMIT_S).not_done:
            jobs[job].kill()
        wait(jobs, END_LIMIT_S)
        self._ended.clear()

    def _add_slot(self, home: Executor | None) -> None:
        slot = len(self._slots)
        self._slots.append(_Slot(slot, self._task_of(slot, home), home.id if home else DRIVER))

    def _task_of(self, slot: int, home: Executor | None) -> RDD[object]:
        # Spark keys its pools of workers by environment: each slot has a worker of its own, also after a restart.
        self._context.environment[SLOT_VARIABLE] = str(slot)
        task = row_at(self._context, home).mapPartitions(
            partial(serve, self._settings, slot, self._listener.address, self._key)
        )
        task._jrdd  # binds the environment of this moment  # noqa: B018
        return task

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        """Whether each task held its committed state, in which case its undo log is gone now; nothing is said of those
        whose executor is gone.

        Raises:
            SlotError: A slot does not answer; the same may be asked again.
        """
        return self._each(run_settles, requests, lambda request: request.task)

    def ask(self, slot: int, work: Work[Item, Answer], items: Sequence[Item]) -> Future[list[Answer]]:
        """Have ``slot`` do ``work`` once it has done what it was asked before."""
        return self._slots[slot].ask(work, items)

    def move(self, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        left = self.ask(self.slot_of[task], run_departures, [task])
        if with_store:
            try:
                left.result(MOVE_LIMIT_S)
            except SlotError as error:
                raise RunError(f"task {task} stays where it is: {error}") from error
            except TimeoutError:
                raise RunError(
                    f"task {task} stays where it is: its slot has not answered for {MOVE_LIMIT_S:g} s"
                ) from None
        super().move(task, slot, with_store=with_store)

    @property
    def count(self) -> int:
        return self._count

    def executor_of(self, slot: int) -> str:
        return self._slots[slot].executor

    def executors(self) -> Sequence[str]:
        return [each.id for each in self._there() if not each.is_leaving] if self._homes else [DRIVER]

    def rack_of(self, executor: str) -> str | None:
        return self._racks.get(executor)

    def go(self, slot: int, executor: str) -> None:
        if (home := self.executor_at(executor)) is not None:
            self._slots[slot].go(self._task_of(slot, home), executor)
            self._wake(slot)

    def lost(self) -> Collection[int]:
        now_s = time.monotonic()
        if self._homes and now_s >= self._looked_s + LOST_SOON_S:
            is_whole = all(each.is_connected for slot, each in enumerate(self._slots) if slot not in self._lost)
            if not is_whole or now_s >= self._looked_s + LOST_EVERY_S:
                self._look_for_lost()
                self._looked_s = now_s
        return [slot for slot, executor in self._lost.items() if self._slots[slot].executor == executor]

    def leaving(self) -> Collection[int]:
        self.lost()  # looks, if it is time to
        return [number for number, slot in enumerate(self._slots) if slot.executor in self._leaving]

    def _look_for_lost(self) -> None:
        known = [slot.executor for slot in self._slots]  # first, since a slot may come from one that is new
        there = self._there()
        ids = {each.id for each in there}
        gone = {slot: executor for slot, executor in enumerate(known) if executor not in ids}
        if not any(slot not in gone and each.is_connected for slot, each in enumerate(self._slots)):
            gone = {}
        for slot, executor in sorted(gone.items() - self._lost.items()):
            log.warning("executor %s is lost; slot %s waits for another one", executor, slot)
            self._slots[slot].cut_off()
        self._lost = gone
        leaving = frozenset(each.id for each in there if each.is_leaving)
        leaving = leaving if leaving < ids else frozenset()
        for executor in sorted(leaving - self._leaving):
            log.warning("executor %s is decommissioned; its tasks and slots go to others", executor)
        self._leaving = leaving

    def _there(self) -> list[Executor]:
        return executors(self._context)

    def is_ready(self, slot: int) -> bool:
        return self._slots[slot].is_connected and super().is_ready(slot)

    def _wake(self, slot: int) -> None:
        """Have the worker of a slot started, though it may have no tasks."""

        its = self._slots[slot]

        def told(woken: Future[list[TaskId]]) -> None:
            if not woken.cancelled() and (error := woken.exception()) is not None and not its.is_closed:
                log.warning("slot %s is without a worker: %s", slot, error)

        self.ask(slot, run_warm_up, list[TaskId]()).add_done_callback(told)

    def executor_at(self, wanted: str) -> Executor | None:
        """The executor with this id; None on a single host, or if it is lost."""
        there = self._there() if self._homes else []
        return next((each for each in there if each.id == wanted), None)

    def home_of(self, task: TaskId) -> Executor | None:
        """The executor that has the state of ``task``; None on a single host, or if it is lost."""
        return self.executor_at(self.executor_of(self.slot_of[task]))

    def close(self) -> None:
        """End the workers' tasks."""
        for slot in self._slots:
            slot.close()
        self._ended += self._slots
        self._await_ended()
        with contextlib.suppress(OSError), Client(self._listener.address, authkey=None):
            pass  # wakes the thread that accepts
        self._listener.close()

    def _begin(self, slot: int, given: Given) -> None:
        self._slots[slot].carry_out(given)

    def _each(self, work: Work[Item, Answer], items: Sequence[Item], task_of: Callable[[Item], TaskId]) -> list[Answer]:
        shares: dict[int, list[Item]] = {}
        for item in items:
            shares.setdefault(self.slot_of[task_of(item)], []).append(item)
        asked = {slot: self.ask(slot, work, share) for slot, share in sorted(shares.items())}
        while waiting := wait(asked.values(), timeout=SIGN_EVERY_S).not_done:
            lost = self.lost()
            asked = {slot: answers for slot, answers in asked.items() if slot not in lost or answers not in waiting}
            fresh_s = time.monotonic() - FRESH_S
            if signs := [slot.sign[0] for slot in self._slots if slot.sign is not None and slot.sign[1] > fresh_s]:
                self.while_waiting(signs)
        return [answer for answers in asked.values() for answer in answers.result()]

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                number, executor, self._racks[executor] = connection.recv()
                if number < len(self._slots):
                    self._slots[number].connected(connection, executor)
                else:  # of a slot that has ended
                    connection.close()
            except (AuthenticationError, EOFError, ConnectionError):
                if any(slot.is_closed for slot in self._slots):  # not of one that has ended while the others go on
                    return
            except OSError:
                return


class _Slot:
    """One slot: its Spark task, the connection to its worker, and the thread that asks it one thing after another."""

    def __init__(self, number: int, task: RDD[object], executor: str) -> None:
        self._number, self._task = number, task
        self.executor = executor
        """Where its worker is, by id."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"slot-{number}")
        self._jobs = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"job-of-slot-{number}")
        self.job: Future[list[object]] | None = None
        """What runs its worker."""
        self._group = f"weir-slot-{number}-{secrets.token_hex(4)}"
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._has_connected = False
        """Whether its worker has connected since its job began."""
        self._waits = False
        """Whether no job is to begin before it is told where."""
        self.is_closed = False
        self.sign: tuple[Sign, float] | None = None
        """The newest sign of life while work is under way, and when it came."""

    def ask(self, work: Work[Item, Answer], items: Sequence[Item]) -> Future[list[Answer]]:
        return self._thread.submit(self._answers, work, items)

    def carry_out(self, given: Given) -> None:
        """Have the plans carried out that are not answered yet; what is heard meanwhile is told at once."""
        self._thread.submit(self._carry_out, given)

    def connected(self, connection: Connection, executor: str) -> None:
        """Its worker is there; a former one, which Spark has given up, ends as soon as it looks."""
        send_at_once(connection)
        with self._changed:
            if self._waits:
                connection.close()
                return
            if executor != self.executor:
                log.warning("slot %s has gone from executor %s to %s", self._number, self.executor, executor)
            self.executor = executor
            if self.is_closed:
                connection.close()
                return
            if self._connection is not None:
                self._connection.close()
            self._connection, self._has_connected = connection, True
            self._changed.notify_all()

    @property
    def is_connected(self) -> bool:
        """Whether its worker is there, as far as is known."""
        return self._connection is not None

    def cut_off(self) -> None:
        """Its executor is gone: no other worker is to start before ``go`` says where. Should the former one still be
        there, it is not heard any more, and ends as soon as it looks."""
        with self._changed:
            self._waits = self._has_connected = True  # that its job ends says nothing of the program
            if self._connection is not None:
                hang_up(self._connection)
                self._connection = None
        self.kill()

    def go(self, task: RDD[object], executor: str) -> None:
        """Have its worker end, which is not at work, and the next one be that of ``task``, on another executor."""
        with self._changed:
            self._task, self.executor, self._waits = task, executor, False
            self._changed.notify_all()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def close(self) -> None:
        """Have the worker end as soon as it looks."""
        with self._changed:
            self.is_closed = True
            if self._connection is not None:
                hang_up(self._connection)
            self._changed.notify_all()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._jobs.shutdown(wait=False)

    def kill(self) -> None:
        """Have Spark end the job and kill the worker, which may be at work."""
        self._task.context.cancelJobGroup(self._group)

    def _carry_out(self, given: Given) -> None:
        try:
            self._converse(run_plans, given.plans, len(given.receipts), given.heard, given.sent)
        except BaseException as error:
            given.ended(error)
        else:
            given.ended()

    def _answers(self, work: Work[Item, Answer], items: Sequence[Item]) -> list[Answer]:
        answers: list[Answer] = []
        self.sign = None

        def heard(message: object, reply: Callable[[Renewal | None], None]) -> None:
            if isinstance(message, Sign):
                self.sign = message, time.monotonic()
            else:
                answers.append(cast(Answer, message))

        self._converse(work, items, 0, heard, lambda: None)
        return answers

    def _converse(
        self,
        work: Work[Item, Answer],
        items: Sequence[Item],
        answered: int,
        heard: Callable[[object, Callable[[Renewal | None], None]], None],
        sent: Callable[[], None],
    ) -> None:
        """Have ``work`` done with ``items``, of which so many are ``answered`` already, until each is.

        ``heard`` gets every message, and what replies to it; ``sent`` is called before the work is sent to a worker.
        """
        for _ in range(TRIES):
            connection = self._live_connection()
            try:
                sent()
                connection.send((work, items[answered:]))
                while answered < len(items):
                    message = connection.recv()
                    if isinstance(message, Failure):
                        self._lost(connection)
                        raise SlotFailedError(self._number, message.reason)
                    heard(message, connection.send)
                    answered += not isinstance(message, Sign | Asks)
                return
            except (EOFError, OSError):
                self._lost(connection)
        raise SlotLostError(self._number)

    def _run(self) -> list[object]:
        """Runs its worker, in a thread of its own."""
        self._task.context.setJobGroup(self._group, "a slot", interruptOnCancel=True)
        return self._task.collect()

    def _live_connection(self) -> Connection:
        """The connection to its worker, once there is one.

        Raises:
            SlotLostError: The slots are closed.
            WorkerStartError: The worker fails before it connects, as when the application cannot be imported.
        """
        with self._changed:
            while self._connection is None:
                if self.is_closed:
                    raise SlotLostError(self._number)
                if self._waits and (self.job is None or self.job.done()):
                    self.job = None
                    self._changed.wait()
                    continue
                if self.job is None:
                    self._has_connected, self.job = False, self._jobs.submit(self._run)
                    self.job.add_done_callback(self._job_ended)
                if not self.job.done():
                    self._changed.wait()
                elif self._connection is None:
                    job, self.job = self.job, None
                    if not self._has_connected:  # otherwise Spark has seen it lost as often as it tries
                        _require_started(self._number, job)
            return self._connection

    def _lost(self, connection: Connection) -> None:
        with self._changed:
            if self._connection is connection:
                self._connection = None
        connection.close()

    def _job_ended(self, job: Future[list[object]]) -> None:
        with self._changed:
            self._changed.notify_all()


def _require_started(slot: int, job: Future[list[object]]) -> None:
    try:
        job.result()
    except (Py4JError, PySparkException, OSError) as error:  # of PySpark's own once a SQL session has been there
        raise WorkerStartError(slot, reason_of(error)) from None


def reason_of(error: Exception) -> str:
    """The last line of Spark's message, without the traces below it; only a Java that is there can tell it."""
    try:
        text = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    except (Py4JError, OSError):
        text = ""
    lines = [line.strip() for line in (text or "").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith(_BELOW)), "Spark has ended")


def hang_up(connection: Connection) -> None:
    """End a connection, which a thread may be reading from."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end, contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
