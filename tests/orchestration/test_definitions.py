"""What Dagster finds: quickly, without Spark, and with the lineage that the data has."""

import subprocess
import sys
import time

import dagster as dg
import yaml

from orchestration.definitions import defs

LOAD_LIMIT_S = 3.0


def test_definitions_load_quickly_and_start_neither_spark_nor_a_database():
    probe = ("import sys, orchestration.definitions as d; d.defs.get_repository_def(); "
             "print(*sorted({m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'deltalake'}))")
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert time.monotonic() - started < LOAD_LIMIT_S


def test_tables_come_from_the_ingest_and_the_ingest_from_the_topic():
    graph = defs.resolve_asset_graph()
    keys = {name: dg.AssetKey(["flights", name])
            for name in ("topic", "ingest", "late_departures", "carrier_totals")}
    assert set(graph.get_all_asset_keys()) == set(keys.values())
    assert graph.get(keys["ingest"]).parent_keys == {keys["topic"]}
    assert graph.get(keys["late_departures"]).parent_keys == {keys["ingest"]}
    assert graph.get(keys["carrier_totals"]).parent_keys == {keys["ingest"]}
    assert graph.asset_check_keys == {dg.AssetCheckKey(keys["ingest"], "lag")}


def test_an_ingest_started_without_configuration_ends_once_it_has_caught_up():
    from orchestration.flights.assets import IngestConfig

    assert IngestConfig().until_caught_up is True
    assert IngestConfig().take_over is False


def test_the_workspace_names_the_definitions(pytestconfig):
    workspace = yaml.safe_load((pytestconfig.rootpath / "workspace.yaml").read_text())
    [location] = workspace["load_from"]
    assert location["python_module"]["module_name"] == "orchestration.definitions"
