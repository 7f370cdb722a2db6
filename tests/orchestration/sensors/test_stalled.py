"""A driver without progress has its stacks recorded and is ended; one that waits, restores or has ended is not."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS, clicks
from tests.orchestration.readings import metric, minutes, observed, remembered, running, task, wait_for_next_millisecond
from weir.orchestration.sensors.stalled import stall_reason, stalled_sensor
from weir.orchestration.thresholds import Thresholds

LIMIT_S = Thresholds().stalled_max_s


@pytest.mark.parametrize(
    ("lags", "epochs", "silent_s", "fields", "expected"),
    [
        ([50, 50, 50, 50], [7, 7, 7, 7], 0, {}, ("50 records", "epoch after 7", "180 s")),
        ([50, 50, 50, 50], [7, 7, 7, 8], 0, {}, None),
        ([50, 50, 0, 50], [7, 7, 7, 7], 0, {}, None),
        ([50, 50, 50, 50], [7, 7, 7, 7], 0, {"state": "waiting"}, None),
        ([50, 50, 50, 50], [7, 7, 7, 7], 0, {"tasks": (task(status="restoring"),)}, None),
        ([50, 50, 50, 50], [7, 7, 7, 7], 0, {"tasks": (task(status="corrupted"),)}, None),
        ([], None, 181, {"state": "dead", "is_running": False}, ("no heartbeat for 181 s",)),
        ([], None, 180, {}, None),
        ([], None, 181, {"has_process": False}, None),
        ([], None, 181, {"tasks": ()}, None),
        ([], None, 181, {"ended_at_ms": 1}, None),
        ([], None, 181, {"heartbeat_at_ms": 180_000}, ("done nothing for 181 s", "hangs in an epoch or a commit")),
        ([], None, 180, {"heartbeat_at_ms": 180_000}, None),
        ([], None, 181, {"heartbeat_at_ms": 180_000, "metric": metric(at_ms=1_000)}, None),
        ([], None, 181, {"heartbeat_at_ms": 180_000, "started_at_ms": 10_000}, None),
    ],
    ids=[
        "no epoch",
        "an epoch",
        "no lag",
        "no broker",
        "restoring",
        "corrupted",
        "no heartbeat",
        "not yet",
        "no process",
        "starting",
        "ended",
        "no reading",
        "no reading, not yet",
        "a reading",
        "a former reading",
    ],
)
def test_a_stalled_driver_is_told_from_one_that_waits_restores_or_has_ended(lags, epochs, silent_s, fields, expected):
    found = stall_reason(running(**fields), minutes(lags, epochs), LIMIT_S, LIMIT_S, silent_s * 1000)
    assert found is None if expected is None else all(fact in found for fact in expected)


@pytest.mark.parametrize(
    ("began", "max_task_idle_s", "is_reported"), [(-5, 0, True), (-5, 60, True), (-5, 61, False), (-1, 0, False)]
)
def test_a_driver_whose_tasks_wait_for_an_idle_topic_is_left_to_wait(
    database, drive, tick, monkeypatch, began, max_task_idle_s, is_reported
):
    """Four minutes without an epoch, not all of them its own; three are allowed in addition to the wait."""
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
    found = observed(tick(stalled_sensor([replace(FLIGHTS, application=waiting)])))
    assert bool(found) is is_reported
    assert all("50 records" in sentence and "epoch after 7" in sentence for sentence in found)


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
def test_a_driver_that_hangs_leaves_its_stacks_and_is_killed_after_as_long_again(
    hanging, database, drive, tick, monkeypatch
):
    monkeypatch.setattr("weir.orchestration.thresholds.STALLED_LEAST_S", 0)

    def look(limit_s: float, cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        return tick(stalled_sensor([replace(FLIGHTS, thresholds=Thresholds(stalled_max_s=limit_s))]), cursor)

    drive("dagster run x", hanging.pid)
    assert isinstance(look(0, None), dg.SkipReason), "it is starting"
    database.report_tasks("flights", [task()])
    wait_for_next_millisecond()
    assert isinstance(look(60, None), dg.SkipReason)
    reported = look(0, None)
    assert "its process hangs or is stopped" in observed(reported)[0]
    assert "waits_for_a_job" in reported.asset_events[0].metadata["stacks"].value
    over = look(60, reported.cursor)
    assert (observed(over), over.cursor) == (["over: stalled"], remembered("{}")), "it makes progress again"
    ended = look(0, reported.cursor)
    assert f"process {hanging.pid} was killed" in observed(ended)[0]
    assert hanging.wait() == -signal.SIGKILL
    assert look(0, ended.cursor).cursor == remembered("{}")


def test_a_hanging_driver_that_no_run_started_is_reported_and_left_alone(hanging, database, drive, tick, monkeypatch):
    monkeypatch.setattr("weir.orchestration.thresholds.STALLED_LEAST_S", 0)
    sensor = stalled_sensor([replace(FLIGHTS, thresholds=Thresholds(stalled_max_s=0))])
    drive("weir run", hanging.pid)
    database.report_tasks("flights", [task()])
    wait_for_next_millisecond()
    reported = tick(sensor)
    assert observed(reported)
    assert "weir run started it" in tick(sensor, reported.cursor).skip_message
    assert hanging.poll() is None
