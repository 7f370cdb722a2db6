"""What jobs do beside the ingest is in the application's graph, which has no loose ends."""

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS, clicks
from weir import Application, StreamsBuilder, String
from weir.orchestration.application import definitions, supervise
from weir.orchestration.supervised import OWN_ASSETS


def edges(defs: dg.Definitions, application: str) -> dict[str, set[str]]:
    """The names of each asset's parents, below the application's group."""
    graph = defs.resolve_asset_graph()
    group = application.replace("-", "_")
    keys = [key for key in graph.get_all_asset_keys() if graph.get(key).group_name == group]

    def name(key: dg.AssetKey) -> str:
        return "/".join(key.path[1:] if key.path[0] == application else key.path)

    return {name(key): {name(parent) for parent in graph.get(key).parent_keys} for key in keys}


def test_the_graph_leads_from_the_topic_over_ingest_and_tables_to_what_jobs_do_with_them():
    tables = {"late_departures", "carrier_totals", "changelog/hourly", "changelog/by_carrier", "dead_letters"}
    assert edges(definitions(FLIGHTS), "flights") == {
        "ingest": {"topic"},
        **{table: {"ingest"} for table in tables},
        "backfill": {"topic", "late_departures"},
        "compaction": tables,
        "checkpoints": {"changelog/hourly", "changelog/by_carrier"},
        "positions": {"ingest"},
    }


def test_two_applications_have_graphs_of_their_own():
    both = definitions(*(supervise(clicks(id_), "nowhere:app") for id_ in ("a-b", "other")))
    for application in ("a-b", "other"):
        assert edges(both, application) == {
            "ingest": {"kafka/clicks"},
            "changelog/counts": {"ingest"},
            "dead_letters": {"ingest"},
            "compaction": {"changelog/counts", "dead_letters"},
            "checkpoints": {"changelog/counts"},
            "positions": {"ingest"},
        }


def test_without_a_changelog_checkpoints_are_the_ingests():
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=String("page")).to_delta("pages")
    defs = definitions(supervise(Application("shop", builder), "nowhere:app"))
    assert edges(defs, "shop")["checkpoints"] == {"ingest"}


@pytest.mark.parametrize("name", [*OWN_ASSETS, "dead_letters"])
def test_an_output_with_the_name_of_another_asset_has_a_key_of_its_own(name):
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=String("page")).to_delta(name)
    shop = supervise(Application("shop", builder), "nowhere:app")
    assert shop.tables[name] == dg.AssetKey(["shop", "output", name])
    assert edges(definitions(shop), "shop")[f"output/{name}"] == {"ingest"}


def test_what_is_materialized_by_jobs_names_them():
    defs = definitions(FLIGHTS)
    jobs = {job.name for job in defs.get_repository_def().get_all_jobs()}
    for key, named in (
        (FLIGHTS.compaction, {"weir_compaction"}),
        (FLIGHTS.checkpoints, {"weir_snapshot", "weir_restore"}),
        (FLIGHTS.positions, {"weir_migrate_"}),
    ):
        description = defs.resolve_asset_graph().get(key).description
        for job in named:
            assert job in description
            assert any(each.startswith(job) for each in jobs)
