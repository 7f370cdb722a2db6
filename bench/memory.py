"""Anonymous memory (RssAnon) of a process and its descendants: what a run really uses, without mapped files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.1


@dataclass
class Peak:
    """The largest sum seen so far, in bytes."""

    rss_anon_bytes: int = 0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Sample the process tree under ``pid`` ten times a second while the block runs."""
    peak, done = Peak(), threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            peak.rss_anon_bytes = max(peak.rss_anon_bytes, tree_memory(pid))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def tree_memory(pid: int) -> int:
    """The current RssAnon of the process and its descendants, in bytes."""
    return sum(int(fields.get("RssAnon", "0 kB").split()[0]) * 1024 for fields in process_tree(pid).values())


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
