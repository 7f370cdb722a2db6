"""The backfill asset: days from Dagster's dialogue are one run, which leaves what the live run had."""

from datetime import date

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from polars.testing import assert_frame_equal

from infra.kafka.broker import broker_for
from infra.settings import Settings
from orchestration.application import weir_assets
from orchestration.definitions import defs
from orchestration.examples import weather_defs
from orchestration.resources import WeirResource, driver_pipes
from pipelines.cli.drive_backfill import backfills
from state.commit.protocol import newest_commit
from state.commit.tables import read_rows
from tests.orchestration.test_definitions import clicks

BACKFILL = dg.AssetKey(["weather", "backfill"])


def test_a_range_of_days_is_one_run_and_days_are_those_of_the_application():
    graph = defs.resolve_asset_graph()
    for application in ("flights", "weather"):
        node = graph.get(dg.AssetKey([application, "backfill"]))
        assert node.backfill_policy == dg.BackfillPolicy.single_run()
        assert node.partitions_def.get_first_partition_key() == "2013-01-01"
        assert node.partitions_def.get_last_partition_key() == "2014-01-01"
        assert node.parent_keys == {dg.AssetKey([application, "topic"])}


def test_an_application_without_rows_of_days_has_no_backfill():
    clicking = weir_assets(clicks("clicking"), "nowhere:app", first_day=date(2024, 1, 1))
    graph = dg.Definitions.merge(clicking, dg.Definitions(
        resources={"weir": WeirResource(), "pipes": driver_pipes()})).resolve_asset_graph()
    assert dg.AssetKey(["clicking", "backfill"]) not in graph.get_all_asset_keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Settings of a folder where the weather was loaded and read, and the resources that lead there."""
    settings = Settings(dir=tmp_path_factory.mktemp("backfill") / "weir", slots=2)
    resources = {"weir": WeirResource(dir=str(settings.dir), slots=2), "pipes": driver_pipes()}
    with broker_for(settings):
        assets = [each for each in weather_defs.assets if BACKFILL not in getattr(each, "keys", ())]
        assert dg.materialize(assets, resources=resources).success
        yield settings, resources


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_three_days_are_computed_anew_and_swapped_in_by_one_run(place):
    settings, resources = place
    table = settings.warehouse / "weather" / "daily_weather"
    before, cut = read_rows(table), newest_commit(settings.warehouse, "weather").epoch
    [asset] = [each for each in weather_defs.assets if BACKFILL in getattr(each, "keys", ())]
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([asset], resources=resources, instance=instance, selection=[BACKFILL], tags={
            ASSET_PARTITION_RANGE_START_TAG: "2013-03-04", ASSET_PARTITION_RANGE_END_TAG: "2013-03-06"})
        assert result.success
        assert instance.get_materialized_partitions(BACKFILL) == {"2013-03-04", "2013-03-05", "2013-03-06"}
    metadata = {name: entry.value for name, entry
                in result.get_asset_materialization_events()[0].materialization.metadata.items()}
    assert metadata["swap"].endswith("daily_weather 9 rows")
    assert 26_115 > metadata["records_in"] > 20_000
    after = read_rows(table)
    columns = [name for name in before.columns if name not in ("_epoch", "_seq")]
    assert_frame_equal(after.select(columns).sort(columns), before.select(columns).sort(columns))
    assert after.filter(_epoch=cut).height >= 9
    assert [row.state for row in backfills(settings, "weather")] == ["swapped in"]
