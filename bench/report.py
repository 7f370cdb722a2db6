"""What the bench prints: a table for people, or one JSON object for programs; progress goes to stderr."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import cluster
from bench.events import KEYS, PARTITIONS
from bench.kafka_streams import KafkaStreamsPeer
from bench.processes import BenchError
from bench.restore import measure_restores
from bench.workloads import JOBS, OTHER_JOBS, Bench, MemoryGrowth, Workload

EVENTS, QUICK_EVENTS = 4_000_000, 2_000_000
RUNS, QUICK_RUNS = 3, 1
MEMORY_EVENTS, QUICK_MEMORY_EVENTS = 2_000_000, 500_000


def main(
    *,
    quick: bool = False,
    as_json: bool = False,
    jobs: Collection[str] = (),
    weir_alone: bool = False,
    dir: Path | None = None,
) -> None:
    """Run the bench and print its results; leaves nothing behind.

    Args:
        quick: One run of each on two million events, instead of three on four million.
        as_json: Print one object with ``workloads``, ``memory``, times of epochs and ``restores`` instead of tables.
        jobs: Run only these, without memory, idle epochs and restores; everything by default.
        weir_alone: Leave Kafka Streams out, for example to compare two versions of Weir.
        dir: The folder whose subfolder ``bench`` holds broker data and state during the run; ``.weir`` by default.

    Raises:
        BenchError: A run failed, or the two sides' results differ.
    """
    if unknown := set(jobs).difference(JOBS, OTHER_JOBS):
        raise BenchError(f"there is no job {sorted(unknown)[0]}; the jobs are {', '.join((*JOBS, *OTHER_JOBS))}")
    events, runs, memory_events = (
        (QUICK_EVENTS, QUICK_RUNS, QUICK_MEMORY_EVENTS) if quick else (EVENTS, RUNS, MEMORY_EVENTS)
    )
    progress = Console(stderr=True, highlight=False)
    folder = Path(dir or ".weir").absolute() / "bench"
    shutil.rmtree(folder, ignore_errors=True)
    classes = folder / "classes"
    classes.mkdir(parents=True)
    try:
        peer = None
        if not weir_alone:
            try:
                peer = KafkaStreamsPeer(classes)
            except BenchError as error:
                progress.print(f"{error}; measuring Weir alone", markup=False, soft_wrap=True)
        with cluster.embedded(folder / "kafka") as client:
            bench = Bench(folder, client, lambda text: progress.print(text, markup=False))
            workloads = list(bench.workloads(jobs or (*JOBS, *OTHER_JOBS), events, runs, peer))
            if not jobs:
                memory = list(bench.memory_growth(memory_events))
                idle_epoch_ms, small_epoch_ms = bench.small_epochs_ms()
                restores = measure_restores(folder, client, peer, quick=quick, say=progress.print)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        found: dict[str, Any] = {"workloads": [_as_json(workload) for workload in workloads]}
        if not jobs:
            found |= {
                "memory": [_growth_as_json(growth) for growth in memory],
                "idle_epoch_ms": idle_epoch_ms,
                "small_epoch_ms": small_epoch_ms,
                "restores": restores.as_json(),
            }
        print(json.dumps(found))
    else:
        console = Console(highlight=False)
        console.print(_speed_table(workloads, events))
        if not jobs:
            console.print(_memory_table(memory, memory_events))
            console.print(
                f"An epoch with due punctuations and no input: {idle_epoch_ms:.1f} ms (median); one with 1,000 "
                f"records: {small_epoch_ms:.1f} ms."
            )
            console.print("\n".join(restores.lines()), soft_wrap=True)
        console.print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")


def _as_json(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "event_bytes": workload.event_bytes,
        "weir_per_s": workload.weir_per_s,
        "kafka_streams_per_s": workload.kafka_streams_per_s,
        "ratio": workload.ratio,
        "runs": {
            "weir_per_s": [run.per_s for run in workload.weir],
            "kafka_streams_per_s": [run.per_s for run in workload.kafka_streams],
        },
    }


def _growth_as_json(growth: MemoryGrowth) -> dict[str, Any]:
    return {
        "name": growth.name,
        "records": [growth.base.records, growth.tenfold.records],
        "peak_bytes": [growth.base.peak_bytes, growth.tenfold.peak_bytes],
    }


def _speed_table(workloads: Sequence[Workload], events: int) -> Table:
    runs = len(workloads[0].weir)
    table = Table(
        title=f"Thousand records per second: {events:,} events, {KEYS:,} keys, {PARTITIONS} partitions, "
        f"one commit per second, median of {runs} runs, "
        f"and of the ratios of runs side by side; memory is the peak of RssAnon over all processes of a run"
    )
    table.add_column("job", no_wrap=True)
    for column in ("event bytes", "Weir", "Kafka Streams", "ratio", "Weir MB", "Kafka Streams MB"):
        table.add_column(column, justify="right")
    for work in workloads:
        peer = work.kafka_streams_per_s
        table.add_row(
            work.name,
            str(work.event_bytes),
            f"{work.weir_per_s / 1000:,.0f}",
            f"{peer / 1000:,.0f}" if peer else "-",
            f"{work.ratio:.2f}" if work.ratio else "-",
            _megabytes(max(run.peak_bytes for run in work.weir)),
            _megabytes(max(run.peak_bytes for run in work.kafka_streams)) if peer else "-",
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
