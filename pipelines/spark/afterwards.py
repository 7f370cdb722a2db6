"""Work that follows commits without delaying them: a commit hands its news over and does not wait.

News that are still waiting are replaced by newer ones; a failure is logged, and the next commit makes up for it.
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

    def __init__(
        self,
        name: str,
        work: Callable[[News], None],
        failure: type[Exception],
        said: str,
        rest_s: Callable[[float], float] = lambda took_s: 0.0,
    ) -> None:
        """Errors of type ``failure`` are logged after ``said``, at most once every ``LOG_EVERY_S`` seconds.

        ``rest_s`` says how long to rest after work that took so many seconds; closing ends the rest.
        """
        self._rest_s = rest_s
        self._work, self._failure, self._said = work, failure, said
        self._changed = Condition()
        self._waiting: list[News] = []
        self._is_closed = False
        self._log_after = 0.0
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, news: News) -> None:
        """Work on this; what is still waiting is dropped."""
        with self._changed:
            self._waiting = [news]
            self._changed.notify()

    def close(self) -> None:
        """Work on what is still waiting, then end."""
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
            started = time.monotonic()
            try:
                self._work(newest[0])
            except self._failure as error:
                if time.monotonic() >= self._log_after:
                    self._log_after = time.monotonic() + LOG_EVERY_S
                    log.warning("%s: %s; the run continues, and the next commit tries again", self._said, error)
            rest_s = self._rest_s(time.monotonic() - started)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, rest_s)
