"""Makes the benchmark's input: JSON events of a given size in a topic with four partitions.

Event ``i`` has the timestamp ``START_MS + i // 10``, so four million events are 400 s of event time, in order. The same
numbers always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from confluent_kafka import Producer

from bench import cluster
from bench.processes import BenchError

START_MS = 1_790_000_000_000
KEYS = 50_000
ROWS = 1_000_000
"""The keys of the table that events are joined with, and of those events."""
PAGES = 877
PARTITIONS = 4
SMALL_BYTES, LARGE_BYTES = 68, 400
BATCH = 50_000
_PRIME = 2_654_435_761
"""Greater than any number of keys, so that its multiples meet every key once."""
_CLICKS = 1 << 40
"""Where the lots of clicks begin, far from those of events."""
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def event_frame(start: int, stop: int, event_bytes: int, keys: int | None = None) -> pl.DataFrame:
    """Events ``[start, stop)`` as ``key``, ``value`` (JSON of exactly ``event_bytes``, where there are more than a
    million ``keys`` a byte or two more) and ``timestamp``; ``keys`` are those of ``event_fields``."""
    events = event_fields(start, stop, keys)
    session = pl.Series(_lots(start, stop)).cast(pl.String).str.zfill(20)
    wide = events.with_columns(
        session=session,
        agent=pl.lit(AGENT),
        position=pl.struct(latitude=pl.col("amount") / 4, longitude=pl.col("amount") / 8),
        tags=pl.concat_list(pl.lit(session.str.head(4)), pl.lit(session.str.tail(4))),
        note=pl.lit(""),
    )
    if event_bytes > SMALL_BYTES:
        short = event_bytes - wide.select(pl.struct(pl.all()).struct.json_encode().str.len_bytes()).to_series()
        events = wide.with_columns(note=pl.lit("x" * event_bytes).str.slice(0, short))
    return events.select(
        key="user",
        value=pl.struct(pl.all()).struct.json_encode(),
        timestamp="ts",
    )


def totals_per(field: str, events: int, keys: int | None = None) -> pl.DataFrame:
    """The exact sums of ``amount`` over the first ``events`` events, as ``key: String, total: Int64``, unordered;
    ``keys`` are those of ``event_fields``."""
    parts = [
        event_fields(start, min(start + BATCH, events), keys).group_by(key=field).agg(total=pl.sum("amount"))
        for start in range(0, events, BATCH)
    ]
    return pl.concat(parts).group_by("key").agg(pl.sum("total"))


def event_fields(start: int, stop: int, keys: int | None = None) -> pl.DataFrame:
    """The fields that events of every size have: ``user``, ``amount``, ``page`` and ``ts``.

    Users are drawn by lot from ``KEYS``; with ``keys`` each of that many comes once, in no order, before any comes a
    second time.
    """
    at = np.arange(start, stop)
    users = _lots(start, stop) % KEYS if keys is None else at * _PRIME % keys
    return pl.DataFrame(
        {"user": _users(users), "amount": 10 + at % 90, "page": _pages(at % PAGES), "ts": START_MS + at // 10}
    )


def _users(numbers: npt.NDArray[Any]) -> pl.Series:
    return "u" + pl.Series(numbers).cast(pl.String).str.zfill(6)


def _pages(numbers: npt.NDArray[Any]) -> pl.Series:
    return "/item/" + pl.Series(100 + numbers).cast(pl.String)


def _lots(start: int, stop: int) -> npt.NDArray[np.uint64]:
    """A multiplicative hash of each event's number; it wraps."""
    lots = np.arange(start, stop).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return lots ^ (lots >> np.uint64(32))


def beside(topic: str, name: str) -> str:
    """The topic that the events of ``topic`` are joined with: its ``users``, ``clicks`` or ``pages``."""
    return f"{topic}_{name}"


def user_factors(start: int, stop: int) -> pl.DataFrame:
    """The users ``[start, stop)`` as ``key``, each with its ``factor``."""
    at = np.arange(start, stop)
    return pl.DataFrame({"key": _users(at), "factor": 1 + at % 7})


def user_frame(start: int, stop: int, event_bytes: int) -> pl.DataFrame:
    """Users ``[start, stop)`` in the form of ``event_frame``; they are older than any event."""
    return _rows(user_factors(start, stop), "factor")


def page_prices(start: int, stop: int) -> pl.DataFrame:
    """The pages ``[start, stop)`` of ``PAGES`` as ``key``, each with its ``price``."""
    at = np.arange(start, stop)
    return pl.DataFrame({"key": _pages(at), "price": 1 + at % 13})


def page_frame(start: int, stop: int, event_bytes: int) -> pl.DataFrame:
    """Pages ``[start, stop)`` in the form of ``event_frame``; they are older than any event."""
    return _rows(page_prices(start, stop), "price")


def click_fields(start: int, stop: int) -> pl.DataFrame:
    """The clicks ``[start, stop)``: ``user``, by lot from ``KEYS``, ``weight`` and ``ts``. There is one in the time of
    two events."""
    at = np.arange(start, stop)
    users = _lots(_CLICKS + start, _CLICKS + stop) % KEYS
    return pl.DataFrame({"user": _users(users), "weight": 1 + at % 7, "ts": START_MS + at // 5})


def click_frame(start: int, stop: int, event_bytes: int) -> pl.DataFrame:
    """Clicks ``[start, stop)`` in the form of ``event_frame``."""
    return click_fields(start, stop).select(key="user", value=pl.struct("weight").struct.json_encode(), timestamp="ts")


def _rows(fields: pl.DataFrame, value: str) -> pl.DataFrame:
    return fields.select("key", value=pl.struct(value).struct.json_encode(), timestamp=pl.lit(START_MS - 1))


def make_events(
    client: Path,
    topic: str,
    events: int,
    event_bytes: int,
    frame: Callable[[int, int, int], pl.DataFrame] = event_frame,
) -> None:
    """Create the topic and fill it with the first ``events`` events, as ``frame`` makes them. ``client`` is the file of
    client properties.

    Raises:
        BenchError: The topic exists, or does not hold all events afterwards.
    """
    admin = cluster.admin(client)
    if not admin.create_topic(topic, PARTITIONS, {"retention.ms": "-1"}):
        raise BenchError(f"topic {topic!r} already exists; give the bench another folder with --dir")
    produce(client, topic, events, event_bytes, frame)
    found = sum(admin.end_offsets([(topic, partition) for partition in range(PARTITIONS)]).values())
    if found != events:
        raise BenchError(f"topic {topic!r} holds {found} records after {events} were sent; run the bench again")


def produce(
    client: Path, topic: str, events: int, event_bytes: int, frame: Callable[[int, int, int], pl.DataFrame]
) -> None:
    """Send the first ``events`` events, as ``frame`` makes them, to a topic that is there."""
    settings: dict[str, Any] = {
        **cluster.properties(client),
        "partitioner": "murmur2_random",  # Kafka's own default; librdkafka's differs
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 50,
        "batch.num.messages": 10_000,
        "queue.buffering.max.messages": 3 * BATCH,
        "queue.buffering.max.kbytes": 1 << 20,
        "log_level": 3,
    }
    producer = Producer(settings)
    for start in range(0, events, BATCH):
        for key, value, timestamp in frame(start, min(start + BATCH, events), event_bytes).iter_rows():
            producer.produce(topic, value, key, timestamp=timestamp)
        while len(producer) > BATCH:
            producer.poll(0.05)
    producer.flush()
    producer.close()
