"""Anonymous memory (RssAnon) of a process and its descendants: what a run really uses, without mapped files; and their
processor time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_S = 0.1
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Peak:
    """What has been seen so far."""

    rss_anon_bytes: int = 0
    """The largest sum."""
    used_s: dict[int, float] = field(default_factory=dict)
    """By process, those that have ended too, its processor time as of the last sample."""

    @property
    def cpu_seconds(self) -> float:
        """The processor time of all processes, from their start."""
        return sum(self.used_s.values())


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Sample the process tree under ``pid`` ten times a second while the block runs."""
    peak, done = Peak(), threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            tree = process_tree(pid)
            peak.rss_anon_bytes = max(peak.rss_anon_bytes, _memory(tree.values()))
            peak.used_s |= {each: used for each in tree if (used := _used_s(each)) is not None}

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def tree_memory(pid: int) -> int:
    """The current RssAnon of the process and its descendants, in bytes."""
    return _memory(process_tree(pid).values())


def _memory(statuses: Iterable[dict[str, str]]) -> int:
    return sum(int(fields.get("RssAnon", "0 kB").split()[0]) * 1024 for fields in statuses)


def _used_s(pid: int) -> float | None:
    """None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * _TICK_S  # utime and stime, as proc_pid_stat(5) counts from the state


def process_tree(pid: int) -> dict[int, dict[str, str]]:
    """The process and its descendants: by process id, the fields of its status."""
    found: dict[int, dict[str, str]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            found[int(status.parent.name)] = dict(
                line.split(":", 1) for line in status.read_text().splitlines() if ":" in line
            )
        except OSError:  # it has ended
            continue
    parents = {each: int(fields["PPid"]) for each, fields in found.items()}
    return {each: fields for each, fields in found.items() if _is_below(each, pid, parents)}


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor
