"""Fills the topic that the customers example reads, with made-up events: few customers have most of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import polars as pl

from weir.pipelines.examples.loading import LoadSummary, load_records
from weir.pipelines.serdes.partitioner import partition_of

TOPIC = "customer-events"
CUSTOMERS, EVENTS, PARTITIONS = 1_000, 200_000, 2
FIRST_MS, EVERY_MS = 1_767_258_000_000, 10
"""From 2026-01-01T09:00:00Z on, one hundred events a second."""
KINDS = ("view", "search", "cart", "order")


def customer_events(partitions: int, count: int = EVENTS) -> pl.DataFrame:
    """The first events, ordered by time; columns as for ``load_records``.

    The key is the customer (``customer-0001``), the value JSON with ``kind`` and ``cents``. The customer of rank n has
    events in proportion to 1/n.
    """
    chance = np.random.default_rng(1)
    weights = 1 / np.arange(1, CUSTOMERS + 1)
    customers = chance.choice(CUSTOMERS, size=EVENTS, p=weights / weights.sum())[:count]
    kinds, cents = chance.integers(len(KINDS), size=EVENTS)[:count], chance.integers(1, 20_000, size=EVENTS)[:count]
    values = pl.DataFrame({"kind": pl.Series(KINDS)[kinds], "cents": cents})
    events = pl.DataFrame(
        {
            "key": "customer-" + pl.Series(customers + 1).cast(pl.String).str.zfill(4),
            "value": values.select(pl.struct(pl.all()).struct.json_encode()).to_series(),
            "timestamp_ms": FIRST_MS + EVERY_MS * np.arange(len(customers)),
        }
    )
    return events.with_columns(partition=partition_of(events, ["key"], partitions)).with_columns(
        offset=pl.int_range(pl.len()).over("partition")
    )


def load(
    bootstrap_servers: str,
    *,
    client_properties: Mapping[str, str] | None = None,
    count: int = EVENTS,
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadSummary:
    """Fill the topic so that it holds every event exactly once, in order; raises what ``load_records`` raises."""
    return load_records(
        bootstrap_servers,
        TOPIC,
        PARTITIONS,
        partial(customer_events, count=count),
        client_properties=client_properties,
        on_progress=on_progress,
    )
