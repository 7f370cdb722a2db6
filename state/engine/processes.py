"""Marks of processes in the names of files that only mean something while, or once, their process has ended."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def own_mark() -> str:
    """Of this process: its id and when it started, in clock ticks since boot, since an id is used again."""
    return f"{os.getpid()}.{_started(os.getpid())}"


os.register_at_fork(after_in_child=own_mark.cache_clear)


def is_alive(mark: str) -> bool:
    """Whether the process of a mark is there; earlier versions wrote the process's id alone."""
    pid, _, started = mark.partition(".")
    found = _started(int(pid)) if pid.isdigit() else None
    return found is not None and started in ("", found)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    return _stat(pid)[0] in "Tt"


def _started(pid: int) -> str | None:
    state, *fields = _stat(pid)
    return None if state in "ZX" else fields[18]


def _stat(pid: int) -> list[str]:
    """The process's state and what the kernel lists after it; state X if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["X"]
    return stat[stat.rindex(")") + 2 :].split()
