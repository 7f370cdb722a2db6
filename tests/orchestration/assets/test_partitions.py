"""Partitions follow the commits: one per task, and one per day that a backfill can be asked for."""

from datetime import date

import pytest

from tests.orchestration.applications import FLIGHTS, clicks
from weir.orchestration.application import supervise
from weir.orchestration.assets import partitions
from weir.orchestration.assets.partitions import update_partitions
from weir.orchestration.sensors.commits import commits_sensor
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations.days import HeldDays


def test_the_task_partitions_are_updated_when_a_run_ends(settings, committer, commit_of, instance):
    update_partitions(FLIGHTS, settings, instance)
    assert instance.get_dynamic_partitions("weir_tasks") == [], "nothing is committed yet"
    instance.add_dynamic_partitions("weir_tasks", ["flights:0_9", "others:0_9"])
    committer.commit(commit_of(1))
    update_partitions(FLIGHTS, settings, instance)
    assert sorted(instance.get_dynamic_partitions("weir_tasks")) == ["flights:0_0", "flights:1_0", "others:0_9"]


@pytest.fixture
def offered(settings, committer, commit_of, instance, monkeypatch):
    """``offered(first, end, is_of_topics)`` are the days that Dagster offers once these are held."""
    committer.commit(commit_of(1))

    def update(first: str, end: str, *, is_of_topics: bool = True) -> list[str]:
        days = Days(first=date.fromisoformat(first), end=date.fromisoformat(end))
        held = HeldDays(days=days if days.first < days.end else None, is_of_topics=is_of_topics)
        monkeypatch.setattr(partitions, "held_days", lambda *asked: held)
        update_partitions(FLIGHTS, settings, instance)
        return [day.removeprefix("2024-02-") for day in instance.get_dynamic_partitions("flights_days")]

    return update


def test_days_come_and_go_with_the_records_and_stay_in_order(offered):
    assert offered("2024-02-03", "2024-02-05") == ["03", "04"]
    assert offered("2024-02-04", "2024-02-07") == ["04", "05", "06"], "an earlier one has expired"
    assert offered("2024-02-02", "2024-02-06") == ["02", "03", "04", "05"], "an archive has been loaded"
    assert offered("2024-02-02", "2024-02-02") == []


def test_no_day_goes_while_only_the_rows_can_tell(offered):
    assert offered("2024-02-03", "2024-02-05") == ["03", "04"]
    assert offered("2024-02-04", "2024-02-06", is_of_topics=False) == ["03", "04", "05"]
    assert offered("2024-02-02", "2024-02-02", is_of_topics=False) == ["03", "04", "05"]


def test_no_day_is_asked_about_outside_of_those_that_are_allowed(settings, committer, commit_of, instance, monkeypatch):
    asked = []
    monkeypatch.setattr(
        partitions, "held_days", lambda *given: asked.append(given[-1]) or HeldDays(days=None, is_of_topics=True)
    )
    committer.commit(commit_of(1))
    flights = supervise(FLIGHTS.application, first_day=date(2013, 5, 1), end_day=date(2013, 6, 1))
    update_partitions(flights, settings, instance)
    assert asked == [Days(first=date(2013, 5, 1), end=date(2013, 6, 1))]


def test_the_sensor_offers_them_with_the_first_commit_that_it_shows(
    settings, committer, commit_of, instance, tick, monkeypatch
):
    days = [Days(first=date(2024, 2, 3), end=date(2024, 2, 4)), None]
    monkeypatch.setattr(partitions, "held_days", lambda *asked: HeldDays(days=days.pop(), is_of_topics=True))
    committer.commit(commit_of(1))
    sensor = commits_sensor([FLIGHTS])
    tick(sensor)
    assert instance.get_dynamic_partitions("flights_days") == []
    tick(sensor)
    assert instance.get_dynamic_partitions("flights_days") == ["2024-02-03"], "none was known, so it asks again"
    tick(sensor)
    assert days == [], "nothing has changed, so it does not ask"


def test_an_application_whose_rows_have_no_day_asks_nobody(settings, instance, monkeypatch):
    monkeypatch.setattr(partitions, "held_days", lambda *asked: pytest.fail("asked"))
    clicking = supervise(clicks("clicking"), "nowhere:app")
    assert partitions.day_partition_changes(clicking, None, instance, settings) == []
