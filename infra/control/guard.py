"""The driver's access to the control database: nothing here but a held lease ever stops or stalls the ingest.

A call that fails is logged (at most every half minute) and skipped, and the database is left alone for a few seconds,
so that one that is locked or unreachable costs the driver no more than a quarter of a second each time. Answers to
requests are kept and sent when it is back.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, TypeVar

from weir.infra.control.database import ControlDatabase, ControlDatabaseError, LeaseHeldError, this_host
from weir.infra.control.rows import AssignmentRow, Lease, MetricRow, QueryServerRow, RequestRow, TaskStatusRow

log = logging.getLogger("weir.control")

LEASE_TTL_S = 15.0
HEARTBEAT_EVERY_S = 2.0
READINGS_EVERY_S = 2.0
BUSY_TIMEOUT_S = 0.25
REST_S = 5.0
LOG_EVERY_S = 30.0
Answer = TypeVar("Answer")


class DriverControl:
    """One driver's lease, heartbeat, reports and requests. Not to be used by several threads at once."""

    def __init__(self, url: str, application: str, *, owner: str, take_over: bool = False) -> None:
        """Take the lease for this process.

        Raises:
            LeaseHeldError: A living driver holds it and ``take_over`` is false.
        """
        self.application = application
        self._owner, self._take_over = owner, take_over
        self._database: ControlDatabase | None = None
        self._lease: Lease | None = None
        self._reported: tuple[str, int | None] = ("starting", None)
        self._rest_until = self._log_after = self._beat_after = self._readings_after = 0.0
        self._unsent: list[tuple[int, str, bool]] = []
        self._sinks: Sequence[Mapping[str, Any]] | None = None
        self._waits_for: str | None = None
        try:
            self._database = ControlDatabase(url, busy_timeout_s=BUSY_TIMEOUT_S)
        except ControlDatabaseError as error:
            log.warning("%s; the run continues without it", error)
        self._acquire()

    def heartbeat(self, state: str, generation: int | None = None) -> None:
        """Report that the driver is alive, and its state; call it as often as you like: it writes every two seconds and
        on change."""
        if self._lease is None:
            self._acquire_quietly()
        lease, now = self._lease, time.monotonic()
        if lease is None or (now < self._beat_after and (state, generation) == self._reported):
            return
        self._beat_after = now + HEARTBEAT_EVERY_S
        is_mine = self._try(True, lambda database: database.heartbeat(lease, state=state, generation=generation))
        self._reported = (state, generation)
        if not is_mine:
            log.warning(
                "another driver holds the lease of %s; the commit log decides which of the two continues",
                self.application,
            )

    @contextmanager
    def starting(self) -> Iterator[Callable[[str], None]]:
        """Keep the lease while the driver starts, which may take longer than the lease lasts. Inside the block, nothing
        else may be called but what it yields: with the reason why the start waits, or an empty text once it does not.
        """
        has_started, reason = Event(), ""

        def tell(why: str) -> None:
            nonlocal reason
            reason = why

        def beat() -> None:
            self.report_waiting(reason)
            while not has_started.wait(HEARTBEAT_EVERY_S):
                self.heartbeat("starting")
                self.report_waiting(reason)

        thread = Thread(target=beat, name="heartbeats of a start", daemon=True)
        thread.start()
        try:
            yield tell
        finally:
            has_started.set()
            thread.join()

    def requests(self) -> list[RequestRow]:
        """Pending requests, oldest first, without those already answered; empty while the database is unreachable."""
        self._send_answers()
        answered = {request_id for request_id, _, _ in self._unsent}
        nothing: list[RequestRow] = []
        found = self._try(nothing, lambda database: database.pending_requests(self.application))
        return [request for request in found if request.id not in answered]

    def may_have_requests(self) -> bool:
        """Whether there may be requests that ``requests`` has not returned yet."""
        return self._try(False, lambda database: database.may_have_requests())

    def finish(self, request_id: int, result: str, *, failed: bool = False) -> None:
        """Answer a request, now or once the database is back."""
        self._unsent.append((request_id, result, failed))
        self._send_answers()

    def report(
        self,
        tasks: Sequence[TaskStatusRow],
        metric: MetricRow,
        readings: Sequence[Mapping[str, Any]] = (),
        *,
        is_last: bool = False,
    ) -> None:
        """Write the tasks' status and one reading; every two seconds, and the last time, the metrics as well."""

        def write(database: ControlDatabase) -> None:
            database.report_tasks(self.application, tasks)
            database.add_metric(self.application, metric)
            if readings and (is_last or time.monotonic() >= self._readings_after):
                self._readings_after = time.monotonic() + READINGS_EVERY_S
                database.report_readings(self.application, readings)

        self._try(None, write)

    def add_reading(self, metric: MetricRow) -> None:
        """Write one reading, and nothing else."""
        self._try(None, lambda database: database.add_metric(self.application, metric))

    def add_assignment(self, row: AssignmentRow) -> None:
        """Write who got which tasks."""
        self._try(None, lambda database: database.add_assignment(self.application, row))

    def report_sinks(self, sinks: Sequence[Mapping[str, Any]]) -> None:
        """Write how the sinks are doing, if that has changed."""

        def write(database: ControlDatabase) -> None:
            database.report_sinks(self.application, sinks)
            self._sinks = sinks

        if sinks != self._sinks:
            self._try(None, write)

    def report_query_servers(self, servers: Sequence[QueryServerRow]) -> None:
        """Write where executors answer queries."""
        self._try(None, lambda database: database.report_query_servers(self.application, servers))

    def report_waiting(self, reason: str) -> None:
        """Write why the driver waits, or an empty text, if that has changed."""

        def write(database: ControlDatabase) -> None:
            database.report_waiting(self.application, reason)
            self._waits_for = reason

        if reason != self._waits_for:
            self._try(None, write)

    def release(self, state: str = "stopped", error: str | None = None) -> None:
        """End the lease; call it last."""
        self._rest_until = 0.0
        self._send_answers()
        lease, self._lease = self._lease, None
        if lease is not None:
            self._try(None, lambda database: database.release(lease, state=state, error=error))

    def _acquire(self) -> None:
        def acquire(database: ControlDatabase) -> Lease:
            return database.acquire_lease(
                self.application,
                owner=self._owner,
                pid=os.getpid(),
                host=this_host(),
                ttl_s=LEASE_TTL_S,
                take_over=self._take_over,
            )

        self._lease = self._try(None, acquire)
        self._beat_after = time.monotonic() + HEARTBEAT_EVERY_S

    def _acquire_quietly(self) -> None:
        """The database was unreachable at the start: take the lease now, unless somebody has it."""
        try:
            self._acquire()
        except LeaseHeldError as error:
            log.warning("%s; the commit log decides which of the two continues", error)
            self._rest_until = time.monotonic() + REST_S

    def _send_answers(self) -> None:
        def send(database: ControlDatabase) -> bool:
            database.finish_request(request_id, result, failed=failed)
            return True

        while self._unsent:
            request_id, result, failed = self._unsent[0]
            if not self._try(False, send):
                return
            self._unsent.pop(0)

    def _try(self, default: Answer, call: Callable[[ControlDatabase], Answer]) -> Answer:
        now = time.monotonic()
        if self._database is None or now < self._rest_until:
            return default
        try:
            return call(self._database)
        except ControlDatabaseError as error:
            self._rest_until = now + REST_S
            if now >= self._log_after:
                self._log_after = now + LOG_EVERY_S
                log.warning("%s; the run continues without it", error)
            return default
