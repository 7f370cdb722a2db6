"""The runs: each job at each event size on both sides in turn, and Weir over ten times the data.

Every run starts in its own processes, from empty state, over the same topic; the results of the two sides must be
equal, and those of running sums must also be the exact sums of the events. Printing them belongs to ``bench.report``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from bench import cluster
from bench.apps import OUTPUT
from bench.events import KEYS, LARGE_BYTES, PARTITIONS, SMALL_BYTES, make_events, totals_per, user_frame, users_of
from bench.kafka_streams import KafkaStreamsPeer, read_output
from bench.processes import BenchError, Measured, measure, run_json
from weir.state.commit.tables import read_table

TOPIC_JOB = "sum_to_topic"
"""Kafka Streams always writes a topic: there it is ``sum_per_key``."""
JOBS = ("sum_per_key", "window_final", "repartition_sum", TOPIC_JOB)
OTHER_JOBS = ("hopping_final", "session_sum", "table_join_sum")
"""Measured with an eighth of the events, at the smaller size."""
MEMORY_JOBS = ("sum_per_key", "window_final")
JOIN_JOB = "table_join_sum"
SUMMED_BY = {"sum_per_key": "user", TOPIC_JOB: "user", "repartition_sum": "page"}
"""The jobs that are also compared with exact sums, each with the field of the events that it sums by."""
FEW = "events_few"
SIZES = (SMALL_BYTES, LARGE_BYTES)
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One job at one event size: the runs of both sides, in the order they were made."""

    name: str
    event_bytes: int
    weir: Sequence[Measured]
    kafka_streams: Sequence[Measured]
    """Empty if the peer cannot run."""

    @property
    def weir_per_s(self) -> float:
        return statistics.median(run.per_s for run in self.weir)

    @property
    def kafka_streams_per_s(self) -> float | None:
        return statistics.median(run.per_s for run in self.kafka_streams) if self.kafka_streams else None

    @property
    def ratio(self) -> float | None:
        """The median ratio of Weir's rate to that of the Kafka Streams run beside it: a machine that slows down for a
        minute slows both."""
        pairs = zip(self.weir, self.kafka_streams, strict=True) if self.kafka_streams else ()
        return statistics.median(ratios) if (ratios := [mine.per_s / peer.per_s for mine, peer in pairs]) else None


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

    def workloads(
        self, jobs: Collection[str], events: int, runs: int, peer: KafkaStreamsPeer | None
    ) -> Iterator[Workload]:
        """Run ``jobs`` (``JOBS`` at all event sizes) ``runs`` times on each side, Weir and the peer in turn.

        Raises:
            BenchError: A run failed, or the results differ.
        """
        for event_bytes in SIZES if set(jobs).intersection(JOBS) else ():
            self._make_events(f"events_{event_bytes}", events, event_bytes)
            for job in [job for job in JOBS if job in jobs]:
                yield self._workload(job, event_bytes, f"events_{event_bytes}", events, runs, peer)
        if others := [job for job in OTHER_JOBS if job in jobs]:
            self._make_events(FEW, events // 8, SMALL_BYTES)
            make_events(self._client, users_of(FEW), KEYS, 0, user_frame)
            for job in others:
                yield self._workload(job, SMALL_BYTES, FEW, events // 8, runs, peer)

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

    def _make_events(self, topic: str, events: int, event_bytes: int) -> None:
        self._say(f"making {events:,} events of {event_bytes} bytes")
        make_events(self._client, topic, events, event_bytes)

    def _workload(
        self, job: str, event_bytes: int, topic: str, events: int, runs: int, peer: KafkaStreamsPeer | None
    ) -> Workload:
        weir, kafka_streams = [], []
        over = topic.removeprefix("events_")
        exact = totals_per(SUMMED_BY[job], events) if job in SUMMED_BY else None
        events += KEYS if job == JOIN_JOB else 0
        for run in range(1, runs + 1):
            self._say(f"{job}, {event_bytes} bytes, run {run} of {runs}")
            measured, result = self._weir(f"{job}_{over}", events)
            weir.append(measured)
            if exact is not None:
                _require_equal(result, exact, job, "the exact result")
            if peer is not None:
                output = f"{job}_{over}_{run}"
                of_peer = "sum_per_key" if job == TOPIC_JOB else job
                measured = peer.run(of_peer, self._client, topic, output)
                kafka_streams.append(self._complete(measured, events, "Kafka Streams"))
                _require_equal(result, read_output(cluster.properties(self._client), output), job, "Kafka Streams")
        return Workload(name=job, event_bytes=event_bytes, weir=weir, kafka_streams=kafka_streams)

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

    def _complete(self, measured: Measured, events: int, side: str) -> Measured:
        if measured.records != events:
            raise BenchError(f"{side} processed {measured.records:,} records instead of {events:,}")
        self._say(f"  {side}: {measured.per_s / 1000:,.0f} k/s, at most {measured.peak_bytes >> 20:,} MB")
        return measured


def _require_equal(weir: pl.DataFrame, other: pl.DataFrame, job: str, source: str) -> None:
    """Compare the final table with one from ``source``: one row per key, or per key and window, with its total."""
    key = pl.col(SUMMED_BY.get(job, "user"))
    if job in ("window_final", "hopping_final"):
        key = pl.concat_str("user", pl.lit("@"), pl.col("window_start").dt.epoch("ms"))
    if job == "session_sum":
        bounds = (pl.col(name).dt.epoch("ms") for name in ("window_start", "window_end"))
        key = pl.concat_str("user", *(part for bound in bounds for part in (pl.lit("@"), bound)))
    mine = weir.select(key=key, total=pl.col("total").cast(pl.Int64)).sort("key")
    if mine.is_empty() or not mine.equals(other.sort("key")):
        different = mine.join(other, on=["key", "total"], how="anti").height
        raise BenchError(
            f"{job}: the results differ: Weir has {mine.height:,} rows, {source} {other.height:,}, "
            f"and {different:,} of Weir's are not among the latter"
        )
