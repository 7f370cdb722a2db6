"""The bench's parts that need neither broker nor Spark: its events, its memory sampler, its figures."""

from __future__ import annotations

import json
import subprocess
import sys

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bench.apps import repartition_sum_68
from bench.events import KEYS, LARGE_BYTES, PAGES, SMALL_BYTES, START_MS, event_frame, totals_per
from bench.memory import tree_memory
from bench.processes import BenchError, run_json
from weir.testing import TopologyTestDriver

GROW = """
import subprocess, sys
child = "held = bytearray(b'x') * (100 << 20); print('ready', flush=True); input()"
subprocess.run([sys.executable, "-c", child])
"""


@pytest.mark.parametrize("event_bytes", [SMALL_BYTES, LARGE_BYTES])
def test_every_event_has_the_same_size_and_its_fields(event_bytes):
    events = event_frame(1_000_000, 1_010_000, event_bytes)
    assert (events["value"].str.len_bytes() == event_bytes).all()
    first = json.loads(events["value"][0])
    assert (first["user"], first["ts"]) == (events["key"][0], events["timestamp"][0])
    assert events["timestamp"][0] == START_MS + 100_000
    assert first["amount"] == 10 + 1_000_000 % 90


def test_events_do_not_depend_on_the_batches_they_are_made_in():
    parts = pl.concat([event_frame(0, 700, SMALL_BYTES), event_frame(700, 1_000, SMALL_BYTES)])
    assert_frame_equal(parts, event_frame(0, 1_000, SMALL_BYTES))


@pytest.mark.slow
def test_events_spread_over_all_keys():
    counts = event_frame(0, 1_000_000, SMALL_BYTES)["key"].value_counts()["count"]
    assert len(counts) == KEYS
    assert counts.max() < 60  # the average is 20


def test_exact_sums_per_page_are_those_of_the_events():
    totals = dict(totals_per("page", 1_000).iter_rows())
    assert len(totals) == PAGES
    assert totals["/item/100"] == 10 + 77  # events 0 and 877
    assert totals["/item/222"] == 10 + 32 + 10 + 9  # events 122 and 999
    assert totals["/item/223"] == 10 + 33  # event 123 alone
    assert sum(totals.values()) == 11 * sum(range(10, 100)) + sum(range(10, 20))


def test_exact_sums_span_the_batches_that_events_are_made_in():
    events = event_frame(0, 120_001, SMALL_BYTES)["value"].str.json_decode(pl.Struct({"user": str, "amount": int}))
    counted = events.struct.unnest().group_by(key="user").agg(total=pl.sum("amount"))
    assert_frame_equal(totals_per("user", 120_001), counted, check_row_order=False)


def test_events_are_summed_per_page_after_a_repartition():
    events = event_frame(0, 1_000, SMALL_BYTES)[[0, 122, 123, 877, 999]]
    with TopologyTestDriver(repartition_sum_68) as driver:
        topic = driver.create_input_topic("events_68")
        for key, value, timestamp in events.iter_rows():
            topic.pipe_input(key, value.encode(), timestamp_ms=timestamp)
        rows = driver.create_output_table("totals").read_rows()
    assert {row["page"]: row["total"] for row in rows} == {"/item/100": 87, "/item/222": 61, "/item/223": 43}


def test_memory_includes_all_descendants():
    process = subprocess.Popen([sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "ready\n"
        assert 100 << 20 < tree_memory(process.pid) < 200 << 20
        process.stdin.write("\n")


def test_a_failed_run_reports_its_last_output():
    with pytest.raises(BenchError, match=r"the job ended with code 3:\nno broker"):
        run_json([sys.executable, "-c", "import sys; print('no broker', file=sys.stderr); sys.exit(3)"], "the job")


def test_processor_time_includes_descendants_and_those_that_have_ended():
    burn = "import time\nwhile time.process_time() < 0.7: pass"
    code = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); print('{{}}'); time.sleep(.3)"
    )
    _, peak = run_json([sys.executable, "-c", code], "the job")
    assert 0.5 < peak.cpu_seconds < 1.5
