"""Commits that no Dagster run has reported are shown: all that matters, and not too often."""

import json
import time
from functools import partial
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from tests.orchestration.applications import FLIGHTS, START_S
from weir.infra.control import MetricRow
from weir.orchestration.assets.materializations import commit_materializations
from weir.orchestration.checks import light
from weir.orchestration.sensors import commits
from weir.orchestration.sensors.commits import CHECK_AGAIN_S, FOLD_S, LOOK_EVERY_S, commits_sensor, is_due, shown_commit
from weir.pipelines.examples.flights import app
from weir.state.commit.files import write_file

SPECS = {spec.name: spec for spec in app.topology.table_specs()}
INGEST, TABLES, TOPIC = FLIGHTS.ingest, FLIGHTS.tables, FLIGHTS.topics["flights"]


@pytest.fixture
def look(tick):
    """``look()`` is the next tick."""
    sensor, cursors = commits_sensor([FLIGHTS]), [None]

    def once() -> dg.SensorResult | dg.SkipReason:
        answer = tick(sensor, cursors[-1])
        if isinstance(answer, dg.SensorResult):
            cursors.append(answer.cursor)
        return answer

    return once


def record(instance: dg.DagsterInstance, events) -> None:
    for event in events:
        instance.report_runless_asset_event(event)


def updates(warehouse: Path, carriers: list[str], epoch: int):
    """A file of carrier_totals that deletes the carrier ``gone``."""
    return write_file(
        warehouse / app.id,
        SPECS["carrier_totals"],
        pl.DataFrame(
            {
                "carrier": carriers,
                "flights": 1,
                "late": 0,
                "cancelled": 0,
                "_ts": 0,
                "_epoch": epoch,
                "_seq": range(len(carriers)),
                "_deleted": [name == "gone" for name in carriers],
            },
            schema_overrides=SPECS["carrier_totals"].schema,
        ),
    )


def test_what_a_driver_outside_dagster_has_committed_is_shown_with_offsets_and_row_counts(
    committer, settings, commit_of, look, shown
):
    for epoch, carriers in ((1, ["UA", "gone", "AA"]), (2, ["UA"])):
        committer.commit(commit_of(epoch, files=(updates(settings.warehouse, carriers, epoch),)))
    look()
    ingest = shown(INGEST)
    assert (ingest["generation"], ingest["epoch"], ingest["committed_at"]) == (1, 2, START_S)
    assert ingest["offsets"] == {"flights": {"0": 10}}
    assert ingest["total_records_in"] == 10, "the first sub-topology has counted what the second one reads"
    assert ingest["total_late_records"] == 3
    assert shown(TABLES["carrier_totals"])["dagster/row_count"] == 2
    for empty in ("late_departures", "_changelog/hourly", "_changelog/by_carrier", "_dead_letters"):
        assert shown(TABLES[empty])["dagster/row_count"] == 0
    assert shown(TOPIC)["offsets"] == {"0": 10}


def evaluations(answer: dg.SensorResult | dg.SkipReason) -> dict[str, bool]:
    """Whether each check that was reported passed."""
    events = answer.asset_events if isinstance(answer, dg.SensorResult) else ()
    return {each.check_name: each.passed for each in events if isinstance(each, dg.AssetCheckEvaluation)}


def later(monkeypatch, seconds: float) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + seconds)


@pytest.mark.slow
def test_light_checks_come_with_each_commit_that_is_shown_and_when_an_outcome_changes(
    committer, commit_of, drive, look, monkeypatch
):
    """While a driver runs: the limit of late records is one per cent of what was read."""
    drive()
    commit_of = partial(commit_of, at_s=time.time())
    committer.commit(commit_of(1, offset=1_000, late_records=1))
    assert evaluations(look()) == {
        "offsets_continuous": True,
        "late_record_rate": True,
        "dead_letter_rate": True,
        "uncommitted_bytes": True,
        "rows_as_committed": True,
        "quarantine": True,
    }
    committer.commit(commit_of(2, offset=2_000, late_records=1))
    later(monkeypatch, CHECK_AGAIN_S)
    assert isinstance(look(), dg.SkipReason), "nothing more is doubtful, and the commit is not yet due"
    committer.commit(commit_of(3, offset=3_000, late_records=600))
    later(monkeypatch, 1.0)
    assert evaluations(look())["late_record_rate"] is False
    committer.commit(commit_of(4, offset=4_000, late_records=700))
    assert evaluations(look()) == {}, "less than half a minute later"
    later(monkeypatch, CHECK_AGAIN_S)
    assert evaluations(look()) == {}, "they were made, and the same one fails"
    later(monkeypatch, FOLD_S)
    assert evaluations(look())["late_record_rate"] is False


def test_a_check_that_cannot_be_made_keeps_no_commit_from_being_shown(committer, commit_of, look, shown, monkeypatch):
    def fail(*given):
        raise OSError("no such disk")

    monkeypatch.setattr(light, "quarantine_result", fail)
    committer.commit(commit_of(1))
    answer = look()
    assert "quarantine could not be made: no such disk" in answer.skip_reason.skip_message
    assert "offsets_continuous" in evaluations(answer)
    assert shown(INGEST)["epoch"] == 1


@pytest.mark.usefixtures("committer")
def test_what_is_plotted_and_the_last_hour_and_day_come_from_the_drivers_readings(
    committer, commit_of, database, look, shown
):
    """The numbers are of the ten minutes before the newest reading."""
    committer.commit(commit_of(1))
    minute_ms = 60_000
    now_ms = time.time_ns() // 1_000_000 // minute_ms * minute_ms
    for minutes_ago, lag, pace in ((90, 99_000, 50.0), (30, 9000, 50.0), (9, 4000, 2000.0), (0, 250, 1000.0)):
        database.acquire_lease("flights", owner="weir run", pid=1, host="elsewhere", ttl_s=60, take_over=True)
        database.add_metric(
            "flights",
            MetricRow(
                epoch=1,
                committed_epoch=1,
                records_in=10,
                records_per_s=pace,
                lag=lag,
                commit_ms=12.5,
                state_bytes=16384,
                at_ms=now_ms - minutes_ago * minute_ms,
            ),
        )
    look()
    plotted = {
        name: shown(INGEST)[name] for name in ("commit_ms", "records_per_s", "greatest_lag_records", "state_bytes")
    }
    assert plotted == {
        "commit_ms": 12.5,
        "records_per_s": 1500.0,
        "greatest_lag_records": 4000,
        "state_bytes": 16384,
    }
    assert "| lag, records |" in shown(INGEST)["last_hour"]
    assert "| 9,000 |" in shown(INGEST)["last_hour"]
    assert "| 99,000 |" in shown(INGEST)["last_day"]


@pytest.mark.slow
def test_a_commit_is_shown_once(committer, commit_of, look):
    assert isinstance(look(), dg.SkipReason), "nothing is committed yet"
    committer.commit(commit_of(1))
    assert isinstance(look(), dg.SensorResult)
    assert isinstance(look(), dg.SkipReason)
    committer.commit(commit_of(2))
    assert isinstance(look(), dg.SensorResult)


def test_dagster_is_asked_only_when_something_may_be_due(committer, commit_of, look, instance, shown, monkeypatch):
    committer.commit(commit_of(1))
    look()
    asked = []
    monkeypatch.setattr(commits, "shown_commit", lambda *given: asked.append(given) or shown_commit(*given))
    assert isinstance(look(), dg.SkipReason)
    assert asked == []
    instance.wipe_assets([INGEST])
    monkeypatch.setattr(commits, "FOLD_S", 0.0)
    look()
    assert shown(INGEST)["epoch"] == 1, "what others delete in Dagster is shown again, after a while"


def test_what_an_earlier_version_remembered_is_no_hindrance(committer, commit_of, tick, shown):
    committer.commit(commit_of(1))
    for cursor in ("", "1795000000.5"):
        assert isinstance(tick(commits_sensor([FLIGHTS]), json.dumps({"flights": cursor})), dg.SensorResult)
    assert shown(INGEST)["epoch"] == 1


def test_a_commit_that_a_run_has_reported_is_not_shown_again(committer, commit_of, instance, look, shown):
    committer.commit(commit_of(1))
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            INGEST,
            metadata={
                "generation": 1,
                "epoch": 1,
                "committed_at": dg.MetadataValue.timestamp(float(START_S)),
                "ended": "stopped",
            },
        )
    )
    look()
    assert shown(INGEST)["ended"] == "stopped"
    assert isinstance(look(), dg.SkipReason)


def test_the_task_partitions_are_those_of_the_newest_commit(committer, commit_of, instance, look):
    instance.add_dynamic_partitions("weir_tasks", ["flights:0_9", "others:0_9"])
    committer.commit(commit_of(1))
    look()
    assert sorted(instance.get_dynamic_partitions("weir_tasks")) == ["flights:0_0", "flights:1_0", "others:0_9"]


@pytest.mark.slow
@pytest.mark.usefixtures("committer")
def test_two_hours_with_one_commit_per_second_leave_a_hundred_events(settings, instance, commit_of, shown):
    """With a run's own lines, 200 rows are the limit. The last commit is shown at the tick after the driver's end."""
    hours_s, times = 7200, []
    for elapsed in range(0, hours_s + 1, LOOK_EVERY_S):
        now_s = START_S + elapsed
        newest = commit_of(elapsed + 1, at_s=now_s, offset=elapsed + 1)
        shown_before = shown_commit(instance, FLIGHTS)
        if is_due(shown_before, newest, is_running=elapsed < hours_s, now_s=now_s + 0.5):
            record(instance, commit_materializations(FLIGHTS, newest, instance, settings, health={}))
            times.append(elapsed)
    assert len(times) == hours_s / FOLD_S + 1
    assert times[-1] == hours_s
    assert shown(INGEST)["epoch"] == hours_s + 1
    keys = (INGEST, TOPIC, *TABLES.values())
    assert sum(len(instance.fetch_materializations(key, limit=200).records) for key in keys) == 91
