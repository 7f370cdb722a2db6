"""Partitions follow the commits: one per task, and one per day that a backfill can be asked for."""

import time
from collections.abc import Callable
from datetime import date

import dagster as dg
import pytest
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from tests.orchestration.applications import FLIGHTS, START_S, clicks
from weir.orchestration.application import supervise
from weir.orchestration.assets import partitions
from weir.orchestration.assets.partitions import update_partitions
from weir.orchestration.sensors.commits import commits_sensor
from weir.pipelines.backfill.shadow import Days


def test_the_task_partitions_are_updated_when_a_run_ends(settings, committer, commit_of, instance):
    update_partitions(FLIGHTS, settings, instance)
    assert instance.get_dynamic_partitions("weir_tasks") == [], "nothing is committed yet"
    instance.add_dynamic_partitions("weir_tasks", ["flights:0_9", "others:0_9"])
    committer.commit(commit_of(1))
    update_partitions(FLIGHTS, settings, instance)
    assert sorted(instance.get_dynamic_partitions("weir_tasks")) == ["flights:0_0", "flights:1_0", "others:0_9"]


@pytest.fixture
def offered(settings, committer, commit_of, instance, monkeypatch):
    """``offered(first, end)`` are the days of February that Dagster offers once these are held."""
    committer.commit(commit_of(1))

    def update(first: int, end: int) -> list[int]:
        held = Days(first=date(2024, 2, first), end=date(2024, 2, end)) if first < end else None
        monkeypatch.setattr(partitions, "held_days", lambda *asked: held)
        update_partitions(FLIGHTS, settings, instance)
        return [date.fromisoformat(day).day for day in instance.get_dynamic_partitions("flights_days")]

    return update


def test_days_are_added_in_order_and_none_goes(offered):
    assert offered(3, 5) == [3, 4]
    assert offered(4, 7) == [3, 4, 5, 6], "an earlier one has expired"
    assert offered(2, 6) == [2, 3, 4, 5, 6], "an archive has been loaded"
    assert offered(2, 2) == [2, 3, 4, 5, 6], "everything has expired"


def test_the_days_have_no_gap_since_dagster_takes_neighbours_for_a_range(offered):
    assert offered(3, 4) == [3]
    assert offered(6, 7) == [3, 4, 5, 6]


def recompute(instance: dg.DagsterInstance, meanwhile: Callable[[], object]) -> dg.ExecuteInProcessResult:
    """A run over two days, with something done while it runs."""

    @dg.asset(
        key=FLIGHTS.backfill,
        partitions_def=FLIGHTS.day_partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def backfill() -> dg.MaterializeResult[None]:
        meanwhile()
        return dg.MaterializeResult(metadata={"swap": "made"})

    days = {ASSET_PARTITION_RANGE_START_TAG: "2024-02-03", ASSET_PARTITION_RANGE_END_TAG: "2024-02-04"}
    return dg.materialize([backfill], instance=instance, tags=days)


def test_a_run_over_days_ends_well_although_the_first_expires_meanwhile(offered, instance):
    offered(3, 6)
    assert recompute(instance, lambda: offered(4, 6)).success
    assert instance.get_materialized_partitions(FLIGHTS.backfill) == {"2024-02-03", "2024-02-04"}


def test_the_order_is_made_anew_only_once_no_run_over_days_is_unfinished(offered, instance):
    offered(3, 6)
    seen = []
    assert recompute(instance, lambda: seen.append(offered(1, 6))).success
    assert seen == [[3, 4, 5]]
    assert offered(1, 6) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("tags", "assets", "days"),
    [
        ({PARTITION_NAME_TAG: "2024-02-03"}, {FLIGHTS.backfill}, [3]),
        ({PARTITION_NAME_TAG: "2024-02-03"}, None, [3]),
        ({PARTITION_NAME_TAG: "2024-02-03"}, {dg.AssetKey(["other", "backfill"])}, [2, 3]),
        ({PARTITION_NAME_TAG: "flights"}, None, [2, 3]),
        (FLIGHTS.tags, {FLIGHTS.ingest}, [2, 3]),
    ],
    ids=["of the asset", "by a job of all its assets", "of another application", "of a shared job", "of the ingest"],
)
def test_only_runs_over_the_applications_days_are_waited_for(offered, instance, tags, assets, days):
    offered(3, 4)
    run = dg.DagsterRun(
        job_name="any",
        status=dg.DagsterRunStatus.NOT_STARTED,
        tags=tags,
        asset_selection=None if assets is None else frozenset(assets),
    )
    instance.add_run(run)
    assert offered(2, 4) == days


def test_days_of_applications_whose_ids_differ_by_a_dash_are_kept_apart():
    names = [supervise(clicks(id_), "nowhere:app").day_partitions.name for id_ in ("a-b", "a_b")]
    assert names == ["a-b_days", "a_b_days"]


def test_no_day_is_asked_about_outside_of_those_that_are_allowed(settings, committer, commit_of, instance, monkeypatch):
    asked = []
    monkeypatch.setattr(partitions, "held_days", lambda *given: asked.append(given[-1]))
    committer.commit(commit_of(1))
    flights = supervise(FLIGHTS.application, first_day=date(2013, 5, 1), end_day=date(2013, 6, 1))
    update_partitions(flights, settings, instance)
    assert asked == [Days(first=date(2013, 5, 1), end=date(2013, 6, 1))]


@pytest.fixture
def look(instance, tick, monkeypatch):
    """``look(days, now_s)`` is a tick at that time while these days are held; whether it has asked for them."""
    sensor, cursors = commits_sensor([FLIGHTS]), [None]

    def once(days: Days | None, now_s: float) -> bool:
        asked = []
        monkeypatch.setattr(partitions, "held_days", lambda *given: asked.append(given) or days)
        monkeypatch.setattr(time, "time", lambda: now_s)
        answer = tick(sensor, cursors[-1])
        if isinstance(answer, dg.SensorResult):
            cursors.append(answer.cursor)
        return bool(asked)

    return once


DAY = Days(first=date(2024, 2, 3), end=date(2024, 2, 4))


def test_while_no_day_is_known_the_sensor_asks_with_each_commit_or_every_five_minutes(
    committer, commit_of, instance, look
):
    committer.commit(commit_of(1))
    now_s = START_S + 3600.0
    assert look(None, now_s), "the first commit"
    assert not look(DAY, now_s + 10)
    committer.commit(commit_of(2))
    assert look(None, now_s + 20), "a new commit"
    assert not look(DAY, now_s + 319)
    assert instance.get_dynamic_partitions("flights_days") == []
    assert look(DAY, now_s + 320)
    assert instance.get_dynamic_partitions("flights_days") == ["2024-02-03"]
    assert not look(DAY, now_s + 1000), "a day is known"


def test_the_sensor_asks_again_for_days_that_wait_for_a_run(committer, commit_of, instance, look):
    instance.add_dynamic_partitions("flights_days", ["2024-02-04"])
    run = dg.DagsterRun(job_name="any", status=dg.DagsterRunStatus.STARTED, tags={PARTITION_NAME_TAG: "2024-02-04"})
    instance.add_run(run)
    committer.commit(commit_of(1))
    now_s = START_S + 3600.0
    assert look(DAY, now_s)
    assert instance.get_dynamic_partitions("flights_days") == ["2024-02-04"]
    assert not look(DAY, now_s + 299)
    instance.report_run_canceled(run)
    assert look(DAY, now_s + 300)
    assert instance.get_dynamic_partitions("flights_days") == ["2024-02-03", "2024-02-04"]
    assert not look(DAY, now_s + 1000)


def test_an_application_whose_rows_have_no_day_asks_nobody(settings, instance, monkeypatch):
    monkeypatch.setattr(partitions, "held_days", lambda *asked: pytest.fail("asked"))
    clicking = supervise(clicks("clicking"), "nowhere:app")
    assert partitions.day_partition_changes(clicking, None, instance, settings) == []
