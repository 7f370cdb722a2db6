"""Slots: a Spark task each that runs as long as the driver, whose Python worker answers what the driver asks.

A Spark job per epoch would cost more than the work of a small one, so plans and receipts travel over a connection that
each worker makes to the driver (docs/adr/0002). Spark starts a worker again that is lost; it connects anew, and gets
what was not answered once more.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import TypeVar

from pyspark import RDD, SparkContext

from weir.pipelines.spark.signs import SIGN_EVERY_S, Sign
from weir.pipelines.spark.worker import (
    Failure,
    SettleRequest,
    WorkerSettings,
    run_plans,
    run_settles,
    run_warm_up,
    send_at_once,
    serve,
)
from weir.pipelines.tasks.plan import Receipt, TaskPlan
from weir.state.types import TaskId

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Work = Callable[[WorkerSettings, Sequence[Item]], Iterable[Answer]]
"""What a slot does with items of one kind: a function of a module, which gives one answer per item, in their order."""
SLOT_VARIABLE = "_WEIR_SLOT"
TRIES = 4
"""How often a slot is asked the same before a lost worker is an error."""
FRESH_S = 3 * SIGN_EVERY_S
"""A worker that has given no sign for longer is not known to be at work."""
LOOPBACK = "127.0.0.1"
END_LIMIT_S = 5.0
"""How long a slot that is still at work may take to end; then it ends with the Spark context."""


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


class SlotPool:
    """The slots of an application.

    Once it is made, the workers are started, the application is imported and the consumers are connected.
    """

    def __init__(
        self, spark_context: SparkContext, slots: int, settings: WorkerSettings, slot_of: Mapping[TaskId, int]
    ) -> None:
        self.slot_of = slot_of
        self.while_waiting: Callable[[Sequence[Sign]], None] = lambda signs: None
        """Called now and then while answers take long, with the signs that the workers give."""
        key = secrets.token_bytes(32)
        self._listener = Listener((LOOPBACK, 0), backlog=slots, authkey=key)
        self._slots = []
        for slot in range(slots):
            # Spark keys its pools of workers by environment: each slot has a worker of its own, also after a restart.
            spark_context.environment[SLOT_VARIABLE] = str(slot)
            task = spark_context.parallelize([slot], 1).mapPartitions(
                partial(serve, settings, slot, self._listener.address, key)
            )
            task._jrdd  # binds the environment of this moment  # noqa: B018
            self._slots.append(_Slot(slot, task))
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

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        """The receipts of ``plans``, in no particular order.

        Raises:
            SlotError: A slot does not answer; the same plans may be run again.
        """
        return self._each(run_plans, plans, lambda plan: plan.task)

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        """Whether each task held its committed state, in which case its undo log is gone now."""
        return self._each(run_settles, requests, lambda request: request.task)

    def ask(self, slot: int, work: Work[Item, Answer], items: Sequence[Item]) -> Future[list[Answer]]:
        """Have ``slot`` do ``work`` once it has done what it was asked before."""
        return self._slots[slot].ask(work, items)

    @property
    def count(self) -> int:
        """How many slots there are."""
        return len(self._slots)

    def close(self) -> None:
        """End the workers' tasks."""
        for slot in self._slots:
            slot.close()
        with contextlib.suppress(OSError), Client(self._listener.address, authkey=None):
            pass  # wakes the thread that accepts
        self._listener.close()

    def _each(self, work: Work[Item, Answer], items: Sequence[Item], task_of: Callable[[Item], TaskId]) -> list[Answer]:
        shares: dict[int, list[Item]] = {}
        for item in items:
            shares.setdefault(self.slot_of[task_of(item)], []).append(item)
        answers = [self.ask(slot, work, share) for slot, share in sorted(shares.items())]
        waiting = set(answers)
        while waiting := wait(waiting, timeout=SIGN_EVERY_S).not_done:
            fresh_s = time.monotonic() - FRESH_S
            if signs := [slot.sign[0] for slot in self._slots if slot.sign is not None and slot.sign[1] > fresh_s]:
                self.while_waiting(signs)
        return [answer for future in answers for answer in future.result()]

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                self._slots[connection.recv()].connected(connection)
            except (AuthenticationError, EOFError, ConnectionError):
                if any(slot.is_closed for slot in self._slots):
                    return
            except OSError:
                return


class _Slot:
    """One slot: its Spark task, the connection to its worker, and the thread that asks it one thing after another."""

    def __init__(self, number: int, task: RDD[object]) -> None:
        self._number, self._task = number, task
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"slot-{number}")
        self._jobs = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"job-of-slot-{number}")
        self._job: Future[list[object]] | None = None
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._has_connected = False
        """Whether its worker has connected since its job began."""
        self.is_closed = False
        self.sign: tuple[Sign, float] | None = None
        """The newest sign of life while work is under way, and when it came."""

    def ask(self, work: Work[Item, Answer], items: Sequence[Item]) -> Future[list[Answer]]:
        return self._thread.submit(self._answers, work, items)

    def connected(self, connection: Connection) -> None:
        """Its worker is there; a former one, which Spark has given up, ends as soon as it looks."""
        send_at_once(connection)
        with self._changed:
            if self.is_closed:
                connection.close()
                return
            if self._connection is not None:
                self._connection.close()
            self._connection, self._has_connected = connection, True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            if self._connection is not None:
                self._connection.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._jobs.shutdown(wait=False)
        if self._job is not None:
            wait([self._job], END_LIMIT_S)

    def _answers(self, work: Work[Item, Answer], items: Sequence[Item]) -> list[Answer]:
        answers: list[Answer] = []
        self.sign = None
        for _ in range(TRIES):
            connection = self._live_connection()
            try:
                connection.send((work, items[len(answers) :]))
                while len(answers) < len(items):
                    answer = connection.recv()
                    if isinstance(answer, Sign):
                        self.sign = answer, time.monotonic()
                        continue
                    if isinstance(answer, Failure):
                        self._lost(connection)
                        raise SlotFailedError(self._number, answer.reason)
                    answers.append(answer)
                return answers
            except (EOFError, OSError):
                self._lost(connection)
        raise SlotLostError(self._number)

    def _live_connection(self) -> Connection:
        """The connection to its worker, once there is one.

        Raises:
            Py4JJavaError: The worker fails before it connects, as when the application cannot be imported.
        """
        with self._changed:
            while self._connection is None:
                if self._job is None:
                    self._has_connected, self._job = False, self._jobs.submit(self._task.collect)
                    self._job.add_done_callback(self._job_ended)
                if not self._job.done():
                    self._changed.wait()
                elif self._connection is None:
                    job, self._job = self._job, None
                    if not self._has_connected:  # otherwise Spark has seen it lost as often as it tries
                        job.result()
            return self._connection

    def _lost(self, connection: Connection) -> None:
        with self._changed:
            if self._connection is connection:
                self._connection = None
        connection.close()

    def _job_ended(self, job: Future[list[object]]) -> None:
        with self._changed:
            self._changed.notify_all()
