"""Metrics under Kafka Streams' names: what an epoch adds, and readings of the last minute."""

import tracemalloc
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from tests.pipelines.operators.one_topic import Event, frame
from weir import BufferConfig, Json, StreamsBuilder, String, Suppressed, TimeWindows
from weir.pipelines.expectations import count_name
from weir.pipelines.tasks.metrics import EpochMetrics
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.tasks.run_metrics import MetricsLevel, RunMetrics
from weir.pipelines.tasks.sensors import Sensor
from weir.state.engine.figures import Figures, StoreFigures, Values


def epochs(*batches):
    """The outputs over batches of records: a final windowed count, and a count at most once per user in 36 ms."""
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=Json(Event))
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=4))
    (
        events.group_by_key()
        .windowed_by(windows)
        .count("counts")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("final")
    )
    (
        events.group_by_key()
        .count("totals")
        .suppress(Suppressed.until_time_limit(timedelta(milliseconds=36), BufferConfig.unbounded()))
        .to_delta("slow")
    )
    processor = TaskProcessor(builder.build().sub_topologies[0], is_debug=True)
    session, clocks, outputs = MemorySession(), {}, []
    for batch in batches:
        outputs.append(processor.run(in_turn({"events": batch}), session, clocks, 0))
        clocks = outputs[-1].clocks
    return outputs


RECORDS = frame(
    [("a", 5, (1, "x")), ("a", 25, (1, "x")), ("b", 3, (1, "x")), (None, 24, (1, "x")), ("a", 40, (1, "x"))]
)


def test_lateness_is_measured_against_the_tasks_stream_time_over_all_records():
    (output,) = epochs(RECORDS)
    assert output.metrics.records == 5
    assert output.metrics.lateness_ms == Values(count=5, total=23, least=0, greatest=22)


def test_counts_are_those_of_the_node_that_made_them():
    (output,) = epochs(RECORDS)
    source, windowed, final, totals, slow = (
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-AGGREGATE-0000000001",
        "KTABLE-SUPPRESS-0000000002",
        "KSTREAM-AGGREGATE-0000000006",
        "KTABLE-SUPPRESS-0000000007",
    )
    assert output.metrics.nodes == {
        source: {"process": 5},
        windowed: {"late_records": 1, "null_keys": 1},
        final: {"suppression_emits": 2},
        totals: {"null_keys": 1},
        slow: {"suppression_emits": 1},
    }
    assert {store: rows for store, (rows, _) in output.metrics.buffers.items()} == {
        "counts": 1,
        "KTABLE-SUPPRESS-STATE-STORE-0000000008": 1,
    }


def test_an_epochs_batches_add_up_to_the_metrics_of_one_batch():
    (whole,) = epochs(RECORDS)
    parts = epochs(*(RECORDS[index : index + 1] for index in range(RECORDS.height)))
    added = sum((part.metrics for part in parts), EpochMetrics())
    assert replace(added, calls={}) == replace(whole.metrics, calls={}), "smaller batches ask stores more often"


def test_a_sensor_forgets_what_is_older_than_a_minute():
    clock = [0.0]
    sensor = Sensor(lambda: clock[0])
    assert (sensor.rate, sensor.count_rate, sensor.average, sensor.maximum) == (0, 0, 0, 0)
    for second, value in ((10.0, 200.0), (10.4, 100.0), (20.0, 600.0)):
        clock[0] = second
        sensor.record(value)
    assert (sensor.rate, sensor.count_rate) == pytest.approx((45.0, 0.15))
    assert (sensor.average, sensor.maximum) == pytest.approx((300.0, 600.0))
    clock[0] = 75.0
    assert (sensor.rate, sensor.average) == pytest.approx((600 / 55, 600.0)), "since 20.0"
    clock[0] = 200.0
    assert (sensor.rate, sensor.average, sensor.maximum, sensor.total, sensor.last) == (0, 0, 0, 900.0, 600.0)


def test_a_rate_is_that_of_the_last_55_to_60_seconds_and_takes_no_more_memory_the_longer_it_runs():
    clock = [0.0]
    sensor, values = Sensor(lambda: clock[0]), list[tuple[float, float]]()
    for step in range(1_000):
        clock[0] += 0.25 + step % 7 / 10
        values.append((clock[0], float(step)))
        sensor.record(values[-1][1])
        covered_s = min(clock[0], 55 + clock[0] % 5)
        total = sum(value for at_s, value in values if at_s >= clock[0] - covered_s)
        assert sensor.rate == pytest.approx(total / max(1.0, covered_s))
    unread = Sensor(lambda: clock[0])
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(2):
            for _ in range(1_000):
                clock[0] += 1
                unread.record(1.0)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] <= sizes[0] + 200


@pytest.mark.parametrize(
    "count",
    [
        "late_records",
        "null_keys",
        "null_values",
        "expired_records",
        "out_of_order_records",
        "invalid_timestamps",
        "dead_letters",
    ],
)
def test_every_kind_of_drop_counts_as_a_dropped_record(count):
    metrics = RunMetrics(lambda: 0.0)
    metrics.epoch("0_0", EpochMetrics(), {"records_in": 9, count: 2, "rows_out": 7})
    assert {reading.name: reading.value for reading in metrics.readings()}["dropped-records-total"] == 2


def test_readings_have_kafka_streams_names_and_tags():
    clock = [0.0]
    metrics = RunMetrics(lambda: clock[0], MetricsLevel.DEBUG)
    clock[0] = 10.0
    metrics.commit(0.2, 1_000, 0.5)
    nodes = {
        "SOURCE": {"process": 100},
        "AGG": {"late_records": 4},
        "JOIN": {"expired_records": 2},
        "SUPPRESS": {"suppression_emits": 9},
    }
    metrics.epoch(
        "0_1",
        EpochMetrics(
            records=100,
            lateness_ms=Values(count=100, total=500, greatest=70),
            buffers={"held": (3, 96)},
            nodes=nodes,
            lateness_ms_of={"AGG": Values(count=4, total=10, greatest=7)},
            expired_of={"kept": 2},
            overtime_ms_of={"SUPPRESS": Values(count=2, total=30, least=5, greatest=25)},
            calls={"held": {"get": 40, "range": 10}},
            call_ms={"held": {"get": Values(count=4, total=10, least=1, greatest=7), "range": Values.of(3)}},
            figures=Figures(
                map_bytes=1 << 26,
                used_bytes=8192,
                readers=1,
                rows=4,
                apply_ms=Values.of(3),
                commit_ms=Values.of(2),
                apply_ms_of={"held": Values.of(1)},
                commit_ms_of={"held": Values.of(2)},
                stores={"held": StoreFigures(rows=3, pages=1, depth=2)},
            ),
        ),
        {"records_in": 100, "late_records": 4, "expired_records": 2, "null_keys": 1, "rows_out": 5},
    )
    metrics.worked("0_1", 2.5)
    metrics.restoring("0_0", 500, 1500)
    found = {(reading.group, reading.name, *reading.tags.values()): reading.value for reading in metrics.readings()}
    thread, task, node, state = (f"stream-{name}-metrics" for name in ("thread", "task", "processor-node", "state"))
    for key, value in {
        (thread, "commit-rate"): 0.1,
        (thread, "commit-total"): 1,
        (thread, "commit-latency-avg"): 200.0,
        (thread, "commit-interval-avg"): 500.0,
        (thread, "commit-latency-max"): 200.0,
        (thread, "process-rate"): 10.0,
        (thread, "process-total"): 100,
        (task, "process-rate", "0_1"): 10.0,
        (task, "record-lateness-avg", "0_1"): 5.0,
        (task, "record-lateness-max", "0_1"): 70,
        (task, "dropped-records-rate", "0_1"): 0.7,
        (task, "dropped-records-total", "0_1"): 7,
        (task, "late-record-drop-total", "0_1"): 4,
        (node, "process-total", "0_1", "SOURCE"): 100,
        (node, "late-record-drop-total", "0_1", "AGG"): 4,
        (task, "expired-window-record-drop-total", "0_1"): 2,
        (node, "expired-window-record-drop-rate", "0_1", "JOIN"): 0.2,
        (node, "expired-window-record-drop-total", "0_1", "JOIN"): 2,
        (state, "expired-window-record-drop-rate", "0_1", "kept"): 0.2,
        (state, "expired-window-record-drop-total", "0_1", "kept"): 2,
        (node, "suppression-emit-rate", "0_1", "SUPPRESS"): 0.9,
        (node, "suppression-emit-total", "0_1", "SUPPRESS"): 9,
        (state, "suppression-buffer-count-avg", "0_1", "held"): 3,
        (state, "suppression-buffer-size-max", "0_1", "held"): 96,
        (state, "suppression-buffer-count-current", "0_1", "held"): 3,
        (state, "suppression-buffer-size-current", "0_1", "held"): 96,
        (node, "record-lateness-avg", "0_1", "AGG"): 2.5,
        (node, "record-lateness-max", "0_1", "AGG"): 7,
        (node, "intermediate-result-suppression-overtime-min", "0_1", "SUPPRESS"): 5,
        (node, "intermediate-result-suppression-overtime-avg", "0_1", "SUPPRESS"): 15,
        (state, "get-rate", "0_1", "held"): 4,
        (state, "get-total", "0_1", "held"): 40,
        (state, "range-total", "0_1", "held"): 10,
        (state, "get-latency-avg", "0_1", "held"): 2.5,
        (state, "get-latency-max", "0_1", "held"): 7,
        (state, "range-latency-max", "0_1", "held"): 3,
        (task, "apply-latency-max", "0_1"): 3,
        (task, "applied-records-per-s", "0_1"): 100 / 0.003,
        (task, "busy-ratio", "0_1"): 0.25,
        (task, "settle-latency-avg", "0_1"): 2,
        (state, "apply-latency-avg", "0_1", "held"): 1,
        (state, "commit-rate", "0_1", "held"): 0.1,
        (state, "commit-total", "0_1", "held"): 1,
        (state, "commit-latency-max", "0_1", "held"): 2,
        (state, "map-size-bytes", "0_1"): 1 << 26,
        (state, "map-used-bytes", "0_1"): 8192,
        (state, "num-readers", "0_1"): 1,
        (task, "num-keys", "0_1"): 4,
        (state, "num-keys", "0_1", "held"): 3,
        (state, "num-pages", "0_1", "held"): 1,
        (state, "depth", "0_1", "held"): 2,
        (task, "restore-total", "0_0"): 500,
        (task, "restore-remaining-records-total", "0_0"): 1500,
        ("stream-state-updater-metrics", "active-restoring-tasks"): 1,
    }.items():
        assert found[key] == pytest.approx(value), key
    metrics.restoring("0_0", 1200, 800)
    metrics.restored("0_0", 2000)
    after = {(reading.name, *reading.tags.values()): reading.value for reading in metrics.readings()}
    assert after["restore-total", "0_0"] == 2000
    assert after["active-restoring-tasks",] == 0
    assert ("restore-remaining-records-total", "0_0") not in after


def test_at_info_what_each_node_and_store_does_is_left_out_but_for_drops_and_overtime():
    metrics = RunMetrics(lambda: 0.0)
    metrics.epoch(
        "0_0",
        EpochMetrics(
            records=5,
            nodes={"SOURCE": {"process": 5}, "AGG": {"late_records": 1}, "SUPPRESS": {"suppression_emits": 2}},
            lateness_ms_of={"AGG": Values.of(1)},
            overtime_ms_of={"SUPPRESS": Values.of(1)},
            buffers={"held": (1, 9)},
            calls={"held": {"get": 4}},
            figures=Figures(
                apply_ms_of={"held": Values.of(1)}, stores={"held": StoreFigures(rows=3, pages=1, depth=2)}
            ),
        ),
        {},
    )
    found = {reading.name for reading in metrics.readings() if len(reading.tags) == 2}
    overtime = "intermediate-result-suppression-overtime"
    assert found == {"late-record-drop-rate", "late-record-drop-total", f"{overtime}-min", f"{overtime}-avg"}


def test_what_expectations_counted_has_readings_by_task_and_expectation():
    clock = [0.0]
    metrics = RunMetrics(lambda: clock[0])
    clock[0] = 10.0
    judged = {"passed": 90, "failed": 10, "dropped": 10}
    for _ in range(2):
        metrics.epoch("0_1", EpochMetrics(), {count_name("positive", name): count for name, count in judged.items()})
    metrics.epoch("0_1", EpochMetrics(), {count_name("known", "passed"): 3})
    found = {
        (reading.name, *reading.tags.items()): reading.value
        for reading in metrics.readings()
        if reading.group == "stream-expectation-metrics"
    }
    tags = ("task-id", "0_1"), ("expectation", "positive")
    assert {name: found[f"{name}-records-total", *tags] for name in judged} == {
        "passed": 180,
        "failed": 20,
        "dropped": 20,
    }
    assert found["failed-records-rate", *tags] == pytest.approx(2.0)
    assert found["failed-records-total", ("task-id", "0_1"), ("expectation", "known")] == 0
