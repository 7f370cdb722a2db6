"""Work that follows commits, off their path: a commit hands its news over and goes on.

What is late gives way to what is newer; a failure costs a log line and is made up for by the next commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Condition, Thread
from typing import Generic, TypeVar

log = logging.getLogger("weir.driver")

LOG_EVERY_S = 30.0

News = TypeVar("News")


class Afterwards(Generic[News]):
    """Calls ``work`` with the newest news, in a thread of its own, until it is closed."""

    def __init__(self, name: str, work: Callable[[News], None], failure: type[Exception], said: str) -> None:
        """``said`` is logged before an error of type ``failure``, once in a while."""
        self._work, self._failure, self._said = work, failure, said
        self._changed = Condition()
        self._waiting: list[News] = []
        self._is_closed = False
        self._log_after = 0.0
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, news: News) -> None:
        """Work on this; what is still waiting is passed over."""
        with self._changed:
            self._waiting = [news]
            self._changed.notify()

    def close(self) -> None:
        """Work on what waits, once, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                newest, self._waiting = self._waiting, []
            if not newest:
                return
            try:
                self._work(newest[0])
            except self._failure as error:
                if time.monotonic() >= self._log_after:
                    self._log_after = time.monotonic() + LOG_EVERY_S
                    log.warning("%s: %s; the run goes on, and the next commit tries again", self._said, error)
