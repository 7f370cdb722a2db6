"""Keeps a server and all that it starts from outliving the command that asked for it (``python -m`` this, Linux).

The keeper's standard input is a pipe that the command holds open. When the pipe closes, be it by the command's end
or by a kill -9, the keeper interrupts the server, gives it time, and then ends every process below it. As a
sub-reaper it also finds those whose own parent has gone.
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
from pathlib import Path

from infra.process import end_with_parent

_PR_SET_CHILD_SUBREAPER = 36
SERVER_GRACE_S = 15.0
"""How long the server may take after SIGINT."""
CHILDREN_GRACE_S = 20.0
"""How long what it left behind may take after SIGTERM; a driver commits and ends in under 10 s."""
_LOOK_EVERY_S = 0.2


def start_kept(command: Sequence[str], *, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start ``command`` under a keeper, its output appended to ``log``.

    Closing the returned process's ``stdin`` ends the server; its ``wait`` returns when nothing of it is left.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen([sys.executable, "-m", __name__, *command], stdin=subprocess.PIPE, stdout=output,
                                stderr=output, env={**os.environ, **environment}, start_new_session=True)


def _processes_below() -> tuple[list[int], list[int]]:
    """Process ids of this process's children, and of all that descend from it; zombies left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # ended while we looked
        if state != "Z":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    direct = children.get(os.getpid(), [])
    below = list(direct)
    for pid in below:
        below.extend(children.get(pid, ()))
    return direct, below


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _end_descendants() -> None:
    """Ask those without another parent to end, as each ends what it started itself; then kill what is left."""
    asked: set[int] = set()
    deadline = time.monotonic() + CHILDREN_GRACE_S
    while True:
        direct, below = _processes_below()
        if not below:
            return
        if time.monotonic() > deadline:
            _signal(below, signal.SIGKILL)
        _signal(set(direct) - asked, signal.SIGTERM)
        asked.update(direct)
        time.sleep(_LOOK_EVERY_S)


def main(command: Sequence[str]) -> int:
    """Run ``command`` until it ends or standard input closes; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the pipe decides, so that nothing is left half ended
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
