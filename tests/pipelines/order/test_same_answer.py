"""The same answer however a run is cut: random programs over random topics give what a sequential model gives.

Each random test tries the same few examples every time; ``ORDER_EXAMPLES`` sets how many others to draw instead.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings

from tests.pipelines.order.description import (
    Aggregate,
    Data,
    Merge,
    Program,
    Record,
    SelectKey,
    Sink,
    Source,
    StreamTableJoin,
    ToTable,
    Tumbling,
    Value,
)
from tests.pipelines.order.model import partition_of
from tests.pipelines.order.programs import CUTS, cases
from tests.pipelines.order.running import Cuts, of_driver, of_model, of_test_driver
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    Count,
    Json,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.spark.progress import RunSummary
from weir.state.commit.tables import read_table

EXAMPLES = int(os.environ.get("ORDER_EXAMPLES", "5"))


def tried(examples: int) -> Any:
    return settings(
        max_examples=examples,
        derandomize="ORDER_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
@tried(EXAMPLES)
@given(case=cases(), cuts=CUTS)
def test_a_run_gives_what_the_model_gives_however_it_is_cut_and_killed(case, cuts):
    program, data = case
    with tempfile.TemporaryDirectory() as folder:
        assert of_driver(program, data, cuts, Path(folder)) == of_model(program, data)


@pytest.mark.slow
@tried(EXAMPLES)
@given(case=cases(repartitions=False), cuts=CUTS)
def test_a_run_in_one_stage_gives_what_the_model_gives(case, cuts):
    program, data = case
    with tempfile.TemporaryDirectory() as folder:
        assert of_driver(program, data, cuts, Path(folder)) == of_model(program, data)


@pytest.mark.slow
@tried(EXAMPLES)
@given(case=cases(most_partitions=1))
def test_the_test_driver_gives_what_the_model_gives(case):
    program, data = case
    assert of_test_driver(program, data) == of_model(program, data)


@pytest.mark.parametrize("max_records", [pytest.param(1, marks=pytest.mark.slow), 1000])
def test_a_stream_meets_the_table_rows_that_came_before_each_record(tmp_path, max_records):
    """Both reach the join through repartitions, from topics whose partitions are at different times."""
    program = Program(
        (("clicks", 3), ("users", 2)),
        (
            *(Source("clicks"), Source("users"), SelectKey(0, "word"), SelectKey(1, "word"), ToTable(3)),
            *(StreamTableJoin(2, 4, is_left=True), Sink(5)),
        ),
    )
    data: Data = {(topic, number): [] for topic, count in program.topics for number in range(count)}
    for number in range(120):
        topic, count = program.topics[number % 2]
        key = f"k{number % 7}"
        partition = partition_of(key, count)
        at = len(data[topic, partition]) * (1 + partition) + number % 5
        data[topic, partition].append(Record(key, Value(number, "abcd"[number % 3]), 100 + at))
    assert of_driver(program, data, Cuts(max_records, None), tmp_path) == of_model(program, data)


@pytest.mark.parametrize("max_records", [pytest.param(1, marks=pytest.mark.slow), 1000])
def test_branches_that_move_twice_and_once_meet_again_in_one_order(tmp_path, max_records):
    program = Program(
        (("clicks", 3),),
        (
            *(Source("clicks"), SelectKey(0, "word"), Aggregate(1, "chain", Tumbling(10, 3), "suppressed")),
            *(SelectKey(0, "number"), Aggregate(3, "chain"), Sink(2), Sink(4)),
            *(SelectKey(0, "both"), Merge(7, 3), Aggregate(8, "chain", Tumbling(5, 0)), Sink(9)),
        ),
    )
    data: Data = {("clicks", number): [] for number in range(3)}
    for number in range(120):
        rows = data["clicks", partition_of(f"k{number % 7}", 3)]
        rows.append(Record(f"k{number % 7}", Value(number % 50, "abcd"[number % 3]), 100 + len(rows) - number % 11))
    assert of_driver(program, data, Cuts(max_records, None), tmp_path) == of_model(program, data)


CLICKS, PAGES, MINUTE_MS, GRACE_MS, LATEST_MS = 20_000, 12, 60_000, 30_000, 120_000


def clicks_of(partitions: int) -> list[list[tuple[str, int]]]:
    """Page and time of each click, out of order by up to two minutes; the partitions lie up to four minutes apart."""
    rng = np.random.default_rng(20_240_501)
    found: list[list[tuple[str, int]]] = [[] for _ in range(partitions)]
    pages, delays = rng.integers(0, PAGES, CLICKS), rng.integers(0, LATEST_MS, CLICKS)
    for number in range(CLICKS):
        rows = found[number % partitions]
        at = 1_700_000_000_000 + (number // partitions) * 400 + (number % partitions) * 80_000
        rows.append((f"page-{pages[number]}", at - int(delays[number])))
    return found


def kept_and_late(clicks: list[list[tuple[str, int]]]) -> tuple[Counter[tuple[str, int]], int]:
    """The final count of each page and minute, and how many clicks were late, by a loop over all clicks in order."""
    in_order = []
    for partition, rows in enumerate(clicks):
        merge_time = 0
        for offset, (page, ts) in enumerate(rows):
            merge_time = max(merge_time, ts)
            in_order.append((merge_time, partition, offset, page, ts))
    times, late = [0] * len(clicks), 0
    counts: Counter[tuple[str, int]] = Counter()
    for _, _, _, page, ts in sorted(in_order):
        task = partition_of(page, len(clicks))
        times[task] = max(times[task], ts)
        start = ts - ts % MINUTE_MS
        if start + MINUTE_MS + GRACE_MS <= times[task]:
            late += 1
        else:
            counts[page, start] += 1
    final = {
        (page, start): count
        for (page, start), count in counts.items()
        if start + MINUTE_MS + GRACE_MS <= times[partition_of(page, len(clicks))]
    }
    return Counter(final), late


@pytest.mark.slow
@pytest.mark.parametrize("max_records", [700, 5_000, CLICKS])
@pytest.mark.parametrize("partitions", [1, 4])
def test_final_counts_of_twenty_thousand_clicks_are_exact_whatever_the_epochs(tmp_path, partitions, max_records):
    clicks = clicks_of(partitions)
    final, late = kept_and_late(clicks)
    assert late > CLICKS // 20
    assert final.total() > CLICKS // 2
    summary, found = counted_by_a_run(tmp_path, clicks, max_records)
    assert summary.totals["late_records"] == late
    assert found == final


@dataclass(frozen=True)
class Click:
    page: str


def counted_by_a_run(
    folder: Path, clicks: list[list[tuple[str, int]]], max_records: int
) -> tuple[RunSummary, Counter[tuple[str, int]]]:
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=MINUTE_MS), timedelta(milliseconds=GRACE_MS))
    (
        builder.stream("clicks", key=String("user"), value=Json(Click))
        .group_by("page")
        .windowed_by(windows)
        .agg("counts", clicks=Count())
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("final")
    )
    topics = Topics(
        {
            ("clicks", partition): [
                (b"user-%d" % (offset % 3), msgspec.json.encode(Click(page)), ts)
                for offset, (page, ts) in enumerate(rows)
            ]
            for partition, rows in enumerate(clicks)
        }
    )
    place = Place(Application("clicks", builder), topics, folder, max_records=max_records)
    summary = place.run()
    rows = read_table(place.warehouse / "clicks" / "final").select(
        "page", pl.col("window_start").dt.timestamp("ms"), "clicks"
    )
    return summary, Counter({(page, start): count for page, start, count in rows.iter_rows()})
