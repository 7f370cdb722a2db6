"""Types of columns in words that an operator knows, and the columns that they come from."""

import base64
import re

import dagster as dg
import polars as pl
import pytest
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # has no public name

from tests.orchestration.applications import FLIGHTS
from weir import Application, Int64, StreamsBuilder, String
from weir.orchestration.application import supervise
from weir.orchestration.assets.columns import LINEAGE, column_lineage, type_words, with_lineage
from weir.orchestration.definitions import defs


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (pl.String(), "text"),
        (pl.Int64(), "integer"),
        (pl.Int32(), "integer (32 bits)"),
        (pl.UInt8(), "integer (8 bits, not negative)"),
        (pl.Float64(), "number"),
        (pl.Float32(), "Float32"),
        (pl.Boolean(), "true or false"),
        (pl.Binary(), "bytes"),
        (pl.Date(), "date"),
        (pl.Datetime("ms", "UTC"), "time (ms, UTC)"),
        (pl.Datetime("us"), "time (us, no time zone)"),
        (pl.Duration("ms"), "duration (ms)"),
        (pl.Decimal(10, 2), "decimal (10 digits, 2 after the point)"),
        (pl.List(pl.String()), "list of text"),
        (pl.Struct({"key": pl.String(), "value": pl.Binary()}), "record (key: text, value: bytes)"),
    ],
)
def test_types_are_in_words(dtype, words):
    assert type_words(dtype) == words


def test_the_ingest_shows_its_topology_as_a_picture_and_in_words():
    [spec] = [spec for spec in defs.resolve_all_asset_specs() if spec.key.path == ["flights", "ingest"]]
    shown = spec.metadata["topology"].value
    assert "Source: KSTREAM-SOURCE-0000000000 (topics: [flights])" in shown
    (drawn,) = re.findall(r"!\[topology\]\(data:image/svg\+xml;base64,([^)]+)\)", shown)
    assert base64.b64decode(drawn).startswith(b"<svg xmlns=")


def test_an_output_shows_the_columns_of_topics_that_its_own_come_from():
    found = column_lineage(FLIGHTS)
    assert set(found) == set(FLIGHTS.outputs), "of changelogs and dead letters nothing is said"
    origins = {
        column: [(each.asset_key, each.column_name) for each in origins]
        for column, origins in found["late_departures"].deps_by_column.items()
    }
    topic = FLIGHTS.topics["flights"]
    assert origins == {
        "carrier": [(topic, "carrier")],
        "origin": [(topic, "origin")],
        "late": [(topic, "dep_delay")],
        "mean_delay": [(topic, "dep_delay")],
        "max_delay": [(topic, "dep_delay")],
        "cancelled": [(topic, "dep_time")],
    }


def test_nothing_is_said_of_columns_from_topics_that_are_no_assets():
    builder = StreamsBuilder()
    names = builder.global_table("names", key=String("user"), value=String("name"), store="names")
    orders = builder.stream("orders", key=String("user"), value=Int64("cents"))
    orders.join(names, key="user").to_delta("named")
    named = column_lineage(supervise(Application("shop", builder), "nowhere:app"))["named"]
    assert sorted(named.deps_by_column) == ["cents", "user"]


def test_what_a_driver_reports_of_an_output_gets_the_lineage_and_keeps_the_rest():
    ingest, output = FLIGHTS.ingest, FLIGHTS.outputs["late_departures"]
    reported = [
        dg.AssetMaterialization(key, metadata={"epoch": 3}, tags={DATA_VERSION_TAG: "7"}) for key in (ingest, output)
    ]
    first, second = with_lineage(FLIGHTS, reported)
    assert first is reported[0]
    assert (second.asset_key, second.tags) == (output, {DATA_VERSION_TAG: "7"})
    values = {name: entry.value for name, entry in second.metadata.items()}
    assert values == {"epoch": 3, LINEAGE: column_lineage(FLIGHTS)["late_departures"]}
