"""Processes that write to one instance take turns, in front of LMDB's own lock, which would be waited for without end.

LMDB's lock goes to the next process if its holder dies, but not if its holder is stopped: by SIGSTOP, a debugger, or
the freezer of a container that has been given up. The lock here is the kernel's, on a file of the instance, so whoever
waits sees who holds it, and gives the instance up after a while. The task is then restored to an instance of its own,
and the stopped process, should it ever wake up, writes to the old one, which nobody reads any more (PROTOCOL 18).
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from weir.state.engine.processes import is_stopped
from weir.state.errors import TaskCorruptedError

TURN_MAX_S = 600.0
"""How long a process may write to an instance while another one waits."""
STOPPED_MAX_S = 10.0
"""How long it may be stopped meanwhile."""
_FILE = "writer.lock"
_LOCK = struct.Struct("hhqqi4x")
"""The kernel's ``struct flock``: type, whence, start, length, process."""


class Turns:
    """Whose turn it is to write to an instance. A process has one of them for each instance that it has open."""

    def __init__(self, folder: Path, task_id: str) -> None:
        self._folder, self._task_id, self._depth = folder, task_id, 0
        self._file = (folder / _FILE).open("ab")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for this process's turn, which lasts as long as the ``with`` block.

        Raises:
            TaskCorruptedError: Another process keeps its turn although it is stopped, or for too long.
        """
        if self._depth == 0:
            self._wait()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """To be called once the environment is closed."""
        self._file.close()

    def _wait(self) -> None:
        since = stopped_since = monotonic()
        pause_s = 0.001
        while not self._is_free():
            now, holder = monotonic(), self._holder()
            if holder is None:
                continue
            if not is_stopped(holder):
                stopped_since = now
            if now - stopped_since > STOPPED_MAX_S:
                raise self._given_up(f"process {holder} is stopped (SIGSTOP, or a debugger) while it writes to it")
            if now - since > TURN_MAX_S:
                raise self._given_up(f"process {holder} has written to it for {TURN_MAX_S:.0f} s without an end")
            sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)

    def _is_free(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> int | None:
        """The process whose turn it is; None if there is none any more, 0 if it cannot be seen from here."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = _LOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else process

    def _given_up(self, reason: str) -> TaskCorruptedError:
        return TaskCorruptedError(self._task_id, str(self._folder), reason)
