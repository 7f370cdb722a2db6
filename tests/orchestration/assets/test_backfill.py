"""Backfills from Dagster: days, or everything, are one run, which recomputes the same rows as the live run."""

import os
import signal
import threading
from datetime import date

import dagster as dg
import psutil
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from polars.testing import assert_frame_equal

from tests.orchestration.applications import clicks
from tests.waiting import wait_for
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.orchestration.application import weir_assets
from weir.orchestration.definitions import defs
from weir.orchestration.examples.applications import weather_defs
from weir.orchestration.resources import WeirResource, driver_pipes
from weir.pipelines.operations.backfills import backfills, discard
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

BACKFILL = dg.AssetKey(["weather", "backfill"])


def test_a_range_of_days_is_one_run_and_the_days_are_the_applications():
    graph = defs.resolve_asset_graph()
    for application in ("flights", "weather"):
        node = graph.get(dg.AssetKey([application, "backfill"]))
        assert node.backfill_policy == dg.BackfillPolicy.single_run()
        assert node.partitions_def.get_first_partition_key() == "2013-01-01"
        assert node.partitions_def.get_last_partition_key() == "2014-01-01"
        assert node.parent_keys == {dg.AssetKey([application, "topic"])}


def test_an_application_whose_rows_have_no_day_has_no_backfill_asset():
    clicking = weir_assets(clicks("clicking"), "nowhere:app", first_day=date(2024, 1, 1))
    graph = dg.Definitions.merge(
        clicking, dg.Definitions(resources={"weir": WeirResource(), "pipes": driver_pipes()})
    ).resolve_asset_graph()
    assert dg.AssetKey(["clicking", "backfill"]) not in graph.get_all_asset_keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Settings of a folder where the weather was loaded and read, and resources for that folder."""
    settings = Settings(dir=tmp_path_factory.mktemp("backfill") / "weir", slots=2)
    resources = {"weir": WeirResource(dir=str(settings.dir), slots=2), "pipes": driver_pipes()}
    with broker_for(settings):
        assets = [each for each in weather_defs.assets if BACKFILL not in getattr(each, "keys", ())]
        assert dg.materialize(assets, resources=resources).success
        yield settings, resources


def recompute(place, instance: dg.DagsterInstance, config: dict | None = None) -> dg.ExecuteInProcessResult:
    """A run over three days."""
    [asset] = [each for each in weather_defs.assets if BACKFILL in getattr(each, "keys", ())]
    return dg.materialize(
        [asset],
        resources=place[1],
        instance=instance,
        selection=[BACKFILL],
        raise_on_error=False,
        tags={ASSET_PARTITION_RANGE_START_TAG: "2013-03-04", ASSET_PARTITION_RANGE_END_TAG: "2013-03-06"},
        run_config={"ops": {"weather__backfill": {"config": config}}} if config else None,
    )


def terminate(instance: dg.DagsterInstance) -> None:
    """As the UI does it."""
    [run] = instance.get_runs()
    instance.report_run_canceling(run)
    os.kill(os.getpid(), signal.SIGINT)


def kill(instance: dg.DagsterInstance) -> None:
    [worker] = [each for each in psutil.Process().children() if "weir.orchestration.drivers.backfill" in each.cmdline()]
    worker.kill()


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    ("end", "status", "facts", "left"),
    [
        (terminate, dg.DagsterRunStatus.CANCELED, ("the backfill was stopped", "files were removed"), []),
        (
            kill,
            dg.DagsterRunStatus.FAILURE,
            ("the backfill of weather was killed", "`weir backfill list weather`"),
            ["broken off"],
        ),
    ],
)
def test_a_backfill_that_is_ended_says_what_is_left_and_leaves_the_outputs_alone(place, end, status, facts, left):
    settings, _ = place
    table = settings.warehouse / "weather" / "daily_weather"
    before = read_rows(table)

    def end_once_it_runs() -> None:
        wait_for(lambda: [row.state for row in backfills(settings, "weather")] == ["running"], "it runs")
        end(instance)

    with dg.DagsterInstance.ephemeral() as instance:
        threading.Thread(target=end_once_it_runs).start()
        result = recompute(place, instance)
        assert instance.get_run_by_id(result.run_id).status == status
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        assert all(fact in failed.error.message for fact in facts), failed.error.message
        assert not instance.get_materialized_partitions(BACKFILL)
    assert_frame_equal(read_rows(table), before)
    rows = list(backfills(settings, "weather"))
    assert [row.state for row in rows] == left
    for row in rows:
        discard(settings, "weather", row.id)


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_a_backfill_from_a_missing_file_names_it_and_leaves_nothing(place):
    with dg.DagsterInstance.ephemeral() as instance:
        result = recompute(place, instance, {"paths": {"weather": "/nowhere/weather.parquet"}})
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert "/nowhere/weather.parquet" in failed.error.message
    assert list(backfills(place[0], "weather")) == []


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_three_days_are_recomputed_and_swapped_in_by_one_run(place):
    settings, _ = place
    table = settings.warehouse / "weather" / "daily_weather"
    before, cut = read_rows(table), newest_commit(settings.warehouse, "weather").epoch
    with dg.DagsterInstance.ephemeral() as instance:
        result = recompute(place, instance)
        assert result.success
        assert instance.get_materialized_partitions(BACKFILL) == {"2013-03-04", "2013-03-05", "2013-03-06"}
    metadata = {
        name: entry.value
        for name, entry in result.get_asset_materialization_events()[0].materialization.metadata.items()
    }
    assert metadata["swap"].endswith("daily_weather 9 rows")
    assert 26_115 > metadata["records_in"] > 20_000
    after = read_rows(table)
    columns = [name for name in before.columns if name not in ("_epoch", "_seq")]
    assert_frame_equal(after.select(columns).sort(columns), before.select(columns).sort(columns))
    assert after.filter(_epoch=cut).height >= 9
    assert [row.state for row in backfills(settings, "weather")] == ["swapped in"]


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_everything_is_recomputed_and_swapped_in_by_one_run(place):
    settings, resources = place
    table = settings.warehouse / "weather" / "daily_weather"
    before, newest = read_rows(table), newest_commit(settings.warehouse, "weather")
    job = dg.Definitions.merge(weather_defs, dg.Definitions(resources=resources)).resolve_job_def("weather_rebuild")
    result = job.execute_in_process(run_config={"ops": {"weather_compute_everything": {"config": {"swap": True}}}})
    assert result.success
    [output] = result.filter_events(lambda event: event.is_successful_output)
    metadata = {name: entry.value for name, entry in output.event_specific_data.metadata.items()}
    assert metadata["records_in"] == sum(task.totals["records_in"] for task in newest.tasks.values() if task.positions)
    assert "its tasks restore their stores" in metadata["swap"]
    columns = [name for name in before.columns if name not in ("_epoch", "_seq")]
    assert_frame_equal(read_rows(table).select(columns).sort(columns), before.select(columns).sort(columns))
    assert next(row.days for row in backfills(settings, "weather") if row.state == "swapped in") == "everything"
