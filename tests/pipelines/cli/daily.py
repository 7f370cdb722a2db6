"""Clicks over five days, a program that counts them by half day, and answers of commands about its backfills."""

from __future__ import annotations

import json
from datetime import timedelta

from polars import col

from tests.pipelines.cli.typed import Answer
from tests.pipelines.spark.evolving import Click
from weir import Application, Count, Json, StreamsBuilder, String, TimeWindows

HOUR_MS, HOURS = 3_600_000, 120
ROWS = [
    (b"user-%d" % (number % 4), json.dumps({"page": f"page-{number % 3}", "ms": number}).encode(), number * HOUR_MS)
    for number in range(HOURS)
]
"""One click an hour over five days."""
SECOND, THIRD, FIFTH = "1970-01-02 1970-01-03", "1970-01-03 1970-01-04", "1970-01-05 1970-01-06"
SWAP = ("--swap", "--yes")


def daily(*, is_fixed: bool = True, id: str = "clicks", has_facts: bool = True) -> Application:
    """Clicks, their counts by half day, and totals; the program that was not fixed left a page out."""
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(Click))
    stream = stream.filter(col("page") != ("" if is_fixed else "page-0"))
    if has_facts:
        stream.to_delta("facts")
        halves = TimeWindows.of_size_with_no_grace(timedelta(hours=12))
        stream.group_by_key().windowed_by(halves).agg("halves", n=Count()).to_delta("halves")
    stream.group_by_key().agg("users", n=Count()).to_delta("users")
    return Application(id, builder, commit_interval=timedelta(milliseconds=1))


def of(*days: int) -> list[int]:
    """The clicks of which those on ``days``, numbered from 0, were taken in by the fixed program."""
    return [number for number in range(HOURS) if number % 3 or number // 24 in days]


def refused(answer: Answer, text: str) -> Answer:
    assert (answer.code, text in answer.text) == (1, True), answer.text
    return answer


def succeeded(answer: Answer) -> Answer:
    assert answer.code == 0, answer.text
    return answer
