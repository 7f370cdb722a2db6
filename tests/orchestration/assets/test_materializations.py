"""A commit becomes materializations, upstream first."""

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.assets.columns import LINEAGE
from weir.orchestration.assets.materializations import commit_materializations

INGEST, TABLES, TOPIC = FLIGHTS.ingest, FLIGHTS.tables, FLIGHTS.topics["flights"]


@pytest.mark.usefixtures("committer")
def test_a_topic_is_reported_only_when_a_commit_has_read_further_than_dagster_knows_it_to_reach(
    settings, instance, commit_of
):
    instance.report_runless_asset_event(dg.AssetMaterialization(TOPIC, metadata={"offsets": {"0": 10}}))

    def keys(epoch: int, offset: int) -> list[dg.AssetKey]:
        events = commit_materializations(FLIGHTS, commit_of(epoch, offset=offset), instance, settings, health={})
        for event in events:
            instance.report_runless_asset_event(event)
        return [event.asset_key for event in events]

    assert keys(1, 10) == [INGEST, *TABLES.values()]
    assert keys(2, 11) == [TOPIC, INGEST, *TABLES.values()], "upstream first, or Dagster shows the ingest as stale"


@pytest.mark.usefixtures("committer")
def test_outputs_are_reported_with_the_columns_that_theirs_come_from(settings, instance, commit_of):
    events = commit_materializations(FLIGHTS, commit_of(1), instance, settings, health={})
    with_lineage = {event.asset_key for event in events if LINEAGE in event.metadata}
    assert with_lineage == set(FLIGHTS.outputs.values())
