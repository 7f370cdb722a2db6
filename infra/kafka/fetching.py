"""Which topic partitions of a process fetch ahead: all while they are few, else those that were used last.

What waits in the queues of partitions that nobody reads would take any amount of memory. A partition that has to stop
goes on where it was once it is used again. How many may fetch is said by ``weir.infra.kafka.shared_clients``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Fetcher(Protocol):
    """One topic partition."""

    def stop(self) -> None:
        """Fetch no more until it is used again."""
        ...


class Fetching:
    """The partitions that fetch. Whoever starts or stops one holds ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._since: dict[Fetcher, None] = {}
        """Those that fetch, the one that was used last at the end."""
        self._at_work: set[Fetcher] = set()

    def __contains__(self, fetcher: Fetcher) -> bool:
        return fetcher in self._since

    def add(self, fetcher: Fetcher, most: int) -> None:
        """``fetcher`` begins to fetch; others stop so that there are at most ``most``, none that is at work."""
        self._since.pop(fetcher, None)
        idle = [each for each in self._since if each not in self._at_work]
        for each in idle[: max(0, len(self._since) + 1 - most)]:
            each.stop()
        self._since[fetcher] = None

    def remove(self, fetcher: Fetcher) -> None:
        self._since.pop(fetcher, None)

    @contextmanager
    def work(self, fetcher: Fetcher) -> Iterator[None]:
        """``fetcher`` is used, and does not have to stop meanwhile."""
        with self.lock:
            if fetcher in self._since:
                self._since[fetcher] = self._since.pop(fetcher)
            self._at_work.add(fetcher)
        try:
            yield
        finally:
            self._at_work.discard(fetcher)
