"""Publishes one sink's outbox: in order, from the mark that the outside system has, until told to stop (PROTOCOL 24).

The mark alone says what is published. Whatever fails, the publisher connects again, asks for the mark, and goes on
after it; so a crash between any two steps neither loses nor repeats a row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Any

import polars as pl

from weir.pipelines.publishing.connection import Connection, Published, SinkError, SinkFencedError
from weir.state.commit.outbox import Mark, Outbox

log = logging.getLogger("weir.publisher")

LOOK_EVERY_S = 0.05
"""How long committed rows wait at most before they are seen."""
BATCH_ROWS, BATCH_BYTES = 50_000, 32 << 20
"""What one transaction takes at most, or a single row that is larger."""
REMOVE_EVERY_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 30.0
RENEW_EVERY_S = 24 * 3600.0
"""How often a mark is committed again, since Kafka forgets those of groups that were idle for seven days."""

NO_ROWS = pl.DataFrame()


class MarkLostError(Exception):
    """The outside system no longer knows how far it has come, though rows have been published to it."""

    def __init__(self, sink: str, floor: int, found: Mark | None) -> None:
        super().__init__(sink, floor, found)
        self.sink, self.floor, self.found = sink, floor, found

    def __str__(self) -> str:
        knows = "knows of nothing" if self.found is None else f"says epoch {self.found.epoch}"
        return (
            f"sink {self.sink!r}: rows up to epoch {self.floor} have been published, but its target {knows}; was the "
            "topic made anew, or the group's offset removed?"
        )


class OtherOutboxError(Exception):
    """An application of the same id in another folder publishes to the same target."""

    def __init__(self, sink: str) -> None:
        super().__init__(sink)
        self.sink = sink

    def __str__(self) -> str:
        return (
            f"sink {self.sink!r}: an application with the same id in another folder has published to its target; end "
            'one of the two, or give it another id, as in Application("other-id", ...)'
        )


@dataclass(frozen=True, kw_only=True)
class SinkState:
    """What a publisher says of its sink."""

    sink: str
    mark: Mark
    waiting_rows: int = 0
    waiting_bytes: int = 0
    waiting_since_s: float | None = None
    published_rows: int = 0
    """Since the publisher began."""
    error: str = ""
    """Why it waits; empty while it publishes."""


class Publisher:
    """One sink's publisher; ``run`` it in a thread of its own."""

    def __init__(
        self,
        outbox: Outbox,
        sink: str,
        connect: Callable[[], Connection],
        *,
        is_newest: Callable[[], bool] = lambda: True,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """``is_newest`` says whether no newer driver has begun: a publisher that is fenced by an older one's connects
        again. ``on_step`` is called at each point where a crash would leave something to do."""
        self._outbox, self._sink, self._connect = outbox, sink, connect
        self._is_newest, self._on_step = is_newest, on_step
        self._state, self._lock = SinkState(sink=sink, mark=Mark()), Lock()
        self._removed_at_s = self._told_at_s = time.monotonic()
        self._failures = 0

    @property
    def state(self) -> SinkState:
        """What it is doing; any thread may ask."""
        with self._lock:
            return self._state

    def run(self, stop: Event, drain: Event) -> None:
        """Publish until ``stop`` is set; once ``drain`` is set, only until nothing waits.

        Raises:
            MarkLostError, OtherOutboxError: It is not known what has been published.
            SinkFencedError: A newer driver's publisher has taken over.
        """
        while not stop.is_set():
            try:
                with closing(self._connect()) as connection:
                    self._publish(connection, stop, drain)
                return
            except SinkError as error:
                if isinstance(error, SinkFencedError) and not self._is_newest():
                    raise
                wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._failures)
                self._failures += 1
                log.warning("sink %r: %s; trying again in %.1f s", self._sink, error, wait_s)
                self._tell(error=str(error))
                stop.wait(wait_s)

    def _publish(self, connection: Connection, stop: Event, drain: Event) -> None:
        mark = self._begin(connection)
        while True:
            self._outbox.refresh()
            for rows, reached in self._outbox.rows(mark, at_most=BATCH_ROWS, size_bytes=BATCH_BYTES):
                self._on_step("rows read")
                connection.publish(rows, Published(self._outbox.id, reached))
                self._on_step("rows published")
                mark, self._failures = reached, 0
                self._told_at_s = time.monotonic()
                self._tell(mark, published_rows=self._state.published_rows + rows.height, error="")
                if stop.is_set():
                    break
            self._tell(mark, error="")
            is_last = stop.is_set() or (drain.is_set() and not self._outbox.refresh())
            if is_last or time.monotonic() - self._removed_at_s > REMOVE_EVERY_S:
                self._outbox.remove(mark)
                self._removed_at_s = time.monotonic()
                self._on_step("outbox emptied")
            if is_last:
                return
            if mark != Mark() and time.monotonic() - self._told_at_s > RENEW_EVERY_S:
                connection.publish(NO_ROWS, Published(self._outbox.id, mark))
                self._told_at_s = time.monotonic()
            stop.wait(LOOK_EVERY_S)

    def _begin(self, connection: Connection) -> Mark:
        """How far the outside system has come."""
        found = connection.published()
        self._outbox.refresh()
        if found is not None and found.outbox != self._outbox.id:
            if self._outbox.floor or self._state.published_rows:
                raise OtherOutboxError(self._sink)
            found = None  # of the application before it was reset
        mark = found.mark if found is not None else Mark()
        if self._outbox.floor > mark.epoch:
            raise MarkLostError(self._sink, self._outbox.floor, found.mark if found is not None else None)
        self._tell(mark, error="")
        return mark

    def _tell(self, mark: Mark | None = None, **changes: Any) -> None:
        mark = self._state.mark if mark is None else mark
        waiting = self._outbox.waiting(mark)
        with self._lock:
            self._state = replace(
                self._state,
                mark=mark,
                waiting_rows=waiting.rows,
                waiting_bytes=waiting.size_bytes,
                waiting_since_s=waiting.since_s,
                **changes,
            )
