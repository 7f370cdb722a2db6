"""Where a run's log lines go: all of them to the application's file, warnings to a handler of the caller's as well; and
the stacks of its threads, on request.

This is the only module that configures the standard library's logging; all others only get loggers.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_FILE_BYTES = 16 << 20
KEPT_FILES = 3
STACKS_SIGNAL = signal.SIGUSR1
_NOISY = ("py4j", "urllib3", "sqlalchemy")


class _UtcFormatter(logging.Formatter):
    converter = time.gmtime  # type: ignore[assignment]  # as the documentation of logging does


def log_file(logs: Path, application: str) -> Path:
    """The file that an application's runs write to."""
    return logs / f"{application}.log"


def stacks_file(logs: Path, application: str) -> Path:
    """The file that an application's driver writes the stacks of its threads to on request."""
    return logs / f"{application}.stacks"


@contextmanager
def stacks_on_signal(path: Path) -> Iterator[None]:
    """Have ``STACKS_SIGNAL`` write the stacks of all threads to ``path``, even while Python itself hangs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(STACKS_SIGNAL)


@contextmanager
def logging_to(path: Path, *, console: logging.Handler | None = None, debug: Sequence[str] = ()) -> Iterator[None]:
    """Write all log lines of this process to ``path`` (UTC, rotated at 16 MB, three old files kept).

    ``console`` gets the warnings too, or what its own level allows. The loggers ``debug`` also write what is at DEBUG.
    Handlers and levels are as before at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RotatingFileHandler(path, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
    file.setFormatter(
        _UtcFormatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(process)d %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )
    )
    handlers: list[logging.Handler] = [file]
    if console is not None:
        if console.level == logging.NOTSET:
            console.setLevel(logging.WARNING)
        handlers.append(console)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    levels = {name: logging.getLogger(name).level for name in debug}
    for name in debug:
        logging.getLogger(name).setLevel(logging.DEBUG)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        root.setLevel(level)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
