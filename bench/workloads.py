"""The runs: each job at each event size on all sides in turn, and Weir over ten times the data.

Every run starts in its own processes, from empty state, over the same topic, and must end with the result that
``bench.truth`` has computed. Printing belongs to ``bench.report``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from bench import cluster
from bench.apps import OUTPUT
from bench.events import PARTITIONS, SMALL_BYTES, beside, event_frame, make_events
from bench.jobs import BESIDE, OF_PEERS, SLIDING_JOB, TEXT_JOB, TOPIC_JOB, Planned
from bench.kept import Kept
from bench.peers.peer import Peer
from bench.peers.runs import read_output, run_peer
from bench.processes import BenchError, Measured, measure, run_json
from bench.truth import ADVANCES_MS, SUMMED_BY, closed_by_ms, truth
from bench.workload import RAW, WEIR, Workload
from weir.infra.spark.session import WORKER_VARIABLES
from weir.state.commit.tables import read_table

MEMORY_JOBS = ("sum_per_key", "window_final")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class MemoryGrowth:
    """Weir's peak memory with some data and with ten times as much."""

    name: str
    base: Measured
    tenfold: Measured


class Bench:
    """Makes the runs in ``folder``, against the broker whose client properties are in ``client``."""

    def __init__(self, folder: Path, client: Path, say: Say) -> None:
        self._folder, self._client, self._say = folder, client, say

    def workloads(self, plan: Sequence[Planned], runs: int, peers: Sequence[Peer], kept: Kept) -> Iterator[Workload]:
        """Run what is planned ``runs`` times on each side, Weir, reading alone and ``peers`` in turn, except what is
        ``kept`` from a bench that was ended.

        A peer that fails, or whose result is wrong, is left out of that job and size.

        Raises:
            BenchError: A run of Weir failed, or its result is wrong.
        """
        made = set[str]()
        for work in plan:
            workload = kept.find(work.job, work.event_bytes)
            if workload is not None:
                self._say(f"{work.job}, {work.event_bytes} bytes: measured before")
            else:
                self._make_topics(work, made)
                workload = self._workload(work, 1 if work.is_once else runs, peers)
                kept.keep(workload)
            yield workload

    def memory_growth(self, events: int) -> Iterator[MemoryGrowth]:
        """Each of ``MEMORY_JOBS`` with ``events`` events, and with ten times as many."""
        self._make_events("events_base", events, SMALL_BYTES)
        self._make_events("events_tenfold", 10 * events, SMALL_BYTES)
        for job in MEMORY_JOBS:
            base = self._weir(f"{job}_base", events)[0]
            tenfold = self._weir(f"{job}_tenfold", 10 * events)[0]
            yield MemoryGrowth(name=job, base=base, tenfold=tenfold)

    def small_epochs_ms(self) -> tuple[float, float]:
        """The median times of an epoch with due punctuations and no input, and of one with 1,000 records; needs the
        topic of ``memory_growth``, and adds to it."""
        with self._fresh_folder() as folder:
            reference = "bench.apps:sum_per_key_base"
            arguments = [reference, str(folder), str(self._client)]
            measure([sys.executable, "-m", "bench.weir_side", *arguments], "Weir's sum_per_key")
            result, _ = run_json([sys.executable, "-m", "bench.idle_epoch", *arguments], "Weir's idle epochs")
        return float(result["median_ms"]), float(result["records_ms"])

    @contextmanager
    def _fresh_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="run-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def _make_events(self, topic: str, events: int, event_bytes: int, keys: int | None = None) -> None:
        self._say(f"making {events:,} events of {event_bytes} bytes")
        make_events(self._client, topic, events, event_bytes, partial(event_frame, keys=keys))

    def _make_topics(self, work: Planned, made: set[str]) -> None:
        """Make the topics of a job that are not ``made``, and add them."""
        if work.topic not in made:
            self._make_events(work.topic, work.events, work.event_bytes, work.keys)
        made.add(work.topic)
        if work.job in BESIDE:
            other = BESIDE[work.job]
            make_events(self._client, beside(work.topic, other.name), other.records(work.events), 0, other.frame)

    def _workload(self, work: Planned, runs: int, peers: Sequence[Peer]) -> Workload:
        job, event_bytes, topic, events = work.job, work.event_bytes, work.topic, work.events
        of_peers = OF_PEERS.get(job, job)
        sides = {peer.name: peer for peer in peers if of_peers in peer.jobs}
        left_out = dict[str, str]()
        found: dict[str, list[Measured]] = {side: [] for side in (WEIR, RAW, *sides)}
        exact = truth(job, events)
        records = events + (BESIDE[job].records(events) if job in BESIDE else 0)
        over = topic.removeprefix("events_")
        for run in range(1, runs + 1):
            self._say(f"{job}, {event_bytes} bytes, run {run} of {runs}")
            measured, result = self._weir(f"{job}_{over}", records)
            require_equal(_keyed(result, job), exact, f"Weir's {job}")
            found[WEIR].append(measured)
            found[RAW].append(self._raw(topic, events))
            for name in [name for name in sides if name not in left_out]:
                peer, output = sides[name], f"{job}_{over}_{name}_{run}"
                try:
                    closed = closed_by_ms(events)
                    measured = run_peer(peer, of_peers, self._client, topic, output, self._folder, closed)
                    found[name].append(self._complete(measured, records, peer.title))
                    result = read_output(cluster.properties(self._client), output)
                    require_equal(result, exact, f"{peer.title}: {job}")
                except BenchError as error:
                    self._say(f"{error}; it is left out")
                    left_out[name] = str(error)
        return Workload(
            name=job,
            event_bytes=event_bytes,
            events=events,
            runs={side: measured for side, measured in found.items() if side not in left_out},
            not_run=left_out,
        )

    def _weir(self, application: str, events: int) -> tuple[Measured, pl.DataFrame]:
        """Run one of ``bench.apps`` from scratch; returns the measurement and the table ``totals`` it produced."""
        with self._fresh_folder() as folder:
            command = [sys.executable, "-m", "bench.weir_side", f"bench.apps:{application}", str(folder)]
            if not application.startswith(TOPIC_JOB):
                measured = measure([*command, str(self._client)], f"Weir's {application}")
                (table,) = (folder / "warehouse").glob("*/totals")
                return self._complete(measured, events, "Weir"), read_table(table)
            output = f"{application}-{folder.name}"
            cluster.admin(self._client).create_topic(output, PARTITIONS)
            named = ["env", f"{OUTPUT}={output}", *command]
            measured = measure([*named, str(self._client)], f"Weir's {application}")
            totals = read_output(cluster.properties(self._client), output).rename({"key": "user"})
            return self._complete(measured, events, "Weir"), totals

    def _raw(self, topic: str, events: int) -> Measured:
        variables = [f"{name}={value}" for name, value in WORKER_VARIABLES.items()]
        command = ["env", *variables, sys.executable, "-m", "bench.raw_read", str(self._client), topic]
        return self._complete(measure(command, f"reading {topic}"), events, "reading alone")

    def _complete(self, measured: Measured, events: int, side: str) -> Measured:
        if measured.records != events:
            raise BenchError(f"{side} processed {measured.records:,} records instead of {events:,}")
        self._say(f"  {side}: {measured.per_s / 1000:,.0f} k/s, at most {measured.peak_bytes >> 20:,} MB")
        return measured


def require_equal(result: pl.DataFrame, exact: pl.DataFrame, name: str) -> None:
    """Compare a result with the exact one, both with the columns ``key`` and ``total``, in any order.

    Raises:
        BenchError: They differ; the text counts the rows that do.
    """
    mine, other = result.select("key", "total").sort("key"), exact.select("key", "total").sort("key")
    if other.is_empty() or not mine.equals(other):
        wrong = mine.join(other, on=["key", "total"], how="anti").height
        raise BenchError(
            f"{name}: the result is wrong: {mine.height:,} rows instead of {other.height:,}, of which {wrong:,} are "
            "not in the exact one"
        )


def _keyed(result: pl.DataFrame, job: str) -> pl.DataFrame:
    """A table of Weir in the form of a peer's output: ``key`` and ``total``."""
    key = pl.col(SUMMED_BY.get(job, "user"))
    if job in (*ADVANCES_MS, SLIDING_JOB, TEXT_JOB):
        key = pl.concat_str("user", pl.lit("@"), pl.col("window_start").dt.epoch("ms"))
    if job == "session_sum":
        bounds = (pl.col(name).dt.epoch("ms") for name in ("window_start", "window_end"))
        key = pl.concat_str("user", *(part for bound in bounds for part in (pl.lit("@"), bound)))
    total = "value" if job == "python_sum" else "total"
    return result.select(key=key, total=pl.col(total).cast(pl.String if job == TEXT_JOB else pl.Int64))
