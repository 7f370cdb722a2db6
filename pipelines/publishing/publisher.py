"""Publishes one sink's outbox: in order, from the mark that the outside system has, until told to stop (PROTOCOL 24).

The mark alone says what is published. Whatever fails, the publisher connects again, asks for the mark, and goes on
after it; so a crash between any two steps neither loses nor repeats a row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Event, Lock
from typing import Any, TypeVar

import msgspec
import polars as pl
from deltalake.exceptions import DeltaError
from tenacity import RetryCallState, Retrying, wait_exponential, wait_random_exponential

from weir.pipelines.publishing.connection import (
    Connection,
    Published,
    RefusedRowsError,
    SinkError,
    SinkFencedError,
)
from weir.pipelines.publishing.state import Action, RefusedPlace, Resent, SinkState
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.refused import Refused
from weir.state.errors import AppendOnlyError

log = logging.getLogger("weir.publisher")
Answer = TypeVar("Answer")

LOOK_EVERY_S = 0.05
"""How long committed rows wait at most before they are seen."""
REMOVE_EVERY_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S, LONGEST_WISH_S = 0.2, 30.0, 3600.0
"""Between attempts: about twice as long each time; the last is for an outside system that says how long to wait."""
RENEW_EVERY_S = 24 * 3600.0
"""How often a mark is committed again, since Kafka forgets those of groups that were idle for seven days."""

SHOWN_REFUSALS = 5
"""How much of what is aside is named."""

NO_ROWS = pl.DataFrame()


class UnknownMarkError(Exception):
    """It is not known what has been published."""

    def __init__(self, application: str, sink: str) -> None:
        super().__init__(application, sink)
        self.application, self.sink = application, sink


class MarkLostError(UnknownMarkError):
    """The outside system no longer knows how far it has come, though rows have been published to it."""

    def __init__(self, application: str, sink: str, floor: int, found: Mark | None) -> None:
        super().__init__(application, sink)
        self.args = application, sink, floor, found
        self.floor, self.found = floor, found

    def __str__(self) -> str:
        knows = "has no record of this" if self.found is None else f"says epoch {self.found.epoch}"
        return (
            f"sink {self.sink!r}: rows up to epoch {self.floor} have been published, but its target {knows}; was the "
            "topic or table made anew, or the mark removed? To publish the waiting rows all the same, run "
            f"`weir sink resume {self.application} {self.sink}`"
        )


class OtherOutboxError(UnknownMarkError):
    """An application of the same id in another folder publishes to the same target."""

    def __str__(self) -> str:
        return (
            f"sink {self.sink!r}: an application with the same id in another folder has published to its target; end "
            'one of the two, or give it another id, as in Application("other-id", ...). If the other one has ended '
            f"for good, run `weir sink resume {self.application} {self.sink}` to publish the waiting rows of this one"
        )


class Publisher:
    """One sink's publisher; ``run`` it in a thread of its own."""

    def __init__(
        self,
        outbox: Outbox,
        sink: str,
        connect: Callable[[], Connection],
        *,
        application: str,
        target: str = "",
        shown_key: Callable[[pl.DataFrame], str] = lambda row: "none",
        refused: Refused | None = None,
        skips: bool = False,
        is_newest: Callable[[], bool] = lambda: True,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """``shown_key`` is what people are told of the key of a row. ``refused`` takes the rows that are put aside;
        without it none is, and the first one ends the run. With ``skips`` each row that is refused goes there at once;
        otherwise one that is no batch waits for a decision. ``is_newest`` says whether no newer driver has begun: a
        publisher that is fenced by an older one's connects again. ``on_step`` is called at each point where a crash
        would leave something to do."""
        self._outbox, self._sink, self._connect = outbox, sink, connect
        self._application, self._refused, self._shown_key = application, refused, shown_key
        self._skips, self._is_newest, self._on_step = skips, is_newest, on_step
        self._state, self._lock = SinkState(sink=sink, target=target, **self._aside()), Lock()
        self._mark = Mark()  # until the sink has said what it has
        self._watched = outbox.another()
        """For what waits: commits add to it also while the sink does not answer."""
        self._decided: Action | None = None
        self._removed_at_s = self._told_at_s = time.monotonic()
        self._attempt = RetryCallState(Retrying(), None, (), {})
        self._keeps_all = False
        """Whether it has said that the outbox keeps its rows, being append-only."""
        self._at_most: int | None = None
        """Fewer rows than the connection takes, while the one is looked for that is refused."""

    @property
    def state(self) -> SinkState:
        """What it is doing, and what waits now; any thread may ask."""
        with self._lock:
            with suppress(OSError, DeltaError):  # then it is as last read; the publisher says what is wrong
                self._watched.refresh()
            waiting = self._watched.waiting(self._mark)
            return msgspec.structs.replace(
                self._state,
                epoch=self._mark.epoch,
                waiting_rows=waiting.rows,
                waiting_bytes=waiting.size_bytes,
                waiting_since_s=waiting.since_s,
            )

    def retried(self, resent: Resent) -> None:
        """Note that the refused rows have been sent again."""
        aside = self._aside()
        with self._lock:
            self._state = msgspec.structs.replace(self._state, refused_reason=resent.error, resent=resent, **aside)

    def decide(self, action: Action) -> None:
        """What a person has decided for a publisher that ``awaits`` it; any thread may tell."""
        self._decided = action

    def run(self, stop: Event, drain: Event) -> None:
        """Publish until ``stop`` is set; once ``drain`` is set, only until nothing waits.

        Raises:
            UnknownMarkError: It is not known what has been published, and nobody is going to decide.
            RefusedRowsError: A row is refused, and nothing takes it.
            SinkFencedError: A newer driver's publisher has taken over.
        """
        while not stop.is_set():
            try:
                if self._publish_once(stop, drain):
                    return
            except UnknownMarkError as error:
                if drain.is_set():
                    raise
                log.error("%s", error)
                self._tell(error=str(error), awaits="resume")
                self._wait(LONGEST_WAIT_S, "resume", stop, drain)
            except (RefusedRowsError, SinkFencedError):
                raise
            except SinkError as error:
                self._fail(error, stop)
            except Exception as error:
                self._fail_of_itself(error, stop)

    def _publish_once(self, stop: Event, drain: Event) -> bool:
        """Publish over one connection; False if another one is to go on."""
        try:
            with closing(self._connect()) as connection:
                self._publish(connection, stop, drain)
            return True
        except RefusedRowsError as error:
            if not self._goes_on_after(error):
                self._fail(SinkError(self._refusal(error)), stop, awaits="skip")
        except SinkFencedError as error:
            if self._is_replaced(stop):
                raise
            self._fail(error, stop)
        return False

    def _is_replaced(self, stop: Event) -> bool:
        """Whether the publisher of a newer driver has taken over. Until the warehouse tells, this one does not connect
        again, which would take the sink from the other."""
        return self.answered(self._is_newest, stop) is False

    def answered(self, ask: Callable[[], Answer], stop: Event) -> Answer | None:
        """What a look at the warehouse finds, made again until it does not fail; None once ``stop`` is set."""
        while not stop.is_set():
            try:
                return ask()
            except Exception as error:
                self._fail_of_itself(error, stop)
        return None

    def _publish(self, connection: Connection, stop: Event, drain: Event) -> None:
        mark, limits, is_retry = self._begin(connection), connection.limits, self._outbox.is_of_refused
        while True:
            self._outbox.refresh()
            if is_retry:
                self._remove(mark)  # what is there counts as refused
            batches = self._outbox.rows(
                mark, at_most=self._at_most or limits.rows, size_bytes=limits.size_bytes, one_epoch=limits.one_epoch
            )
            for rows, reached in batches:
                self._on_step("rows read")
                self._sending = rows, reached
                connection.publish(rows, Published(self._outbox.id, reached))
                self._on_step("rows published")
                mark, self._attempt.attempt_number, self._decided = reached, 1, None
                self._told_at_s = time.monotonic()
                self._tell(mark, published_rows=self._state.published_rows + rows.height, error="", awaits=None)
                if is_retry or stop.is_set() or self._at_most is not None:
                    self._at_most = (
                        None if self._at_most is None or 2 * self._at_most >= limits.rows else 2 * self._at_most
                    )
                    break
            else:
                self._tell(mark, error="", awaits=None)
                is_last = drain.is_set() and not self._outbox.refresh()
                if is_last or time.monotonic() - self._removed_at_s > REMOVE_EVERY_S:
                    self._remove(mark)
                if is_last:
                    return
                if mark != Mark() and time.monotonic() - self._told_at_s > RENEW_EVERY_S:
                    connection.publish(NO_ROWS, Published(self._outbox.id, mark))
                    self._told_at_s = time.monotonic()
                stop.wait(LOOK_EVERY_S)
            if stop.is_set():
                return self._remove(mark)

    def _remove(self, mark: Mark) -> None:
        try:
            self._outbox.remove(mark)
        except AppendOnlyError as error:  # what is published stays there, before the mark
            if not self._keeps_all:
                log.warning("sink %r: %s", self._sink, error)
            self._keeps_all = True
        self._tell(**self._aside())
        self._removed_at_s = time.monotonic()
        self._on_step("outbox emptied")

    def _begin(self, connection: Connection) -> Mark:
        """How far the outside system has come."""
        found = connection.published()
        self._outbox.refresh()
        floor = self._outbox.floor
        error: UnknownMarkError | None = None
        if found is not None and found.outbox != self._outbox.id:
            if floor or self._state.published_rows:
                error = OtherOutboxError(self._application, self._sink)
            found = None  # of the application before it was reset
        mark = found.mark if found is not None else Mark()
        if error is None and floor > mark.epoch:
            error = MarkLostError(self._application, self._sink, floor, found.mark if found is not None else None)
        if error is not None:
            if self._decided != "resume":
                raise error
            mark, self._decided = Mark(floor), None
        aside = self._refused.mark if self._refused else Mark()
        if error is not None or aside > mark:  # the mark stands for what is aside, too
            mark = max(mark, aside)
            connection.publish(NO_ROWS, Published(self._outbox.id, mark))
        self._tell(mark, **self._aside())
        return mark

    def _goes_on_after(self, error: RefusedRowsError) -> bool:
        """Whether the next attempt differs: it sends fewer rows, until the one is alone that is refused, or leaves out
        what has been put aside.

        Raises:
            RefusedRowsError: It is alone, and nothing takes it.
        """
        rows, reached = self._sending
        if rows.height > 1 and not error.is_batch:
            self._at_most = rows.height // 2
            return True
        if self._refused is None:
            raise RefusedRowsError(self._refusal(error)) from error
        if not (error.is_batch or self._skips or self._decided == "skip"):
            return False
        self._refused.add(rows, reached, str(error))
        self._tell(refused_reason=str(error), **self._aside())
        self._decided = None
        log.warning("sink %r: put aside: %s", self._sink, self._refusal(error))
        self._on_step("rows put aside")
        return True

    def _refusal(self, error: RefusedRowsError) -> str:
        """What has just been refused, and why."""
        rows, reached = self._sending
        return str(self._place(rows.head(1), self._outbox.committed_as(reached), rows.height, str(error)))

    def _aside(self) -> dict[str, Any]:
        """What the state says of rows that are aside."""
        if self._refused is None:
            return {}
        first = self._refused.first(SHOWN_REFUSALS)
        return {
            "refused_rows": self._refused.count(),
            "refused": tuple(self._place(each.first, each.through, each.rows, each.reason) for each in first),
        }

    def _place(self, first: pl.DataFrame, through: Mark, rows: int, reason: str) -> RefusedPlace:
        key = self._shown_key(first)
        return RefusedPlace(epoch=through.epoch, first_row=through.rows - rows, rows=rows, key=key, reason=reason)

    def _fail_of_itself(self, error: Exception, stop: Event) -> None:
        """After an error that is not the outside system's."""
        log.exception("sink %r", self._sink)
        self._fail(SinkError(f"{type(error).__name__}: {error}"), stop)

    def _fail(self, error: SinkError, stop: Event, awaits: Action | None = None) -> None:
        halves = {"multiplier": FIRST_WAIT_S / 2, "max": LONGEST_WAIT_S / 2}
        pause = wait_exponential(**halves) + wait_random_exponential(**halves)
        wait_s = max(pause(self._attempt), min(LONGEST_WISH_S, error.wait_s))
        self._attempt.attempt_number += 1
        log.warning("sink %r: %s; trying again in %.1f s", self._sink, error, wait_s)
        self._tell(error=str(error), awaits=awaits)
        self._wait(wait_s, awaits, stop)

    def _wait(self, wait_s: float, awaits: Action | None, *ends: Event) -> None:
        """Wait until then, until what it ``awaits`` is decided, or for one of the ``ends``."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not any(event.is_set() for event in ends):
            if awaits is not None and self._decided == awaits:
                return
            time.sleep(LOOK_EVERY_S)

    def _tell(self, mark: Mark | None = None, **changes: Any) -> None:
        with self._lock:
            self._mark = self._mark if mark is None else mark
            self._state = msgspec.structs.replace(self._state, **changes)
