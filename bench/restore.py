"""Restoring state: Weir from its changelogs alone and from snapshots, Kafka Streams from its changelog topic; and how
long Weir's stores take to reopen after kill -9.

Both sides hold one row per key after the same events and lose their local state; the time is from the start of the
first restore to the end of the last one, without start-up. ``python -m bench.restore [--quick] [--dir DIR]`` runs only
this.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench import cluster
from bench.events import SMALL_BYTES, event_frame, make_events
from bench.peers.kafka_streams import KafkaStreamsPeer
from bench.peers.runs import run_peer
from bench.processes import ROOT, BenchError, Measured, measure, run_json

ROWS, QUICK_ROWS = 4_900_000, 500_000
REOPENED, QUICK_REOPENED = (5_000_000, 20_000_000), (1_000_000,)
TOPIC, REFERENCE = "events_restore", "bench.apps:sum_per_key_restore"
TASKS = 4
CHANGED = 25_000
"""Rows of each task that are uncommitted when it is killed."""


@dataclass(frozen=True, kw_only=True)
class Restores:
    """One run of each kind; ``kafka_streams`` is None if the peer cannot run."""

    rows: int
    changelog: Measured
    snapshot: Measured
    kafka_streams: Measured | None
    reopen_ms: dict[int, dict[str, float]]
    """By rows over all tasks: the times to open all of them, and to roll back."""

    def ratio(self, mine: Measured) -> float | None:
        """How many times as fast as Kafka Streams it is."""
        return None if self.kafka_streams is None else mine.per_s / self.kafka_streams.per_s

    def lines(self) -> list[str]:
        """For people."""

        def line(name: str, run: Measured, ratio: float | None) -> str:
            beside = "" if ratio is None else f", {ratio:.1f} times Kafka Streams"
            return f"{name}: {run.records:,} rows in {run.seconds:.2f} s ({run.per_s / 1000:,.0f} k/s){beside}"

        found = [
            line("restored from changelogs alone", self.changelog, self.ratio(self.changelog)),
            line("restored from snapshots", self.snapshot, self.ratio(self.snapshot)),
        ]
        if self.kafka_streams is not None:
            found.append(line("Kafka Streams from its changelog topic", self.kafka_streams, None))
        found += [
            f"reopened after kill -9: {rows:,} rows in {TASKS} tasks in {took['all_ms']:.0f} ms; an uncommitted "
            f"epoch was rolled back in another {took['rollback_ms']:.0f} ms"
            for rows, took in self.reopen_ms.items()
        ]
        return found

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            **asdict(self),
            "ratios": {"changelog": self.ratio(self.changelog), "snapshot": self.ratio(self.snapshot)},
        }


def measure_restores(
    folder: Path, client: Path, peer: KafkaStreamsPeer | None, *, quick: bool, say: Callable[[str], None]
) -> Restores:
    """Make the state on both sides, lose it, and measure how it is restored.

    Raises:
        BenchError: A run failed, or did not restore all rows.
    """
    rows = QUICK_ROWS if quick else ROWS
    reopen_ms = {}
    for held in QUICK_REOPENED if quick else REOPENED:
        say(f"reopening {held:,} rows")
        reopen_ms[held] = reopened(folder / "reopen", held)
    say(f"making {rows:,} events with distinct keys")
    make_events(client, TOPIC, rows, SMALL_BYTES, partial(_with_distinct_keys, rows))
    weir, application = folder / "restore", "sum_per_key_" + TOPIC
    command = [sys.executable, "-m", "bench.weir_side", REFERENCE, str(weir), str(client)]
    say("making Weir's state")
    measure(command, "Weir's state")

    def weir_restores(name: str, *settings: str) -> Measured:
        say(f"Weir: {name}")
        shutil.rmtree(weir / "state" / application)
        side = [sys.executable, "-m", "bench.restore_side", REFERENCE, str(weir), str(client), *settings]
        return _complete(measure(side, f"Weir: {name}"), rows)

    changelog = weir_restores("from changelogs, then publishing snapshots", "1")
    snapshot = weir_restores("from snapshots", "1")
    shutil.rmtree(weir)
    kafka_streams = None
    if peer is not None:
        say("making Kafka Streams' state")
        run_peer(peer, "sum_per_key", client, TOPIC, "totals_restore", folder)
        say("Kafka Streams: from its changelog topic")
        kafka_streams = _complete(run_peer(peer, "restore", client, TOPIC, "totals_restore", folder), rows)
    return Restores(rows=rows, changelog=changelog, snapshot=snapshot, kafka_streams=kafka_streams, reopen_ms=reopen_ms)


def reopened(
    folder: Path, rows: int, tasks: int = TASKS, changed: int = CHANGED, order: str = "spread"
) -> dict[str, float]:
    """Fill stores of ``tasks`` in a process that is killed with ``changed`` rows of each uncommitted; returns how long
    another takes to open them and to roll them back, in ms."""

    def side(what: str) -> list[str]:
        shape = [str(tasks), str(rows), what, str(changed), order]
        return [sys.executable, "-m", "bench.reopen_side", str(folder), *shape]

    try:
        with subprocess.Popen(side("fill"), stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            ready = child.stdout is not None and child.stdout.readline()
            child.kill()
        if ready != "ready\n":
            raise BenchError("the stores to reopen could not be filled")
        return run_json(side("open"), "Weir's reopening")[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _complete(run: Measured, rows: int) -> Measured:
    if run.records < rows:
        raise BenchError(f"{run.records:,} of {rows:,} rows were restored")
    return run


def _with_distinct_keys(keys: int, start: int, stop: int, event_bytes: int) -> pl.DataFrame:
    """Events with distinct keys, not in key order."""
    numbers = np.arange(start, stop) * 1_000_003 % keys
    return event_frame(start, stop, event_bytes).with_columns(key="u" + pl.Series(numbers).cast(pl.String).str.zfill(8))


def main() -> None:
    """Run only this part of the bench and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.restore", description="Measure how fast state is restored.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows instead of {ROWS:,}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--dir", type=Path, default=Path(".weir"), help="the folder for the bench's files while it runs"
    )
    arguments = parser.parse_args()
    folder = arguments.dir.absolute() / "bench"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "classes").mkdir(parents=True)
    try:
        peer = KafkaStreamsPeer()
        peer.install(folder / "classes")
        with cluster.embedded(folder / "kafka") as client:
            found = measure_restores(
                folder,
                client,
                peer,
                quick=arguments.quick,
                say=lambda text: print(text, file=sys.stderr, flush=True),
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found.as_json()) if arguments.json else "\n".join(found.lines()))


if __name__ == "__main__":
    main()
