"""Lag makes the sensor ask for what helps against its measured cause: once, with a pause, and with what it brought."""

from __future__ import annotations

import re
from dataclasses import replace

import dagster as dg
import pytest
from sqlalchemy import create_engine, text

from tests.orchestration.applications import FLIGHTS
from tests.orchestration.readings import metric, observed, task
from weir.orchestration.on_lag import OnLag
from weir.orchestration.sensors.lag import lag_sensor
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.operations.actions import actions_of

LIMITS = Thresholds()
MUCH = LIMITS.lag_max_records + 1


@pytest.fixture
def lagging(database, drive):
    """``lagging(lag)``: a driver of which task 0_0 alone lags, because its store is slow."""
    drive()

    def report(lag: int = MUCH, *, restoring: bool = False) -> None:
        database.report_tasks(
            "flights",
            [
                task(
                    lag=lag,
                    positions={"flights": {"0": 9}},
                    status="restoring" if restoring else "running",
                    reason="requested by dagster sensor weir_lag" if restoring else "",
                ),
                task(task="0_1", lag=3, positions={"flights": {"1": 9}}),
            ],
        )
        database.report_readings(
            "flights",
            [
                {
                    "group": "stream-task-metrics",
                    "name": "applied-records-per-s",
                    "tags": {"task-id": name},
                    "value": rate,
                }
                for name, rate in (("0_0", 1_000.0), ("0_1", 9_000.0))
            ],
        )
        database.add_metric("flights", metric(lag=lag))

    return report


def sensor(**on_lag) -> dg.SensorDefinition:
    return lag_sensor([replace(FLIGHTS, on_lag=OnLag(**on_lag))])


def since(settings, seconds: float) -> None:
    """Let so many seconds pass: everything in the control database is that much older."""
    with create_engine(settings.control_database_url).begin() as connection:
        for table, column in (
            ("weir_requests", "requested_at_ms"),
            ("weir_requests", "finished_at_ms"),
            ("weir_metrics", "at_ms"),
        ):
            connection.execute(text(f"UPDATE {table} SET {column} = {column} - {round(1000 * seconds)}"))


def test_without_a_driver_or_without_lag_nothing_is_asked(database, tick, lagging, drive):
    lagging(LIMITS.lag_max_records)
    assert "no lag beyond the limits" in tick(sensor()).skip_message
    database.release(drive(), state="stopped")
    assert "no driver is running" in tick(sensor()).skip_message
    assert database.pending_requests("flights") == []


def test_a_task_whose_store_is_slow_is_restored_in_the_least_busy_slot_and_what_that_brought_is_shown_once(
    database, settings, tick, lagging
):
    lagging()
    asked = tick(sensor()).skip_message
    [request] = database.pending_requests("flights")
    assert (request.kind, request.requested_by) == ("restore", "dagster sensor weir_lag")
    assert request.arguments == {"task": "0_0", "source": "snapshot", "slot": "freest"}
    assert "its store is slow: it writes 1,000 records per second, those of other tasks 9.0 times" in request.reason
    assert "10,001 records are waiting" in request.reason
    assert f"request {request.id}, a restore of task 0_0 in the least busy slot: " in asked
    assert f"request {request.id} waits for the driver" in tick(sensor()).skip_message
    database.finish_request(request.id, "task 0_0 is restoring in slot 1")
    lagging(4_000, restoring=True)
    assert observed(tick(sensor())) == [], "it is too early to tell what it brought"
    since(settings, 5)
    lagging(12)
    since(settings, 60)
    told = tick(sensor())
    [sentence] = observed(told)
    assert sentence.startswith(f"{request.reason}; task 0_0 is restoring in slot 1; lag 10,001 before, 12 ")
    assert re.search(r", 12 \d+ s after$", sentence)
    [event] = told.asset_events
    shown = {name: entry.value for name, entry in event.metadata.items()}
    assert (shown["lag_before"], shown["lag_after"]) == (MUCH, 12)
    assert observed(tick(sensor(), told.cursor)) == []


def test_there_is_a_pause_after_an_action_and_the_same_is_not_repeated_for_a_while(database, settings, tick, lagging):
    def asked() -> list[str]:
        return [request.kind for request in database.requests_by("flights", "dagster sensor ", 0)]

    lagging()
    tick(sensor())
    [request] = database.pending_requests("flights")
    database.finish_request(request.id, "task 0_0 is restoring in slot 1")
    lagging()
    repeated = r"a restore of task 0_0 in the least busy slot was requested \d+ s ago and is not repeated within 600 s"
    assert re.search(repeated, tick(sensor()).skip_message)
    since(settings, 300)
    lagging()
    assert re.search(repeated, _said(tick(sensor())))
    assert asked() == ["restore"]
    since(settings, 300)
    lagging()
    tick(sensor())
    assert asked() == ["restore", "restore"]


def test_after_an_action_another_one_waits_for_the_pause(database, settings, tick, lagging):
    database.finish_request(
        database.request("flights", "pace", by="dagster sensor weir_lag", reason="commits take 40% of the time"),
        "commits every 1 s",
    )
    lagging()
    assert re.search(r"was made \d+ s ago; the next is 60 s after it", tick(sensor()).skip_message)
    since(settings, 61)
    lagging()
    tick(sensor())
    assert [request.kind for request in database.pending_requests("flights")] == ["restore"]


def test_a_cause_that_the_driver_may_do_nothing_about_is_warned_of_with_the_job_and_when_it_is_over(
    database, tick, lagging
):
    lagging()
    warned = tick(sensor(actions=["commits"]))
    [sentence] = observed(warned)
    assert sentence.endswith("times as many; launch weir_restore with the partition flights:0_0")
    assert database.pending_requests("flights") == []
    assert isinstance(tick(sensor(actions=["commits"]), warned.cursor), dg.SkipReason)
    lagging(5)
    assert observed(tick(sensor(actions=["commits"]), warned.cursor)) == ["over: cause of lag"]


def test_what_was_warned_of_is_over_once_the_driver_has_ended(database, drive, tick, lagging):
    lagging()
    warned = tick(sensor(actions=["commits"]))
    assert len(observed(warned)) == 1
    database.release(drive(), state="failed", error="the disk is full")
    over = tick(sensor(actions=["commits"]), warned.cursor)
    assert observed(over) == ["over: cause of lag"]
    assert isinstance(tick(sensor(actions=["commits"]), over.cursor), dg.SkipReason)


def test_a_request_that_the_driver_refuses_is_shown(database, tick, lagging):
    lagging()
    tick(sensor())
    [request] = database.pending_requests("flights")
    database.finish_request(request.id, "task 0_0 has no committed state to restore from yet", failed=True)
    [sentence] = observed(tick(sensor()))
    assert sentence.endswith("to restore from yet; nothing: it was refused")


def test_what_an_action_brought_is_told_a_minute_after_it_was_done_also_once_a_newer_one_was_refused(
    database, settings, tick, lagging
):
    lagging()
    older, newer = (
        database.request("flights", kind, by="dagster sensor weir_lag", reason=f"{kind} help")
        for kind in ("pace", "slots")
    )
    since(settings, 90)
    database.finish_request(newer, "there are 2 slots already", failed=True)
    database.finish_request(older, "commits every 1 s")
    lagging(12)
    first = tick(sensor())
    assert observed(first) == ["slots help; there are 2 slots already; nothing: it was refused"]
    assert isinstance(tick(sensor(), first.cursor), dg.SkipReason), "the older one was just done"
    since(settings, 60)
    second = tick(sensor(), first.cursor)
    [sentence] = observed(second)
    assert re.fullmatch(r"pace help; commits every 1 s; lag 10,001 before, 12 \d+ s after", sentence)
    assert observed(tick(sensor(), second.cursor)) == []


def test_actions_of_other_sensors_are_not_looked_at(database, tick, lagging):
    lagging()
    database.request("flights", "commit", by="dagster sensor weir_uncommitted", reason="much is uncommitted")
    tick(sensor())
    assert [each.kind for each in database.pending_requests("flights")] == ["commit", "restore"]
    assert [each.kind for each in actions_of(database, "flights", "weir_lag")] == ["restore"]
    assert [each.kind for each in actions_of(database, "flights")] == ["restore", "commit"]


def _said(answer: dg.SensorResult | dg.SkipReason) -> str:
    return answer.skip_message if isinstance(answer, dg.SkipReason) else answer.skip_reason.skip_message
