"""A run talks to its control database on another thread: it never waits, and nothing of what matters is left out."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from tests.orchestration.readings import task
from tests.waiting import wait_for
from weir.infra.control.database import ControlDatabase
from weir.infra.control.guard import DriverControl
from weir.orchestration.sensors.stalled import stall_reason
from weir.pipelines.spark.control import ControlPanel
from weir.pipelines.spark.progress import Progress
from weir.pipelines.tasks.run_metrics import STATE, USED_BYTES, Reading


class SlowControl(DriverControl):
    """Takes its time; ``writing`` is set while it writes a report, until ``go_on`` is."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "app", owner="weir run")
        self.writing, self.go_on = threading.Event(), threading.Event()
        self.lags: list[int] = []

    def report(self, tasks, metric, readings=(), *, is_last=False):
        self.writing.set()
        assert self.go_on.wait(20)
        self.lags.append(metric.lag)
        super().report(tasks, metric, readings, is_last=is_last)


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'control.sqlite'}"


def progress(lag: int, state: str = "running", message: str = "") -> Progress:
    return Progress(
        application="app",
        generation=7,
        epoch=3,
        committed_epoch=2,
        records_in=10,
        lag=lag,
        records_per_s=1.0,
        commit_ms=1.0,
        state=state,
        message=message,
    )


def test_a_run_does_not_wait_for_its_control_database_and_writes_its_newest_report(url):
    control = SlowControl(url)
    panel = ControlPanel(control)
    with panel.serving():
        panel.report(progress(9), [], {})
        assert control.writing.wait(20)
        for lag in range(8, 0, -1):
            panel.report(progress(lag), [], {})
        assert panel.requests() == []
        assert control.lags == []  # all of that while the first is being written
        panel.report(progress(0, "caught_up"), [], {})
        control.go_on.set()
    assert control.lags == [9, 0]
    status = ControlDatabase(url).application_status("app")
    assert status.state == "stopping"


def test_each_request_reaches_the_driver_once_and_each_answer_its_sender(url):
    panel, other = ControlPanel(DriverControl(url, "app", owner="weir run")), ControlDatabase(url)
    found = []
    with panel.serving():
        asked = [other.request("app", "commit", by="someone") for _ in range(3)]
        until = time.monotonic() + 20
        while len(found) < 3 and time.monotonic() < until:
            found += panel.requests()
        time.sleep(0.3)  # they are still unanswered, and looked for again
        found += panel.requests()
        for request in found:
            panel.finish(request.id, f"answer to {request.id}")
    assert [request.id for request in found] == asked
    assert [other.wait_request(each, timeout_s=0).result for each in asked] == [f"answer to {each}" for each in asked]


def test_why_a_driver_waits_is_known_until_it_no_longer_does_or_has_ended(url):
    control, database = DriverControl(url, "app", owner="weir run"), ControlDatabase(url)
    waits_for = lambda: database.application_status("app").waits_for
    for message in ("7 bytes wait for sinks", "", "no broker"):
        panel = ControlPanel(control)
        with panel.serving():
            panel.report(progress(9, "waiting", message), [], {})
        assert waits_for() == message
    control.release()
    assert waits_for() == ""


BEAT_S, LIMIT_S, PATIENCE_S = 0.05, 1.0, 60.0


def test_a_reading_has_the_size_of_all_stores_once_one_is_known(url):
    database = ControlDatabase(url)
    used = [
        Reading(group=STATE, name=name, tags={"task-id": task}, value=value)
        for name, task, value in ((USED_BYTES, "0_0", 4096.0), (USED_BYTES, "1_0", 8192.0), ("num-readers", "0_0", 2.0))
    ]
    panel = ControlPanel(DriverControl(url, "app", owner="weir run"))
    with panel.serving():
        panel.report(progress(1), [], {})
        wait_for(lambda: database.application_status("app").metric, "the first report is written")
        assert database.application_status("app").metric.state_bytes is None
        panel.report(replace(progress(1), readings=used), [], {})
    assert database.application_status("app").metric.state_bytes == 12_288


@pytest.mark.parametrize(
    ("gets_on", "is_stalled"),
    [
        (lambda panel: None, True),
        (lambda panel: panel.goes_on(), False),
        (lambda panel: panel.requests(), False),
        (lambda panel: panel.report(progress(1), [], {}), False),
    ],
    ids=["hangs", "is at a commit of many steps", "waits", "reports"],
)
def test_heartbeats_come_by_themselves_and_readings_from_a_driver_that_goes_on(url, monkeypatch, gets_on, is_stalled):
    """What the sensor makes of a driver over twice its limit and more; the tasks are there from the first report on."""
    monkeypatch.setattr("weir.infra.control.guard.HEARTBEAT_EVERY_S", BEAT_S)
    monkeypatch.setattr("weir.pipelines.spark.control.READING_EVERY_S", BEAT_S)
    database = ControlDatabase(url)
    control = DriverControl(url, "app", owner="weir run")
    panel, found = ControlPanel(control), set[str | None]()
    with panel.serving():
        panel.report(progress(1), [], {})
        wait_for(lambda: database.application_status("app").metric, "the first report is written")
        database.report_tasks("app", [task()])
        ends_s = time.monotonic() + (PATIENCE_S if is_stalled else 2.5 * LIMIT_S)
        while time.monotonic() < ends_s and not (is_stalled and found - {None}):
            gets_on(panel)
            status = database.application_status("app")
            now_ms = time.time_ns() // 1_000_000
            found.add(stall_reason(status, [], LIMIT_S, LIMIT_S, now_ms))
            time.sleep(BEAT_S)
    reasons = [reason for reason in found if reason]
    assert bool(reasons) is is_stalled
    assert all("it hangs in an epoch or a commit" in reason for reason in reasons)


def test_no_reading_is_younger_than_the_moment_from_which_the_driver_hangs(url, monkeypatch):
    """It goes on once more after its report, and the next reading would be due only while it hangs already."""
    monkeypatch.setattr("weir.infra.control.guard.HEARTBEAT_EVERY_S", BEAT_S)
    monkeypatch.setattr("weir.pipelines.spark.control.READING_EVERY_S", 2 * BEAT_S)
    database = ControlDatabase(url)
    panel = ControlPanel(DriverControl(url, "app", owner="weir run"))
    with panel.serving():
        for wait_s in (BEAT_S, 3 * BEAT_S):
            panel.report(progress(1), [], {})
            time.sleep(wait_s)
            panel.goes_on()
            hangs_from_ms = time.time_ns() // 1_000_000
            time.sleep(10 * BEAT_S)
            status = database.application_status("app")
            assert status.metric.at_ms <= hangs_from_ms < status.heartbeat_at_ms
