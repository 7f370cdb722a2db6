"""Child processes that never outlive their parent, who may read what a process writes, and facts about processes."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with_parent(ended_by: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A ``preexec_fn`` for ``subprocess``: the kernel sends ``ended_by`` to the child when its parent ends.

    The kernel watches the thread that starts the child, so start it from one that lives as long as the process.
    """
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def set_signal() -> None:
        if not end_with(parent, ended_by, libc):
            os._exit(1)

    return set_signal


def end_with(parent: int, ended_by: signal.Signals, libc: ctypes.CDLL | None = None) -> bool:
    """Have the kernel send ``ended_by`` to this process when ``parent`` ends; False if it has already ended."""
    (libc or ctypes.CDLL(None, use_errno=True)).prctl(_PR_SET_PDEATHSIG, int(ended_by), 0, 0, 0)
    return os.getppid() == parent


def when_ended(pid: int, ticks: int | None, call: Callable[[], None]) -> bool:
    """Have ``call`` made in a thread of its own once a process of this user ends, which ``start_ticks`` identifies and
    which need not be the parent; False if it has already ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    if start_ticks(pid) != ticks:  # its pid was given again before
        os.close(watched)
        return False

    def wait() -> None:
        select.select([watched], [], [])
        call()

    threading.Thread(target=wait, name=f"end of {pid}", daemon=True).start()
    return True


def this_machine() -> str:
    """A name that no two hosts share, nor two containers of one, as long as they are up."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot}"


def close_files(umask: str) -> None:
    """Have everything that this process and its children write from now on closed to others, as ``umask`` says in
    octal digits (``Settings.umask``)."""
    os.umask(int(umask, 8))


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process or it is a zombie.

    Together with the pid this identifies a process uniquely; a pid alone may be reused.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(fields[18])
