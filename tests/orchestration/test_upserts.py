"""An output with one row per key in Dagster: one asset under the output's name, with the columns that people read."""

from __future__ import annotations

import json
from threading import Event

import dagster as dg

from tests.pipelines.spark import countries_page as page
from tests.pipelines.spark.inline import Place, Topics
from weir.orchestration.assets.ingest import ingest_assets
from weir.orchestration.assets.materializations import commit_materializations
from weir.orchestration.supervised import Supervised
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.commit.protocol import newest_commit

SHOP = Supervised(application=page.program(), reference="tests:app", topics={"orders": dg.AssetKey(["shop", "topic"])})
COUNTRIES = dg.AssetKey(["shop", "countries"])


def test_the_asset_has_the_name_of_the_output_and_the_columns_that_people_read():
    assert SHOP.tables["_updates/countries"] == COUNTRIES
    assert list(SHOP.outputs.values()) == [COUNTRIES]
    (spec,) = (spec for spec in ingest_assets(SHOP).specs if spec.key == COUNTRIES)
    columns = spec.metadata["dagster/column_schema"].columns
    assert [column.name for column in columns] == ["country", "orders", "cents", "_ts"]
    assert [column.name for column in columns if "weir/key" in column.tags] == ["country"]
    assert spec.description.startswith("The Delta table countries: one row per key")


def test_a_commit_materializes_it_with_its_rows_and_where_it_is(settings, instance):
    topics = Topics({("orders", 0): []})
    for country, cents in page.ORDERS:
        topics.rows["orders", 0].append((country.encode(), json.dumps({"cents": cents}).encode(), page.FIRST_MS))
    place = Place(SHOP.application, topics, settings.dir)
    place.driver().run(Event(), until_caught_up=True)
    refresh_at_rest(settings.warehouse / "shop", application_tables(SHOP.application.topology), "shop")
    newest = newest_commit(settings.warehouse, "shop")
    events = commit_materializations(SHOP, newest, instance, settings, health={})
    (event,) = (event for event in events if event.asset_key == COUNTRIES)
    assert event.metadata["dagster/row_count"].value == 5
    assert event.metadata["dagster/uri"].value == str(settings.warehouse / "shop" / "countries")
    assert event.tags["dagster/data_version"] == str(newest.table_versions["_updates/countries"])
