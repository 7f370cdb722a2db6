"""Applications that the runs of tests refer to."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import Any

import polars as pl

from tests.faults.applications import build
from weir import Application, Count, Materialized, StreamsBuilder, String

_builder = StreamsBuilder()
_builder.stream("nowhere", key=String("user"), value=String("page")).to_delta("pages")
reads_nowhere = Application("reads-nowhere", _builder)

_builder = StreamsBuilder()
_builder.stream("visits", key=String("user"), value=String("page")).group_by_key().agg("visits", n=Count()).to_delta(
    "totals"
)
visits = Application("visits", _builder)


def _faulty(name: str) -> Application:
    return build(timedelta(milliseconds=100), topic=f"events-{name}")


restored, read, stopped, overtaken, reset, flipped, killed = map(
    _faulty, ("restored", "read", "stopped", "overtaken", "reset", "flipped", "killed")
)
"""The application that fault tests kill, each instance over its own topic, so that all can use one broker."""


def _counting(topic: str = "clicks-unlogged", **options: Any) -> Application:
    builder = StreamsBuilder()
    builder.stream(topic, key=String("user"), value=String("page")).group_by_key().agg(
        Materialized("clicks", **options), n=Count()
    ).to_delta("totals")
    return Application("unlogged", builder, commit_interval=timedelta(milliseconds=100))


computed_again, begins_empty = _counting(logging=False), _counting(logging=False, on_loss="empty")
"""Counts in a store without a changelog, which is computed again if it is lost, or begins empty."""
in_memory, in_memory_unlogged = (
    _counting("clicks-in-memory", in_memory=True, logging=logging) for logging in (True, False)
)
"""The same in memory, with a changelog and without one."""


def _distant() -> Application:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks-distant", key=String("user"), value=String("page"))
    clicks.group_by_key().agg("users", n=Count()).to_delta("by_user")
    clicks.group_by("page").agg("pages", n=Count()).to_delta("by_page")
    return Application("distant", builder, commit_interval=timedelta(milliseconds=100))


distant = _distant()
"""Counts before and after a repartition, for a warehouse on an object store."""


def _is_kept(user: str, order: str) -> bool:
    if order == "leave":
        sys.exit("gone")
    if order == "interrupt":
        raise KeyboardInterrupt
    return 1 // (len(order) - 1) >= 0


def _with_headers() -> Application:
    builder = StreamsBuilder()
    orders = builder.stream("with-headers", key=String("user"), value=String("order"), headers=True)
    kept = orders.filter(_is_kept)
    kept.select_key(user=pl.col("user").str.slice(0, 1)).repartition("by-letter").to(
        "with-headers-out", key=String("user")
    )
    return Application("with-headers", builder, on_processing_error="dead_letter")


with_headers = _with_headers()
"""Moves records with their headers from a topic to another, and puts those aside whose order is one letter, or which
ask the process to end."""


def _by_pattern(*, is_named: bool = False) -> Application:
    builder = StreamsBuilder()
    visits = builder.stream(re.compile("matched-.*"), key=String("user"), value=String("page"))
    visits.to_delta("visits")
    visits.group_by_key().count("visits_of").to_delta("visits_of")
    if is_named:
        names = builder.global_table("names-of-users", key=String("user"), value=String("name"), store="names")
        visits.left_join(names, key="user").to_delta("named")
    return Application("by-pattern", builder, commit_interval=timedelta(milliseconds=100))


by_pattern = _by_pattern()
"""Counts the visits of all topics that match a pattern."""

by_pattern_named = _by_pattern(is_named=True)
"""The same, and gives them the names of their users, from a global table."""


def _grown() -> Application:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks-grown", key=String("user"), value=String("page"))
    clicks.group_by_key().agg("users", n=Count()).to_delta("by_user")
    clicks.group_by("page").agg("pages", n=Count()).to_delta("by_page")
    return Application("grown", builder, commit_interval=timedelta(milliseconds=100))


grown = _grown()
"""Counts by what the producers divide, and by what a repartition does."""
