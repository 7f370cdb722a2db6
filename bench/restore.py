"""Restoring state: Weir from its changelogs alone and from snapshots, Kafka Streams from its changelog topic; and how
long Weir's stores take to reopen after kill -9.

Both sides run over a few events; then each gets as many rows in its changelog as its tasks would have written, one
for each key: Weir by commits, Kafka Streams by a producer to its topic. They hold no local state; the time is from the
start of the first restore to the end of the last one, without start-up. ``python -m bench.restore [--quick] [--rows N]
[--dir DIR]`` runs only this; with ``--rows`` without reopening stores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bench import cluster
from bench.apps import sum_per_key_restore
from bench.events import SMALL_BYTES, START_MS, event_frame, make_events, produce
from bench.peers.kafka_streams import KafkaStreamsPeer
from bench.peers.runs import run_peer
from bench.processes import ROOT, BenchError, Measured, measure, run_json
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.types import FileEntry, StateId

ROWS, QUICK_ROWS = 4_900_000, 500_000
REOPENED, QUICK_REOPENED = (5_000_000, 20_000_000), (1_000_000,)
TOPIC, REFERENCE = "events_restore", "bench.apps:sum_per_key_restore"
TASKS, EVENTS, EPOCH_ROWS = 4, 1_000, 100_000
"""Rows of an epoch are those of one task."""
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
    folder: Path,
    client: Path,
    peer: KafkaStreamsPeer | None,
    *,
    quick: bool,
    say: Callable[[str], None],
    rows: int | None = None,
) -> Restores:
    """Make the state on both sides, lose it, and measure how it is restored; with ``rows``, so many, and nothing else.

    Raises:
        BenchError: A run failed, or did not restore all rows.
    """
    reopen_ms = {}
    for held in () if rows else QUICK_REOPENED if quick else REOPENED:
        say(f"reopening {held:,} rows")
        reopen_ms[held] = reopened(folder / "reopen", held)
    rows = rows or (QUICK_ROWS if quick else ROWS)
    make_events(client, TOPIC, EVENTS, SMALL_BYTES)
    weir, state = folder / "restore", folder / "restore" / "state" / sum_per_key_restore.id
    command = [sys.executable, "-m", "bench.weir_side", REFERENCE, str(weir), str(client)]
    say(f"making Weir's state: {rows:,} rows")
    measure(command, "Weir's state")
    commit_rows(weir / "warehouse", rows)

    def weir_restores(name: str, *settings: str) -> Measured:
        say(f"Weir: {name}")
        shutil.rmtree(state)
        side = [sys.executable, "-m", "bench.restore_side", REFERENCE, str(weir), str(client), *settings]
        return _complete(measure(side, f"Weir: {name}"), rows)

    changelog = weir_restores("from changelogs, then publishing snapshots", "1")
    snapshot = weir_restores("from snapshots", "1")
    shutil.rmtree(weir)
    kafka_streams = None
    if peer is not None:
        say("making Kafka Streams' state")
        run_peer(peer, "sum_per_key", client, TOPIC, "totals_restore", folder)
        produce(client, "totals_restore-sums-changelog", rows, SMALL_BYTES, partial(_changelog_records, rows))
        say("Kafka Streams: from its changelog topic")
        kafka_streams = _complete(run_peer(peer, "restore", client, TOPIC, "totals_restore", folder), rows)
    return Restores(rows=rows, changelog=changelog, snapshot=snapshot, kafka_streams=kafka_streams, reopen_ms=reopen_ms)


def commit_rows(warehouse: Path, rows: int) -> None:
    """Commit ``rows`` with distinct keys to the changelog of the application's store, by epochs of each task."""
    topology = sum_per_key_restore.topology
    spec = changelog_spec(topology.sub_topologies[0].stores[0])
    committer = Committer(
        warehouse, sum_per_key_restore.id, application_tables(topology), fingerprint=topology.fingerprint
    )
    claim = committer.claim()
    generation, newest = claim.generation, claim.newest
    assert newest is not None
    epoch, tasks = newest.epoch, dict(newest.tasks)
    for start in range(0, rows, EPOCH_ROWS * len(tasks)):
        epoch += 1
        stop, files = min(start + EPOCH_ROWS * len(tasks), rows), list[FileEntry]()
        for at, name in enumerate(tasks):
            numbers = np.arange(start + at, stop, len(tasks))
            frame = (
                pl.DataFrame(
                    {
                        "user": _keys(numbers, rows),
                        "total": numbers,
                        "_ts": START_MS,
                        "_epoch": epoch,
                        "_deleted": False,
                    }
                )
                .cast({"_ts": spec.schema["_ts"]})
                .sort("user")
            )
            partition = {"task": name, "segment": str(epoch // SEGMENT_EPOCHS)}
            files.append(write_file(warehouse / sum_per_key_restore.id, spec, frame, partition))
        state = StateId(generation, epoch)
        tasks = {name: replace(task, state=state) for name, task in tasks.items()}
        record = replace(
            newest, generation=generation, epoch=epoch, at_ms=newest.at_ms + epoch, files=tuple(files), tasks=tasks
        )
        committer.commit(record)
    committer.close()


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


def with_distinct_keys(keys: int, start: int, stop: int, event_bytes: int) -> pl.DataFrame:
    """Events with distinct keys, not in key order."""
    return event_frame(start, stop, event_bytes).with_columns(key=_keys(np.arange(start, stop), keys))


def _changelog_records(keys: int, start: int, stop: int, _: int) -> pl.DataFrame:
    """What Kafka Streams writes for a sum: the key as text, the sum as eight bytes, most significant first, and the
    time as that of the record."""
    numbers = np.arange(start, stop)
    values = [number.to_bytes(8) for number in numbers.tolist()]
    return pl.DataFrame({"key": _keys(numbers, keys), "value": values, "timestamp": START_MS})


def _keys(numbers: npt.NDArray[np.int64], keys: int) -> pl.Series:
    return "u" + pl.Series(numbers * 1_000_003 % keys).cast(pl.String).str.zfill(8)


def main() -> None:
    """Run only this part of the bench and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.restore", description="Measure how fast state is restored.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows instead of {ROWS:,}")
    parser.add_argument("--rows", type=int, help="so many rows, and no stores are reopened")
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
                rows=arguments.rows,
                say=lambda text: print(text, file=sys.stderr, flush=True),
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found.as_json()) if arguments.json else "\n".join(found.lines()))


if __name__ == "__main__":
    main()
