"""Processes of a test's own, to be killed or to run beside it: forks of a server that has imported what they need.

A new Python imports for two seconds, a fork takes a few milliseconds. The server is begun by the first test that needs
it, starts no threads of its own, and ends with the tests; its forks end with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

from weir.infra.process import end_with

LIFE_LIMIT_S = 120.0
IMPORTED = [
    "tests.pipelines.publishing.batches",
    "tests.pipelines.publishing.sql_shop",
    "tests.pipelines.spark.unlogged",
    "tests.state.changelog.twins",
]
"""Modules that build no program, which would start the threads of Polars."""
NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "_RJEM_MALLOC_CONF": "background_thread:false",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Or NumPy, Polars and PyArrow would start threads when they are imported, which forks do not have. One is left, which
removes what Polars has spilled to disk, and forks spill nothing."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(IMPORTED)


def started(function: Callable[..., object], *arguments: object) -> BaseProcess:
    """A process that calls ``function``, which a module has under its name, in this environment and folder."""
    with patch.dict(os.environ, NO_THREADS, PYTHONPATH=str(Path(__file__).parents[1])):
        forkserver.ensure_running()
    process = _CONTEXT.Process(target=_live, args=(dict(os.environ), function, arguments), daemon=True)
    process.start()
    return process


def end_of(process: BaseProcess) -> int:
    """Wait for the process; the code that it ends with, -9 if it was killed."""
    process.join(LIFE_LIMIT_S)
    code = process.exitcode
    assert code is not None, f"it has not ended within {LIFE_LIMIT_S:g} s"
    process.close()
    return code


def ended(function: Callable[..., object], *arguments: object) -> int:
    """Call ``function`` in a process; the code that it ends with."""
    return end_of(started(function, *arguments))


def stop() -> None:
    """End the server."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def _live(environment: dict[str, str], function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]  # or the server outlives the tests
    assert end_with(os.getppid(), signal.SIGKILL)
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)
