"""Sensors act on what the control database and the warehouse say: once, with their reasons, and quickly."""

import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.orchestration.flights import FLIGHTS
from tests.orchestration.test_definitions import clicks
from weir.infra.control import ApplicationStatus, MetricRow, MinuteRow, TaskStatusRow
from weir.orchestration.compaction import compaction_pool, compaction_sensor
from weir.orchestration.examples import flights_defs
from weir.orchestration.health import conditions, health_sensor
from weir.orchestration.retention import endangered, retention_sensor
from weir.orchestration.stalled import stall, stalled_sensor
from weir.orchestration.thresholds import Thresholds
from weir.orchestration.uncommitted import uncommitted_sensor

LIMITS = Thresholds()
MUCH = LIMITS.uncommitted_max_bytes + 1
LOOK_LIMIT_S, LOOKS = 0.2, 5
BROKER_LIMIT_S = 20.0


def task(**fields) -> TaskStatusRow:
    return TaskStatusRow(**{"task": "0_0", "slot": 0, "status": "running", **fields})


def metric(**fields) -> MetricRow:
    return MetricRow(
        **{
            "epoch": 7,
            "committed_epoch": 7,
            "records_in": 1,
            "records_per_s": 1000.0,
            "lag": 0,
            "commit_ms": 9.0,
            **fields,
        }
    )


def observed(answer: dg.SensorResult | dg.SkipReason) -> list[str]:
    return [event.description for event in answer.asset_events] if isinstance(answer, dg.SensorResult) else []


def test_much_uncommitted_state_requests_one_commit_and_its_answer_comes_back(database, drive, tick):
    sensor = uncommitted_sensor(FLIGHTS)
    assert isinstance(tick(sensor), dg.SkipReason), "no driver runs"
    drive()
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH - 1), task(task="0_1")])
    tick(sensor)
    assert database.pending_requests("flights") == [], "as much as the limit is not over it"
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH - 1), task(task="0_1", uncommitted_bytes=1)])
    tick(sensor)
    [request] = database.pending_requests("flights")
    assert (request.kind, request.requested_by) == ("commit", "dagster sensor flights_uncommitted")
    assert request.reason == "32.0 MiB uncommitted, the limit is 32.0 MiB"
    assert "waits for the driver" in tick(sensor).skip_message
    assert len(database.pending_requests("flights")) == 1
    database.finish_request(request.id, "committed epoch 9")
    answer = tick(sensor)
    assert observed(answer) == ["committed epoch 9"]
    assert isinstance(tick(sensor, answer.cursor), dg.SkipReason), "the answer is shown once"


def test_a_second_commit_is_requested_after_the_cooldown_and_only_on_what_was_reported_since(database, drive, tick):
    def sensor(cooldown_s: float) -> dg.SensorDefinition:
        return uncommitted_sensor(replace(FLIGHTS, thresholds=Thresholds(cooldown_s=cooldown_s)))

    drive()
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH)])
    tick(sensor(0))
    [first] = database.pending_requests("flights")
    database.finish_request(first.id, "committed epoch 9")
    tick(sensor(0), str(first.id))
    assert database.pending_requests("flights") == [], "the reading is older than the commit"
    _next_millisecond()
    database.report_tasks("flights", [task(uncommitted_bytes=MUCH)])
    tick(sensor(600), str(first.id))
    assert database.pending_requests("flights") == []
    tick(sensor(0), str(first.id))
    assert len(database.pending_requests("flights")) == 1


def _next_millisecond() -> None:
    now_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now_ms:
        pass


@pytest.mark.slow
def test_lag_is_told_when_it_begins_and_when_it_is_over(database, drive, tick):
    sensor = health_sensor(FLIGHTS)
    drive()
    database.report_tasks("flights", [task()])
    database.add_metric("flights", metric(lag=LIMITS.lag_max_records))
    assert isinstance(tick(sensor), dg.SkipReason)
    database.add_metric("flights", metric(lag=LIMITS.lag_max_records + 1))
    began = tick(sensor)
    assert observed(began) == ["10,001 records wait, more than 10,000"]
    assert isinstance(tick(sensor, began.cursor), dg.SkipReason)
    database.add_metric("flights", metric(lag=3))
    over = tick(sensor, began.cursor)
    assert observed(over) == ["over: lag in records"]
    assert isinstance(tick(sensor, over.cursor), dg.SkipReason)


def test_what_lasts_is_told_again_after_the_cooldown(database, drive, tick):
    drive()
    database.report_tasks("flights", [task(status="restoring", reason="checksum differs")])
    database.add_metric("flights", metric())
    began = tick(health_sensor(FLIGHTS))
    assert observed(began) == ["task 0_0 restores: checksum differs"]
    assert isinstance(tick(health_sensor(FLIGHTS), began.cursor), dg.SkipReason)
    impatient = health_sensor(replace(FLIGHTS, thresholds=Thresholds(cooldown_s=0)))
    assert observed(tick(impatient, began.cursor)) == ["task 0_0 restores: checksum differs"]


def minutes(lags: list[int], epochs: list[int] | None = None, pace: float = 1000.0) -> list[MinuteRow]:
    return [
        MinuteRow(at_ms=number * 60_000, epoch=epoch, records_per_s=pace, lag=lag, commit_ms=1.0)
        for number, (lag, epoch) in enumerate(zip(lags, epochs or range(len(lags)), strict=True))
    ]


@pytest.mark.parametrize(
    ("lags", "pace", "expected"),
    [
        ([1, 2, 3, 4, 5, 6], 1000.0, {"lag grows"}),
        ([1, 2, 3, 3, 5, 6], 1000.0, set()),
        ([2, 3, 4, 5, 6], 1000.0, set()),
        ([9000], 29.0, {"lag in seconds"}),
        ([9000], 31.0, set()),
        ([9000], 0.01, set()),
    ],
)
def test_growing_lag_and_lag_in_seconds_are_told_apart(lags, pace, expected):
    found = conditions(running(metric=metric(lag=lags[-1])), minutes([lags[-1]], pace=pace), lags, LIMITS)
    assert set(found) == expected


def running(**fields) -> ApplicationStatus:
    return ApplicationStatus(
        **{
            "application": "flights",
            "state": "running",
            "is_running": True,
            "generation": 1,
            "owner": "",
            "host": "",
            "pid": 1,
            "has_process": True,
            "started_at_ms": 0,
            "heartbeat_at_ms": 0,
            "ended_at_ms": None,
            "error": None,
            "tasks": (task(),),
            "metric": metric(),
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("lags", "epochs", "silent_s", "fields", "expected"),
    [
        ([50, 50, 50, 50], [7, 7, 7, 7], 0, {}, "50 records wait and no epoch after 7 has begun for 180 s"),
        ([50, 50, 50, 50], [7, 7, 7, 8], 0, {}, None),
        ([50, 50, 0, 50], [7, 7, 7, 7], 0, {}, None),
        ([50, 50, 50, 50], [7, 7, 7, 7], 0, {"state": "waiting"}, None),
        ([50, 50, 50, 50], [7, 7, 7, 7], 0, {"tasks": (task(status="restoring"),)}, None),
        ([], None, 181, {"state": "dead", "is_running": False}, "said nothing for 181 s"),
        ([], None, 180, {}, None),
        ([], None, 181, {"has_process": False}, None),
        ([], None, 181, {"tasks": ()}, None),
        ([], None, 181, {"ended_at_ms": 1}, None),
    ],
    ids=[
        "no epoch",
        "an epoch",
        "no lag",
        "no broker",
        "restoring",
        "silent",
        "not yet",
        "no process",
        "starting",
        "ended",
    ],
)
def test_a_driver_that_does_not_get_on_is_told_from_one_that_waits_restores_or_has_ended(
    lags, epochs, silent_s, fields, expected
):
    limit_s = LIMITS.stalled_max_s
    found = stall(running(**fields), minutes(lags, epochs), limit_s, limit_s, silent_s * 1000)
    assert found is None if expected is None else expected in found


@pytest.mark.parametrize(
    ("began", "max_task_idle_s", "is_told"), [(-5, 0, True), (-5, 60, True), (-5, 61, False), (-1, 0, False)]
)
def test_a_driver_whose_tasks_wait_for_a_quiet_topic_is_left_to_wait(
    database, drive, tick, monkeypatch, began, max_task_idle_s, is_told
):
    """Four minutes without an epoch, not all of them its own; three are allowed beside the wait."""
    waiting = clicks("flights")
    waiting.max_task_idle = timedelta(seconds=max_task_idle_s)
    now_ms = time.time_ns() // 1_000_000
    with monkeypatch.context() as patch:
        for minute in range(-5, 1):
            patch.setattr("weir.infra.control.database._now_ms", lambda at_ms=now_ms + minute * 60_000: at_ms)
            if minute == began:
                lease = drive()
            if minute > -5:
                database.add_metric("flights", metric(lag=50))
    database.heartbeat(lease, state="running")
    database.report_tasks("flights", [task()])
    told = observed(tick(stalled_sensor(replace(FLIGHTS, application=waiting))))
    assert bool(told) is is_told
    assert all("50 records wait and no epoch after 7 has begun for " in sentence for sentence in told)


HANGS = """
import pathlib, sys, threading
from weir.pipelines.operations.log_files import stacks_on_signal
def waits_for_a_job():
    print(flush=True)
    threading.Event().wait()
with stacks_on_signal(pathlib.Path(sys.argv[1])):
    waits_for_a_job()
"""


@pytest.fixture
def hanging(settings):
    """A process that answers a request for its stacks and nothing else."""
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(settings.logs / "flights.stacks")], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_driver_that_hangs_leaves_its_stacks_and_is_ended_after_as_long_again(hanging, database, drive, tick):
    def look(limit_s: float, cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        return tick(stalled_sensor(replace(FLIGHTS, thresholds=Thresholds(stalled_max_s=limit_s))), cursor)

    drive("dagster run x", hanging.pid)
    assert isinstance(look(0, None), dg.SkipReason), "it is starting"
    database.report_tasks("flights", [task()])
    _next_millisecond()
    assert isinstance(look(60, None), dg.SkipReason)
    told = look(0, None)
    assert "hangs in an epoch or a commit" in observed(told)[0]
    assert "waits_for_a_job" in told.asset_events[0].metadata["stacks"].value
    assert look(60, told.cursor).cursor == "{}", "it has got on"
    ended = look(0, told.cursor)
    assert f"process {hanging.pid} was ended" in observed(ended)[0]
    assert hanging.wait() == -signal.SIGKILL
    assert look(0, ended.cursor).cursor == "{}"


def test_a_driver_that_no_run_started_is_told_of_and_left_alone(hanging, database, drive, tick):
    sensor = stalled_sensor(replace(FLIGHTS, thresholds=Thresholds(stalled_max_s=0)))
    drive("weir run", hanging.pid)
    database.report_tasks("flights", [task()])
    _next_millisecond()
    told = tick(sensor)
    assert observed(told)
    assert "not this sensor's to end" in tick(sensor, told.cursor).skip_message
    assert hanging.poll() is None


def test_closed_segments_start_a_compaction_once_and_its_pool_takes_one(committer, commit_of, tick, instance):
    sensor = compaction_sensor(FLIGHTS, dg.GraphDefinition(name="compaction").to_job())
    committer.commit(commit_of(9_999))
    assert isinstance(tick(sensor), dg.SkipReason)
    committer.commit(commit_of(10_000))
    due = tick(sensor)
    assert [request.run_key for request in due.run_requests] == ["flights-1.10000"]
    committer.commit(commit_of(19_999))
    assert isinstance(tick(sensor, due.cursor), dg.SkipReason)
    limits = {limit.name: limit.limit for limit in instance.event_log_storage.get_pool_limits()}
    assert limits[compaction_pool(FLIGHTS)] == 1


@pytest.mark.parametrize(
    ("position", "oldest", "end", "expected"),
    [
        (95, 100, 1100, {"t-0 has lost records"}),
        (199, 100, 1100, {"t-0 near retention"}),
        (200, 100, 1100, set()),
        (5, 0, 1000, set()),
        (1100, 1099, 1100, set()),
    ],
    ids=["deleted before it was read", "close", "far", "nothing was ever deleted", "all is read"],
)
def test_records_near_the_oldest_kept_are_told(position, oldest, end, expected):
    found = endangered({"t": {0: position}}, {("t", 0): oldest}, {("t", 0): end}, 0.1)
    assert set(found) == expected


@pytest.mark.broker
def test_a_topic_that_deletes_what_comes_next_is_told_by_its_brokers(
    broker, kafka_admin, committer, commit_of, tick, monkeypatch
):
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    kafka_admin.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(100):
        producer.produce(topic, str(number).encode())
    producer.flush()
    newest = commit_of(1)
    name, first = next(iter(newest.tasks.items()))
    committer.commit(replace(newest, tasks={**newest.tasks, name: replace(first, positions={topic: {0: 42}})}))
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", broker)
    sensor = retention_sensor(FLIGHTS)
    assert isinstance(tick(sensor), dg.SkipReason)
    client = AdminClient({"bootstrap.servers": broker})
    client.delete_records([TopicPartition(topic, 0, 40)])[TopicPartition(topic, 0, 40)].result()
    until = time.monotonic() + BROKER_LIMIT_S
    while isinstance(answer := tick(sensor), dg.SkipReason) and time.monotonic() < until:
        pass  # a broker that does not answer in time is asked again at the next look
    assert observed(answer) == [
        f"{topic}-0: offset 42 comes next and 40 is the oldest kept, of 60: "
        "read faster, or lengthen the topic's retention"
    ]
    assert isinstance(tick(sensor, answer.cursor), dg.SkipReason)


@pytest.mark.slow
def test_every_sensor_looks_in_a_fifth_of_a_second(database, drive, committer, commit_of, tick):
    committer.commit(commit_of(1))
    drive()
    database.report_tasks("flights", [task()])
    database.add_metric("flights", metric())
    sensors = list(flights_defs.sensors)
    assert len(sensors) == 8
    for sensor in sensors:
        tick(sensor)  # imports, and what is news the first time
        taken_s = []
        while min(taken_s, default=1.0) >= LOOK_LIMIT_S and len(taken_s) < LOOKS:  # the machine may be busy
            started = time.monotonic()
            tick(sensor)
            taken_s.append(time.monotonic() - started)
        assert min(taken_s) < LOOK_LIMIT_S, (sensor.name, taken_s)


@pytest.mark.parametrize("name", ["lag_grows_max_s", "stalled_max_s"])
def test_a_span_that_no_reading_would_ever_show_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} is 3,600 s; .* 3,000 s at most"):
        Thresholds(**{name: 3_600})
