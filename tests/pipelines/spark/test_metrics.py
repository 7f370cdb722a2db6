"""The metrics of whole runs, as Prometheus scrapes them, beside plain loops over the records."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event
from urllib.request import urlopen

import pytest

from tests.examples import combined
from tests.pipelines.spark import counted_numbers
from tests.pipelines.spark.inline import Place, Topics
from tests.state.engine.own_store import InMemory
from weir import (
    Application,
    BufferConfig,
    Count,
    Json,
    Materialized,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)
from weir.infra.prometheus import PrometheusEndpoint
from weir.pipelines.operators.epoch import MOST_LATE
from weir.pipelines.spark.late_log import LATE_LOG
from weir.pipelines.tasks.run_metrics import MetricsLevel

PARTITIONS, RECORDS = 3, 200
LABELS = ("task_id", "processor_node_id", "store_id", "expectation")
LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")


@dataclass(frozen=True)
class Click:
    page: str


def time_of(partition: int, number: int) -> int:
    """Every seventh record is late by up to 600 ms."""
    return 1_000 + number * 10 - (number % 7 == 3) * (number * 37 % 600) * (partition != 2)


@pytest.fixture
def place(tmp_path):
    rows = {
        ("clicks", partition): [
            (
                b"user-%d-%d" % (partition, number % 9),
                json.dumps({"page": f"p{number % 4}"}).encode(),
                time_of(partition, number),
            )
            for number in range(RECORDS)
        ]
        for partition in range(PARTITIONS)
    }
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=100), timedelta(milliseconds=50))
    final = Suppressed.until_window_closes(BufferConfig.unbounded())
    clicks.group_by_key().windowed_by(windows).count("windowed").suppress(final).to_delta("final")
    clicks.group_by_key().agg(Materialized("own", InMemory), n=Count()).to_delta("totals")
    clicks.group_by("page").agg("pages", n=Count()).to_delta("pages")
    application = Application("shop", builder, commit_interval=timedelta(milliseconds=1))
    return Place(application, Topics(rows), tmp_path, metrics_level=MetricsLevel.DEBUG)


def scraped(place: Place) -> list[dict[tuple[str, ...], float]]:
    """Run until caught up, with an endpoint; what each scrape told, by metric and tags."""
    pages, endpoint = [], PrometheusEndpoint(place.application.id, "127.0.0.1", 0)

    def scrape(progress):
        endpoint.publish(progress.readings)
        with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics") as response:
            lines = [LINE.fullmatch(line) for line in response.read().decode().splitlines()]
        found = {}
        for name, tags, value in (line.groups() for line in lines if line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', tags))
            assert labels.pop("application_id") == place.application.id
            others = (labels[each] for each in LABELS if each in labels)
            found[name.removeprefix("kafka_streams_stream_"), *others] = float(value)
        pages.append(found)

    try:
        place.driver(on_progress=scrape).run(Event(), until_caught_up=True)
    finally:
        endpoint.close()
    return pages


def late_of(partition: int) -> tuple[list[tuple[int, int, int]], list[int]]:
    """By a loop: offset, timestamp and stream time of the records of a partition that are late, and how far each
    record is behind."""
    newest, late, behind = 0, [], []
    for offset in range(RECORDS):
        time_ms = time_of(partition, offset)
        newest = max(newest, time_ms)
        behind.append(newest - time_ms)
        if time_ms // 100 * 100 + 150 <= newest:
            late.append((offset, time_ms, newest))
    return late, behind


@combined("max_records", [7, 40, 1_000])
def test_a_scrape_tells_what_a_loop_over_the_records_counts(place, max_records, caplog):
    place.max_records = max_records
    with caplog.at_level(logging.DEBUG, LATE_LOG):
        last = scraped(place)[-1]
    for partition in range(PARTITIONS):
        task, (late, behind) = f"0_{partition}", late_of(partition)
        node = "processor_node_metrics_record_lateness"
        for name in ("KSTREAM-SOURCE-0000000000", "KSTREAM-AGGREGATE-0000000001"):
            assert last[f"{node}_avg", task, name] == pytest.approx(sum(behind) / RECORDS)
            assert last[f"{node}_max", task, name] == max(behind)
        assert last.get(("task_metrics_late_record_drop_total", task), 0) == len(late)
        assert last.get(
            ("processor_node_metrics_late_record_drop_total", task, "KSTREAM-AGGREGATE-0000000001"), 0
        ) == len(late)
        newest = max(time_of(partition, offset) for offset in range(RECORDS))
        in_time = {offset for offset in range(RECORDS)} - {offset for offset, _, _ in late}
        held = {
            (offset % 9, start)
            for offset in in_time
            if (start := time_of(partition, offset) // 100 * 100) + 150 > newest
        }
        assert last["state_metrics_suppression_buffer_count_current", task, "windowed"] == len(held)
        size = last["state_metrics_suppression_buffer_size_current", task, "windowed"]
        assert 10 * len(held) < size < 100 * len(held)
        shown = late[:MOST_LATE] if max_records == 1_000 else late
        assert [line for line in caplog.messages if f"clicks-{partition} offset" in line] == [
            f"task {task}, KSTREAM-AGGREGATE-0000000001: clicks-{partition} offset {offset} is late and dropped: "
            f"timestamp {time_ms}, stream time {stream_time_ms}, "
            f"window [{time_ms // 100 * 100}, {time_ms // 100 * 100 + 100})"
            for offset, time_ms, stream_time_ms in shown
        ]
        more = f"task {task}: {len(late) - MOST_LATE} more late records were dropped in this epoch"
        assert (more in caplog.text) == (len(shown) < len(late))
    assert len(late_of(0)[0]) > MOST_LATE > len(late_of(2)[0]) == 0


def test_a_scrape_tells_what_stores_are_asked_and_what_they_take(place):
    """Each epoch has one batch of its records, which reads and writes each key once."""
    place.max_records = 40
    pages = scraped(place)
    last, epochs = pages[-1], RECORDS // 40
    for partition in range(PARTITIONS):
        task = f"0_{partition}"
        keys = sum(len({number % 9 for number in range(start, start + 40)}) for start in range(0, RECORDS, 40))
        for call in ("get", "put"):
            assert last[f"state_metrics_{call}_total", task, "own"] == keys
            assert last[f"state_metrics_{call}_latency_max", task, "own"] > 0
        assert last["state_metrics_range_total", task, "windowed"] >= epochs
        for store in ("own", "windowed"):
            assert (
                0 < last["state_metrics_apply_latency_avg", task, store] <= last["task_metrics_apply_latency_max", task]
            )
            assert 1 <= last["state_metrics_commit_total", task, store] <= last["thread_metrics_commit_total",]
            assert last["state_metrics_commit_latency_max", task, store] > 0
        assert last["state_metrics_num_keys", task, "own"] == 9
        assert last["state_metrics_num_pages", task, "own"] == last["state_metrics_depth", task, "own"] == 1
        assert last["state_metrics_map_size_bytes", task] == 64 << 20
        assert 4_096 <= last["state_metrics_map_used_bytes", task] < 1 << 20
        assert last["state_metrics_num_readers", task] >= 1


@pytest.mark.parametrize("level", MetricsLevel)
def test_lag_and_what_is_uncommitted_are_told_for_each_task_and_in_total(place, level):
    place.metrics_level, place.max_records = level, 40
    place.application.commit_interval = timedelta(hours=1)
    seen: list[tuple[float, float]] = []
    driver = place.driver(on_progress=lambda progress: seen.append(told(progress, driver._coordinator, place)))
    run_epoch = driver._coordinator.run_epoch

    def reported(*args, **others):
        result = run_epoch(*args, **others)
        driver._report("running", now=True)
        return result

    driver._coordinator.run_epoch = reported
    driver.run(Event(), until_caught_up=True)
    assert max(lag for lag, _ in seen) > 100
    assert max(size for _, size in seen) > 1_000
    assert seen[-1] == (0, 0)


def told(progress, coordinator, place) -> tuple[float, float]:
    """The totals of a report, which are compared with those of its tasks, and with topics and stores."""
    found = {(reading.name, *reading.tags.values()): reading.value for reading in progress.readings}
    tasks = {str(task.id): task for task in coordinator.tasks.values()}
    for name, task in tasks.items():
        unread = sum(
            len(place.topics.rows[topic, task.id.partition]) - task.positions[topic][task.id.partition]
            for topic in task.topics
        )
        if progress.epoch:
            assert found["records-lag", name] == unread
        size = task.gauges.get("uncommitted_bytes", 0) if task.current != task.committed else 0
        assert found["uncommitted-bytes", name] == size
        assert (found["rollback-estimate-ms", name] > 0) == (size > 0)
    totals = []
    for name in ("records-lag", "uncommitted-bytes"):
        assert found[name,] == sum(found[name, task] for task in tasks)
        totals.append(found[name,])
    return totals[0], totals[1]


def test_a_scrape_gets_what_expectations_counted_by_task_and_name(tmp_path):
    found = scraped(counted_numbers.place(tmp_path))[-1]
    failed = sum(n < 0 for n in counted_numbers.NUMBERS)
    totals = {"passed": len(counted_numbers.NUMBERS) - failed, "failed": failed, "dropped": failed}
    assert {
        name: found[f"expectation_metrics_{name}_records_total", "0_0", "not_negative"] for name in totals
    } == totals


def test_each_metric_of_a_run_is_on_the_page_under_its_group(place):
    rows, group = dict[str, str](), ""
    for line in (Path(__file__).parents[3] / "docs" / "metrics.md").read_text().splitlines():
        found = re.match(r"\| `(stream-\S+)`", line)
        group = found.group(1) if found else group
        rows[group] = rows.get(group, "") + line
    told = []
    place.driver(on_progress=lambda progress: told.append(progress.readings)).run(Event(), until_caught_up=True)
    names = {(reading.group, reading.name) for readings in told for reading in readings}
    assert len(names) > 60
    for group, name in names:
        stem = re.sub("-(rate|total|avg|min|max|current)$", "-", name)
        assert f"`{name}`" in rows[group] or (stem != name and f"`{stem}" in rows[group]), name
