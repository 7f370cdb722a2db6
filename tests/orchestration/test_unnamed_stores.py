"""The changelog of a store without a name keeps its asset's reports when the store's number changes."""

from __future__ import annotations

import json

import dagster as dg
import pytest

from tests.pipelines.spark.inline import Place
from tests.pipelines.spark.unnamed import Held, Program, pieces, topics
from weir.orchestration.assets.materializations import commit_materializations
from weir.orchestration.drivers import ingest
from weir.orchestration.supervised import Supervised
from weir.pipelines.spark.progress import RunSummary
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import count_rows
from weir.state.types import CHANGELOG_FOLDER

SIDES = (Held("left", "left_out"), Held("right", "right_out"))


@pytest.fixture
def place(settings):
    """Two suppressions without names have run, and run again with three operators in front."""
    place = Place(Program(SIDES).application(), topics(), settings.dir)
    place.run()
    place.application = Program(SIDES, filters=3).application()
    place.topics.rows["left", 0] += pieces(21, 5, "l-")
    place.run()
    return place


@pytest.fixture
def supervised(place):
    keys = {topic: dg.AssetKey(topic) for topic in place.application.topology.topics()}
    return Supervised(application=place.application, reference="tests:app", topics=keys)


def committed_rows(settings, supervised):
    """The rows of each changelog that the newest commit has, in the order of the names' numbers."""
    newest = newest_commit(settings.warehouse, supervised.id)
    tables = sorted(name for name in newest.table_versions if name.startswith(CHANGELOG_FOLDER))
    return [count_rows(settings.warehouse / supervised.id / name, read_at_most=1_000) for name in tables]


def changelogs(supervised):
    return [supervised.tables[name] for name in sorted(supervised.tables) if name.startswith(CHANGELOG_FOLDER)]


def test_a_commit_materializes_its_changelog(settings, instance, supervised):
    newest = newest_commit(settings.warehouse, supervised.id)
    events = commit_materializations(supervised, newest, instance, settings, health={})
    rows = {
        event.asset_key: event.metadata["dagster/row_count"].value
        for event in events
        if event.metadata.get("dagster/row_count")
    }
    assert [rows[key] for key in changelogs(supervised)] == committed_rows(settings, supervised)


def test_a_driver_reports_it(settings, supervised, monkeypatch):
    class Pipes:
        def get_extra(self, name):
            return {"reference": "tests:app", "ingest": "ingest", "tables": tables}[name]

    tables = {name: key.to_user_string() for name, key in supervised.tables.items() if "dead" not in name}
    monkeypatch.setattr(ingest, "load_reference", lambda reference: supervised.application)
    summary = RunSummary(
        application=supervised.id,
        generation=2,
        epoch=2,
        commits=1,
        records_in=5,
        seconds=1.0,
        reason="caught_up",
        totals={},
    )
    made = ingest._materializations(Pipes(), settings, summary)
    reported = {each["asset"]: each["metadata"] for each in made}
    rows = [reported[key.to_user_string()]["dagster/row_count"] for key in changelogs(supervised)]
    assert rows == committed_rows(settings, supervised)
    assert json.dumps(made)
