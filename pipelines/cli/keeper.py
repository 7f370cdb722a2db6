"""Keeps a server, and everything it starts, from outliving the command that asked for it (run by ``python -m``; Linux).

The keeper's standard input is a pipe that the command holds open. When the pipe closes, because the command ended or
was killed, the keeper interrupts the server, gives it time, and then ends every process below it. As a sub-reaper it
also finds processes whose own parent has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.infra.process import end_with_parent

_PR_SET_CHILD_SUBREAPER = 36
SERVER_GRACE_S = 15.0
"""How long the server may take after SIGINT."""
CHILDREN_GRACE_S = 20.0
"""How long the processes it left behind may take after SIGTERM; a driver commits and ends in under 10 s."""
_LOOK_EVERY_S = 0.2


def start_kept(command: Sequence[str], *, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start ``command`` under a keeper, its output appended to ``log``.

    Closing the returned process's ``stdin`` ends the server; its ``wait`` returns once every process has ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
        )


@dataclass(frozen=True, kw_only=True)
class _Process:
    pid: int
    parent: int
    session: int


def _descendants() -> list[_Process]:
    """The running processes below this one, parents before their children."""
    by_parent: dict[int, list[_Process]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it has just ended
        if state != "Z":
            process = _Process(pid=int(stat.parent.name), parent=int(parent), session=int(session))
            by_parent.setdefault(process.parent, []).append(process)
    found = list(by_parent.get(os.getpid(), ()))
    for process in found:
        found.extend(by_parent.get(process.pid, ()))
    return found


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _end_descendants() -> None:
    """Ask the remaining processes to end, and kill those that do not.

    A process in a session of its own (Spark's Java, a broker) is left to the process that started it: a driver needs
    its Java process for its last commit. Once its parent has ended, it becomes a child of the keeper and is asked too.
    """
    asked: set[int] = set()
    deadline = time.monotonic() + CHILDREN_GRACE_S
    while left := _descendants():
        if time.monotonic() > deadline:
            _signal([process.pid for process in left], signal.SIGKILL)
        wanted = {process.pid for process in left if os.getpid() in (process.session, process.parent)}
        _signal(wanted - asked, signal.SIGTERM)
        asked |= wanted
        time.sleep(_LOOK_EVERY_S)


def main(command: Sequence[str]) -> int:
    """Run ``command`` until it ends or standard input closes; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the pipe decides, so that the shutdown always completes
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    end_with_keeper = end_with_parent(signal.SIGINT)

    def before_exec() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        end_with_keeper()

    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=before_exec)
    while server.poll() is None and not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        pass
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(SERVER_GRACE_S)
        except subprocess.TimeoutExpired:
            server.kill()
    _end_descendants()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
