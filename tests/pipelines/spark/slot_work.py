"""What tests ask slots to do: functions of a module, as the worker imports them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from weir.pipelines.spark.worker import WorkerSettings


def pids(settings: WorkerSettings, items: Sequence[object]) -> Iterator[int]:
    """The worker's process, once an item."""
    return (os.getpid() for _ in items)


def killed_once(settings: WorkerSettings, items: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Each item's text; the worker is killed before the first item that it meets whose file is not there yet, and
    makes that file."""
    for file, text in items:
        if file and not Path(file).exists():
            Path(file).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield text


def always_killed(settings: WorkerSettings, items: Sequence[object]) -> Iterator[object]:
    os.kill(os.getpid(), signal.SIGKILL)
    return iter(items)


def failing(settings: WorkerSettings, items: Sequence[object]) -> Iterator[object]:
    raise ZeroDivisionError("nothing to divide by")


def seconds_slept(settings: WorkerSettings, items: Sequence[float]) -> Iterator[tuple[float, float]]:
    """When each item's sleep began and ended."""
    for seconds in items:
        began = time.time()
        time.sleep(seconds)
        yield began, time.time()
