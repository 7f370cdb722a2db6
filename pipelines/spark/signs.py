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

SIGN_EVERY_S = 2.0
LONG_CALL_S = 5.0
"""A call that takes longer is named."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A worker is at work for a task."""

    task: str
    call: str = ""
    """The call of a function of the program that has been running for long: which, and for which record."""
    call_s: float = 0.0
    """For how long, to within ``SIGN_EVERY_S``."""


class Signs:
    """Gives a sign now and then while work is under way."""

    def __init__(self, send: Callable[[Sign], None]) -> None:
        """``send`` is called from another thread."""
        self._send = send
        self._task: str | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._give, name="signs", daemon=True)
        self._thread.start()

    @contextmanager
    def at_work(self, task: str) -> Iterator[None]:
        """Within the block there is work for ``task``."""
        self._task = task
        try:
            yield
        finally:
            self._task = None

    def close(self) -> None:
        """Give no more signs."""
        self._closed.set()
        self._thread.join()

    def _give(self) -> None:
        call: Call | None = None
        seen_s = time.monotonic()
        while not self._closed.wait(SIGN_EVERY_S):
            task, found = self._task, running_call()
            if found != call:
                call, seen_s = found, time.monotonic()
            if task is None:
                continue
            call_s = time.monotonic() - seen_s
            is_long = call is not None and call_s >= LONG_CALL_S
            try:
                self._send(Sign(task=task, call=call.text, call_s=call_s) if call and is_long else Sign(task=task))
            except OSError:  # the driver is gone
                return
