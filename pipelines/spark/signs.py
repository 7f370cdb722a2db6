"""Signs of life: what a worker tells its driver while an answer takes long.

A driver that waits for a worker at work is alive, too, and can say which function of the program takes the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weir.pipelines.operators.calls import Call, running_call
from weir.state.types import TaskId

SIGN_EVERY_S = 2.0
PROMISE_AFTER_S = 0.2
"""A task that is at work for longer promises to ask before it writes, so that others need not wait for it."""
LONG_CALL_S = 5.0
"""A call that takes longer is named."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A worker is at work for a task, by its own word or because it has not answered."""

    task: str
    call: str = ""
    """The call of a function of the program that has been running for long: which, and for which record."""
    call_s: float = 0.0
    """For how long, to within ``SIGN_EVERY_S``."""
    silent_s: float = 0.0
    """How long nothing has been heard of it: a call that lets no other thread of its process run keeps it from giving
    signs."""
    asks: bool = False
    """Whether it asks before it writes anything, as will those that it has been given together with."""


@dataclass(frozen=True)
class Asks:
    """A task has kept the others waiting, and asks under which epoch it is to write."""

    task: TaskId


class Signs:
    """Gives a sign now and then while work is under way.

    The first one promises that no task will write without having asked, unless one is writing already.
    """

    def __init__(self, send: Callable[[Sign], None], on_promise: Callable[[], None] = lambda: None) -> None:
        """Both are called from another thread, ``on_promise`` when a task has promised to ask before it writes."""
        self._send, self._on_promise = send, on_promise
        self._task: str | None = None
        self._changing = threading.Lock()
        """Held while a promise is given, and while one is looked for: each sign says what is true when it is sent."""
        self._asks = self._has_told = self._is_writing = False
        self._began_s = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._give, name="signs", daemon=True)
        self._thread.start()

    def begin(self, *, asks: bool = False) -> None:
        """Something to do has come, about which nothing was promised; with ``asks``, that it is asked for."""
        with self._changing:
            self._asks, self._has_told, self._began_s = asks, False, time.monotonic()

    @contextmanager
    def at_work(self, task: str) -> Iterator[None]:
        """Within the block there is work for ``task``."""
        self._task = task
        try:
            yield
        finally:
            with self._changing:
                self._task, self._is_writing = None, False

    def must_ask(self) -> bool:
        """Whether the task at work must ask before it writes: it was promised, or it has taken so long that the driver
        may count on it without a sign. From now on it counts as writing."""
        with self._changing:
            self._is_writing = True
            return self._asks or time.monotonic() - self._began_s > SIGN_EVERY_S

    def close(self) -> None:
        """Give no more signs."""
        self._closed.set()
        self._thread.join()

    def _give(self) -> None:
        call: Call | None = None
        seen_s = sign_s = time.monotonic()
        while not self._closed.wait(PROMISE_AFTER_S):
            now_s, task = time.monotonic(), self._task
            if task is None or now_s - self._began_s < PROMISE_AFTER_S:
                continue
            if (found := running_call()) != call:
                call, seen_s = found, now_s
            call_s = now_s - seen_s
            is_long = call is not None and call_s >= LONG_CALL_S
            with self._changing:
                asks = self._task == task and not self._is_writing
                is_news = asks and not self._has_told
                if self._task is None or (now_s - sign_s < SIGN_EVERY_S and not is_news):
                    continue
                if is_news:
                    self._on_promise()
                self._asks, self._has_told, sign_s = self._asks or asks, self._has_told or asks, now_s
                try:
                    self._send(
                        Sign(task=task, call=call.text, call_s=call_s, asks=asks)
                        if call and is_long
                        else Sign(task=task, asks=asks)
                    )
                except OSError:  # the driver is gone
                    return
