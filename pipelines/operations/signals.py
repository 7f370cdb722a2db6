"""Lets SIGINT and SIGTERM end a run after its current epoch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a run that watches it finishes its epoch and commits.

    A second signal changes nothing: the run is already stopping. Main thread only.
    """
    stop = threading.Event()
    arrived: SimpleQueue[int] = SimpleQueue()

    def handle(number: int, _frame: FrameType | None) -> None:
        # Neither a log line nor `stop.set`: the signal may have interrupted one of them, or `stop.wait`, while it holds
        # the lock that the call would wait for. Putting into this queue is safe anywhere.
        arrived.put(number)

    def follow() -> None:
        arrived.get()
        stop.set()

    threading.Thread(target=follow, name="stop on signals", daemon=True).start()
    earlier = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        arrived.put(0)  # ends the thread
