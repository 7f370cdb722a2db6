"""What the bench asks of a peer: a program that runs the same jobs over the same topic, beside which Weir is measured.

A peer reads the topic ``topic`` to its end and writes its results to the topic ``output``: of each key its newest
total, the key as text and the total as eight bytes, most significant first. Keys of windows are ``user@start``, of
sessions ``user@start@end``, in milliseconds. It prints one JSON object in its last line: ``records``, and ``seconds``
from the first record to the commit of the last. How peers take turns belongs to ``bench.workloads``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Guarantee = Literal["exactly once", "at least once"]


class NotRunError(Exception):
    """A peer cannot run here; the text says why, and what to install if that would help."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one job."""

    job: str
    client: Path
    """The broker's file of librdkafka's client properties."""
    topic: str
    output: str
    """A fresh topic that is there; its name is also that of the application."""
    state: Path
    """An empty folder, deleted after the run."""
    closed_by_ms: int
    """The greatest end of a window that the last event closes."""


class Peer(Protocol):
    """One way to run jobs; ``bench.peers.PEERS`` has all."""

    name: str
    """For ``--peers``, ``flink-sql-rocksdb``."""
    title: str
    """For tables, ``Flink SQL, RocksDB``."""
    guarantee: Guarantee
    jobs: frozenset[str]
    settings: Mapping[str, str]
    """What an expert would set, as they are passed on, for the report."""

    def install(self, folder: Path) -> None:
        """Fetch what it needs, once, and compile into ``folder``.

        Raises:
            NotRunError: It cannot run on this machine.
        """

    def command(self, run: Run) -> Sequence[str]:
        """The command line of one run; called after ``install``."""
