"""The jobs of the bench, and what each reads: how many events of which kind, and what they are joined with.

The jobs themselves are those of ``bench.apps``, their exact results those of ``bench.truth``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import polars as pl

from bench.events import LARGE_BYTES, PAGES, ROWS, SMALL_BYTES, click_frame, page_frame, user_frame

TOPIC_JOB = "sum_to_topic"
TEXT_JOB = "joined_text"
SLIDING_JOB = "sliding_sum"
DISTINCT_JOB = "distinct_keys"
JOBS = ("sum_per_key", "window_final", "repartition_sum", TOPIC_JOB)
"""Measured with all events."""
LARGE_JOBS = ("sum_per_key", "window_final")
"""Those of ``JOBS`` that are also measured with large events."""
OTHER_JOBS = (
    "hopping_final",
    "hopping_60_final",
    "session_sum",
    SLIDING_JOB,
    "stream_join_sum",
    "table_join_sum",
    "foreign_key_join",
    "python_sum",
    TEXT_JOB,
    DISTINCT_JOB,
)
"""Measured with a part of the events."""
FEWEST, FEWEST_CLOSING = 150_000, 250_000
"""The latter are so many that the first hopping windows are closed."""
OF_PEERS: Mapping[str, str] = {TOPIC_JOB: "sum_per_key", DISTINCT_JOB: "sum_per_key"}
"""The jobs that peers have under another name: they always write a topic, over any keys."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A job over the events of one topic."""

    job: str
    topic: str
    """Of the job in ``bench.apps``, the name ends with what follows the prefix ``events_``."""
    events: int
    event_bytes: int = SMALL_BYTES
    keys: int | None = None
    """Those of ``bench.events.event_fields``."""
    is_once: bool = False
    """Whether one run is enough: it takes minutes."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What the events of a job are joined with."""

    name: str
    """Of the topic, for ``bench.events.beside``."""
    frame: Callable[[int, int, int], pl.DataFrame]
    records: Callable[[int], int]
    """How many, by the number of events."""


BESIDE: Mapping[str, Beside] = {
    "table_join_sum": Beside(name="users", frame=user_frame, records=lambda events: ROWS),
    "stream_join_sum": Beside(name="clicks", frame=click_frame, records=lambda events: events // 2),
    "foreign_key_join": Beside(name="pages", frame=page_frame, records=lambda events: PAGES),
}


def planned(
    jobs: Collection[str], events: int, distinct: int, sizes: Collection[int], *, is_alone: bool = False
) -> list[Planned]:
    """What is measured of ``jobs``: ``JOBS`` over ``events`` events, of each of ``sizes`` that they are measured with,
    ``distinct_keys`` over as many as it has keys, ``distinct``, others over a part of ``events``, since peers would
    take minutes; over all of them if Weir ``is_alone``."""
    sized = [(job, SMALL_BYTES) for job in JOBS] + [(job, LARGE_BYTES) for job in LARGE_JOBS]
    work = [
        Planned(job=job, topic=f"events_{size}", events=events, event_bytes=size)
        for job, size in sized
        if job in jobs and size in sizes
    ]
    return work + [_other(job, events, distinct, is_alone=is_alone) for job in OTHER_JOBS if job in jobs]


def _other(job: str, events: int, distinct: int, *, is_alone: bool) -> Planned:
    def part(share: int, least: int = FEWEST) -> int:
        return max(events // (1 if is_alone else share), least)

    match job:
        case "hopping_final" | "hopping_60_final" | "joined_text":
            few = part(12, FEWEST_CLOSING)
            return Planned(job=job, topic="events_few", events=few, is_once=job == "hopping_60_final")
        case "python_sum":
            return Planned(job=job, topic="events_called", events=part(3))
        case "distinct_keys":
            return Planned(job=job, topic="events_distinct", events=distinct, keys=distinct, is_once=True)
        case "table_join_sum":
            return Planned(job=job, topic="events_wide", events=part(8), keys=ROWS)
        case "foreign_key_join":
            return Planned(job=job, topic="events_orders", events=part(6), keys=ROWS)
    return Planned(job=job, topic="events_part", events=part(6))
