"""What tests ask slots to do: functions of a module, as the worker imports them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from weir.pipelines.operators import calls
from weir.pipelines.operators.functions import Records, UserFunction
from weir.pipelines.spark.worker import WorkerSettings
from weir.state.types import TaskId


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


class LongCall(NamedTuple):
    task: TaskId
    seconds: float


def in_a_long_call(settings: WorkerSettings, items: Sequence[LongCall]) -> Iterator[TaskId]:
    """Each task once its function, called for two records, has slept for the second one."""
    for task, seconds in items:
        rows = pl.DataFrame({"user": ["ann", "bob"], "_partition": [0, 0], "_offset": [7, 8], "_ts": [0, 1_000]})
        function = UserFunction(call=lambda each: time.sleep(each), node="KSTREAM-MAP-0000000001", known_as="fetch")
        function.over([(0,), (seconds,)], Records(rows, ["user"]))
        calls.running = None
        yield task
