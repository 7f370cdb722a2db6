"""Programs of the bench whose results are hard to see, in the test driver, beside the exact results."""

from __future__ import annotations

import polars as pl
import pytest

from bench import apps, jobs
from bench.events import SMALL_BYTES, beside, event_frame
from bench.jobs import BESIDE
from bench.truth import truth
from bench.workloads import _keyed, require_equal
from weir.testing import TopologyTestDriver

EVENTS, USERS = 150, 30


@pytest.mark.parametrize("job", ["sliding_sum", "stream_join_sum", "table_join_sum", "foreign_key_join"])
def test_results_are_the_exact_ones(job, monkeypatch):
    monkeypatch.setattr("bench.events.KEYS", USERS)
    for module in ("bench.jobs", "bench.truth"):
        monkeypatch.setattr(f"{module}.ROWS", USERS)
    (work,) = jobs.planned([job], EVENTS, EVENTS, [SMALL_BYTES])
    topics = {work.topic: event_frame(0, EVENTS, SMALL_BYTES, work.keys)}
    if job in BESIDE:
        other = BESIDE[job]
        topics[beside(work.topic, other.name)] = other.frame(0, other.records(EVENTS), 0)
    records = pl.concat(
        [frame.with_columns(topic=pl.lit(topic)) for topic, frame in topics.items()], how="vertical_relaxed"
    )
    program = getattr(apps, f"{job}_{work.topic.removeprefix('events_')}")
    with TopologyTestDriver(program) as driver:
        made = {topic: driver.create_input_topic(topic) for topic in topics}
        for key, value, timestamp, topic in records.sort("timestamp", maintain_order=True).iter_rows():
            made[topic].pipe_input(key, value.encode(), timestamp_ms=timestamp)
        rows = driver.create_output_table("totals").read_rows()
    require_equal(
        _keyed(pl.DataFrame(rows), job).unique("key", keep="last", maintain_order=True), truth(job, EVENTS), job
    )
