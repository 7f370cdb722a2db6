"""The bytes that a real Kafka Streams wrote, and the records that it read.

Both are from tests/integration/java/PrintChangelogs.java.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.pipelines.migrate.topics_in_memory import Cluster

FILE = Path(__file__).with_name("kafka_streams_changelogs.txt")
RECORDS = (
    ("users", "ann", "nz", 1000),
    ("users", "bob", "at", 1500),
    ("orders", "o1", "ann", 2000),
    ("orders", "o2", "bob", 2100),
    ("orders", "o3", "eve", 2200),
    ("tiers", "ann", "gold", 1000),
    ("tiers", "ann", "silver", 9000),
    ("tiers", "ann", "bronze", 5000),
    ("tiers", "bob", "gold", 2000),
    ("tiers", "bob", None, 8000),
    ("clicks", "ann", "home", 1000),
    ("clicks", "ann", "cart", 4000),
    ("clicks", "bob", "home", 6000),
    ("buys", "ann", "hat", 3000),
    ("clicks", "ann", "pay", 11500),
    ("clicks", "bob", "cart", 8000),
    ("orders", "o2", "ann", 3000),
    ("orders", "o1", None, 3500),
    ("users", "bob", None, 4000),
    ("buys", "bob", "tie", 12000),
)


class Written(NamedTuple):
    """One record of a changelog."""

    store: str
    timestamp_ms: int
    """0 for the time of the writing."""
    key: bytes
    value: bytes | None
    headers: str


def changelogs() -> list[Written]:
    found = []
    for line in FILE.read_text().splitlines():
        if line[0] in "#>":
            continue
        store, time, key, value, *headers = line.split(" ")
        found.append(
            Written(
                store,
                0 if time == "null" else int(time),
                bytes.fromhex(key),
                None if value == "-" else bytes.fromhex(value),
                " ".join(headers),
            )
        )
    return found


def cluster(id: str = "app") -> Cluster:
    """The topics of the stopped application, which has read everything."""
    found = Cluster()
    for topic, key, value, time in RECORDS:
        found.rows.setdefault((topic, 0), []).append((key.encode(), None if value is None else value.encode(), time))
    found.offsets = {partition: len(rows) for partition, rows in found.rows.items()}
    for each in changelogs():
        rows = found.rows.setdefault((f"{id}-{each.store}-changelog", 0), [])
        rows.append((each.key, each.value, each.timestamp_ms))
    for what in ("registration", "response"):
        found.rows[f"{id}-buyers-subscription-{what}-topic", 0] = []
    return found
