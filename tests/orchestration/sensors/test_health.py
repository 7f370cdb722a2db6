"""Warnings about a running driver: each once when it begins, again after the cooldown, and once when it is over."""

from dataclasses import replace

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS
from tests.orchestration.readings import metric, minutes, observed, running, task
from weir.orchestration.sensors.health import health_sensor, repairs, too_much_lag
from weir.orchestration.thresholds import Thresholds

LIMITS = Thresholds()


@pytest.mark.slow
def test_lag_is_reported_when_it_begins_and_when_it_is_over(database, drive, tick):
    sensor = health_sensor([FLIGHTS])
    drive()
    database.report_tasks("flights", [task()])
    database.add_metric("flights", metric(lag=LIMITS.lag_max_records))
    assert isinstance(tick(sensor), dg.SkipReason)
    database.add_metric("flights", metric(lag=LIMITS.lag_max_records + 1))
    began = tick(sensor)
    [sentence] = observed(began)
    assert "10,001 records" in sentence
    assert "more than 10,000" in sentence
    assert isinstance(tick(sensor, began.cursor), dg.SkipReason)
    database.add_metric("flights", metric(lag=3))
    over = tick(sensor, began.cursor)
    assert observed(over) == ["over: lag in records"]
    assert isinstance(tick(sensor, over.cursor), dg.SkipReason)


def test_every_warning_is_over_once_the_driver_has_ended(database, drive, tick):
    sensor, lease = health_sensor([FLIGHTS]), drive()
    database.report_tasks("flights", [task(status="restoring", reason="checksum differs")])
    database.add_metric("flights", metric(lag=LIMITS.lag_max_records + 1))
    began = tick(sensor)
    assert len(observed(began)) == 2
    database.release(lease, state="failed", error="the disk is full")
    over = tick(sensor, began.cursor)
    assert sorted(observed(over)) == ["over: lag in records", "over: task 0_0 restores"]
    assert isinstance(tick(sensor, over.cursor), dg.SkipReason)


def test_a_condition_that_lasts_is_reported_again_after_the_cooldown(database, drive, tick):
    drive()
    database.report_tasks("flights", [task(status="restoring", reason="checksum differs")])
    database.add_metric("flights", metric())
    began = tick(health_sensor([FLIGHTS]))
    [sentence] = observed(began)
    assert "task 0_0 " in sentence
    assert "checksum differs" in sentence
    assert isinstance(tick(health_sensor([FLIGHTS]), began.cursor), dg.SkipReason)
    impatient = health_sensor([replace(FLIGHTS, thresholds=Thresholds(cooldown_s=0))])
    assert observed(tick(impatient, began.cursor)) == [sentence]


def test_a_task_in_doubt_is_warned_of():
    doubtful = running(tasks=(task(status="corrupted", reason="key user='ann' differs"),))
    assert repairs(doubtful) == {
        "task 0_0 corrupted": "task 0_0 is corrupted and processes nothing: key user='ann' differs"
    }


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
def test_growing_lag_and_lag_in_seconds_are_distinguished(lags, pace, expected):
    found = too_much_lag(lags[-1], minutes([lags[-1]], pace=pace), lags, LIMITS)
    assert set(found) == expected
