"""What the bench prints and writes: a table for people, one JSON object for programs, a chart; progress goes to stderr.

``python -m bench.report FILE`` prints the tables of an earlier bench and draws its chart again.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import cluster
from bench.chart import chart
from bench.events import KEYS, LARGE_BYTES, PARTITIONS, SMALL_BYTES
from bench.jobs import JOBS, OF_PEERS, OTHER_JOBS, planned
from bench.kept import CHART, Kept
from bench.peers import DEFAULT, PEERS, QUICK
from bench.peers.kafka_streams import KafkaStreamsPeer
from bench.peers.peer import NotRunError, Peer
from bench.processes import ROOT, BenchError
from bench.restore import measure_restores
from bench.workload import RAW, WEIR, Workload
from bench.workloads import Bench, MemoryGrowth

EVENTS, QUICK_EVENTS = 3_000_000, 600_000
DISTINCT, QUICK_DISTINCT = 5_000_000, 500_000
"""The keys of ``distinct_keys``, which come once each."""
RUNS, QUICK_RUNS = 3, 1
MEMORY_EVENTS = 1_000_000
ALL = "all"
TITLES: Mapping[str, str] = {WEIR: "Weir", RAW: "reading alone", **{peer.name: peer.title for peer in PEERS}}
GUARANTEES: Mapping[str, str] = {peer.name: peer.guarantee for peer in PEERS if peer.guarantee != "exactly once"}
"""The lesser ones."""


def main(
    *,
    quick: bool = False,
    as_json: bool = False,
    jobs: Collection[str] = (),
    peers: Collection[str] = (),
    weir_alone: bool = False,
    events: int | None = None,
    fresh: bool = False,
    dir: Path | None = None,
) -> None:
    """Run the bench, print its results, and write them to the folder ``bench-results``; a bench that was ended goes on
    with the next job. Leaves nothing else behind.

    Args:
        quick: One run, on 600,000 small events beside ``QUICK``, of each job that the peers have, instead of three of
            all on three million of both sizes, memory, idle epochs and restores.
        as_json: Print the results' file instead of tables.
        jobs: Run only these, without memory, idle epochs and restores.
        peers: The names of the peers, or ``all``; ``DEFAULT`` by default.
        weir_alone: No peers, for example to compare two versions of Weir.
        events: How many instead.
        fresh: Do not go on with a bench that was ended.
        dir: The folder whose subfolder ``bench`` holds broker data and state during the run; ``.weir`` by default.

    Raises:
        BenchError: A run of Weir failed, or its result is wrong; there is no such job or peer.
    """
    if unknown := set(jobs).difference(JOBS, OTHER_JOBS):
        raise BenchError(f"there is no job {sorted(unknown)[0]}; the jobs are {', '.join((*JOBS, *OTHER_JOBS))}")
    chosen = _chosen(() if weir_alone else peers or (QUICK if quick else DEFAULT))
    count = events or (QUICK_EVENTS if quick else EVENTS)
    distinct = events or (QUICK_DISTINCT if quick else DISTINCT)
    runs = QUICK_RUNS if quick else RUNS
    wanted = jobs or _jobs(chosen if quick else ())
    sizes = (SMALL_BYTES,) if quick else (SMALL_BYTES, LARGE_BYTES)
    plan = planned(wanted, count, distinct, sizes, is_alone=not chosen)
    is_whole = not (quick or jobs)
    progress = Console(stderr=True, highlight=False)
    home = Path(dir or ".weir").absolute()
    folder, results = home / "bench", home / "bench-results"
    shutil.rmtree(folder, ignore_errors=True)
    classes = folder / "classes"
    classes.mkdir(parents=True)

    def say(text: str) -> None:
        progress.print(text, markup=False, soft_wrap=True)

    setup = {
        "events": count,
        "distinct_keys": distinct,
        "runs": runs,
        "keys": KEYS,
        "partitions": PARTITIONS,
        "peers": {peer.name: {"guarantee": peer.guarantee, "settings": dict(peer.settings)} for peer in chosen},
        "jobs": sorted(jobs),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "version": _version(),
    }
    kept = Kept(results, setup, fresh=fresh)
    others: dict[str, Any] = {}
    try:
        installed, others["not_run"] = _install(chosen, classes, say)
        with cluster.embedded(folder / "kafka") as client:
            bench = Bench(folder, client, say)
            workloads = list(bench.workloads(plan, runs, installed, kept))
            if is_whole:
                memory = list(bench.memory_growth(MEMORY_EVENTS))
                idle_epoch_ms, small_epoch_ms = bench.small_epochs_ms()
                peer = next((each for each in installed if isinstance(each, KafkaStreamsPeer)), None)
                restores = measure_restores(folder, client, peer, quick=False, say=say)
                others |= {
                    "memory": [_growth_as_json(growth) for growth in memory],
                    "idle_epoch_ms": idle_epoch_ms,
                    "small_epoch_ms": small_epoch_ms,
                    "restores": restores.as_json(),
                }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    written = kept.finish(others)
    (results / CHART).write_text(chart(workloads, TITLES), encoding="utf-8")
    if as_json:
        print(json.dumps(json.loads(written.read_text(encoding="utf-8"))))
        return
    console = Console(highlight=False)
    show(json.loads(written.read_text(encoding="utf-8")), console)
    if is_whole:
        console.print(_memory_table(memory, MEMORY_EVENTS))
        console.print(
            f"An epoch with due punctuations and no input: {idle_epoch_ms:.1f} ms (median); one with 1,000 "
            f"records: {small_epoch_ms:.1f} ms."
        )
        console.print("\n".join(restores.lines()), soft_wrap=True)
    say(f"written to {results}")


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print the rates of all sides, and who has not run and why, of the JSON object of a bench."""
    workloads = [Workload.from_json(each) for each in found["workloads"]]
    for work in workloads:
        console.print(_speed_table(work))
    console.print(
        f"{PARTITIONS} partitions, a commit each second. Ratios are medians of those of runs side by "
        "side, beside reading alone Weir's share of it; processor time is that of all processes of a run, with their "
        "start; memory the peak of their RssAnon.",
        soft_wrap=True,
    )
    for name, reason in found["not_run"].items():
        console.print(f"not run: {TITLES[name]}: {reason}", markup=False, soft_wrap=True)
    for work in workloads:
        for name, reason in work.not_run.items():
            console.print(f"not run: {TITLES[name]}, {work.name}: {reason}", markup=False, soft_wrap=True)
    console.print(found["setup"]["machine"])


def _jobs(peers: Sequence[Peer]) -> list[str]:
    """The jobs that one of ``peers`` has, all without peers."""
    of_peers = {job for peer in peers for job in peer.jobs}
    return [job for job in (*JOBS, *OTHER_JOBS) if not peers or OF_PEERS.get(job, job) in of_peers]


def _chosen(names: Collection[str]) -> list[Peer]:
    if ALL in names:
        return list(PEERS)
    if unknown := set(names).difference(peer.name for peer in PEERS):
        known = ", ".join(peer.name for peer in PEERS)
        raise BenchError(f"there is no peer {sorted(unknown)[0]}; the peers are {known}, or {ALL}")
    return [peer for peer in PEERS if peer.name in names]


def _install(peers: Sequence[Peer], folder: Path, say: Any) -> tuple[list[Peer], dict[str, str]]:
    installed, not_run = list[Peer](), dict[str, str]()
    for peer in peers:
        try:
            peer.install(folder)
            installed.append(peer)
        except NotRunError as error:
            not_run[peer.name] = str(error)
            say(f"{peer.title} is not run: {error}")
    return installed, not_run


def _version() -> str:
    """The commit that is measured, so that a bench does not go on with another's results."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _growth_as_json(growth: MemoryGrowth) -> dict[str, Any]:
    return {
        "name": growth.name,
        "records": [growth.base.records, growth.tenfold.records],
        "peak_bytes": [growth.base.peak_bytes, growth.tenfold.peak_bytes],
    }


def _speed_table(work: Workload) -> Table:
    runs = len(work.runs[WEIR])
    table = Table(
        title=f"{work.name}, {work.event_bytes} bytes, {work.events:,} events: thousand records per second, the median "
        f"of {runs} {'run' if runs == 1 else 'runs'}"
    )
    table.add_column("side", no_wrap=True)
    for column in ("rate", "lowest, highest", "Weir", "CPU s a million", "peak MB"):
        table.add_column(column, justify="right")
    for side in work.runs:
        low, high = work.spread(side)
        table.add_row(
            f"{TITLES[side]} ({GUARANTEES[side]})" if side in GUARANTEES else TITLES[side],
            f"{work.per_s(side) / 1000:,.0f}",
            f"{low / 1000:,.0f}, {high / 1000:,.0f}",
            "" if side == WEIR else work.compared(side),
            f"{work.cpu_s_per_million(side):.1f}",
            _megabytes(work.peak_bytes(side)),
        )
    return table


def _memory_table(memory: Sequence[MemoryGrowth], events: int) -> Table:
    table = Table(title="Weir's peak RssAnon in MB")
    table.add_column("job", no_wrap=True)
    for records in (events, 10 * events):
        table.add_column(f"{records:,} events", justify="right")
    for growth in memory:
        table.add_row(growth.name, *(_megabytes(run.peak_bytes) for run in (growth.base, growth.tenfold)))
    return table


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):,.0f}"


if __name__ == "__main__":
    (file,) = map(Path, sys.argv[1:])
    report = json.loads(file.read_text(encoding="utf-8"))
    show(report, Console(highlight=False))
    drawn = chart([Workload.from_json(each) for each in report["workloads"]], TITLES)
    file.with_name(CHART).write_text(drawn, encoding="utf-8")
