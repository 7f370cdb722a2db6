"""The flights assets, materialized with a real broker, a Spark driver and Delta tables."""

import json
import os
import subprocess
import sys

import dagster as dg
import pytest
from dagster._core.definitions.data_version import DATA_VERSION_TAG  # has no public name

from tests.orchestration.applications import FLIGHTS
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.orchestration.application import definitions
from weir.orchestration.assets.columns import LINEAGE
from weir.orchestration.checks.evaluations import newest_evaluations
from weir.orchestration.checks.lag import lag_check
from weir.orchestration.definitions import defs
from weir.orchestration.examples.applications import flights_app
from weir.orchestration.resources import WeirResource, driver_pipes
from weir.pipelines.operations.positions import committed_positions
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.broker]

FLIGHTS_IN_2013 = 336_776
RUN_LIMIT_S = 240.0


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Settings of a folder whose topic Dagster has loaded and read to its end, and the result of that run."""
    settings = Settings(dir=tmp_path_factory.mktemp("dagster") / "weir")
    flights = definitions(flights_app)
    with broker_for(settings):
        result = dg.materialize(
            [*flights.assets, *flights.asset_checks],
            selection=dg.AssetSelection.assets(*FLIGHTS.topics.values(), FLIGHTS.ingest, *FLIGHTS.tables.values()),
            resources={"weir": WeirResource(dir=str(settings.dir)), "pipes": driver_pipes()},
        )
        yield settings, result


def metadata_of(result: dg.ExecuteInProcessResult, name: str) -> dict[str, object]:
    [event] = [
        event
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(["flights", *name.split("/")])
    ]
    return {key: entry.value for key, entry in event.materialization.metadata.items()}


def test_row_counts_in_dagster_match_the_tables(place):
    settings, result = place
    assert result.success
    totals = read_table(settings.warehouse / "flights" / "carrier_totals")
    finals = read_table(settings.warehouse / "flights" / "late_departures")
    assert totals["flights"].sum() == FLIGHTS_IN_2013
    assert metadata_of(result, "carrier_totals")["dagster/row_count"] == totals.height == 16
    assert metadata_of(result, "late_departures")["dagster/row_count"] == finals.height > 100_000
    assert metadata_of(result, "topic")["dagster/row_count"] == FLIGHTS_IN_2013
    assert metadata_of(result, "changelog/by_carrier")["dagster/row_count"] == 16
    assert metadata_of(result, "dead_letters")["dagster/row_count"] == 0


def test_the_ingest_reports_the_offsets_of_its_newest_commit(place):
    settings, result = place
    ingest = metadata_of(result, "ingest")
    committed = committed_positions(newest_commit(settings.warehouse, "flights"), ["flights"])
    assert ingest["offsets"] == {"flights": {str(p): offset for p, offset in committed["flights"].items()}}
    assert sum(committed["flights"].values()) == FLIGHTS_IN_2013
    assert ingest["records_in"] == FLIGHTS_IN_2013
    assert ingest["ended"] == "caught_up"
    assert ingest["commit_ms"] > 0
    assert (ingest["quarantine_folders"], ingest["quarantine_bytes"]) == (0, 0)
    assert "| records/s |" in ingest["last_hour"]


def test_every_check_passes(place):
    _, result = place
    evaluations = result.get_asset_check_evaluations()
    assert {evaluation.check_name for evaluation in evaluations} == {
        "running",
        "lag",
        "offsets_continuous",
        "late_record_rate",
        "dead_letter_rate",
        "uncommitted_bytes",
        "quarantine",
        "rows_as_committed",
        "state_equals_changelog",
        "sampled_state_equals_changelog",
        "files_present",
        "files_readable",
    }
    assert all(evaluation.passed for evaluation in evaluations), evaluations
    metadata = {
        (evaluation.check_name, evaluation.asset_key.path[-1]): {
            name: entry.value for name, entry in evaluation.metadata.items()
        }
        for evaluation in evaluations
    }
    assert metadata["running", "ingest"]["state"] == "stopped"
    assert metadata["lag", "ingest"]["lag_records"] == 0
    assert metadata["late_record_rate", "ingest"]["records_in"] == FLIGHTS_IN_2013
    assert metadata["quarantine", "ingest"]["quarantine_folders"] == 0
    assert metadata["rows_as_committed", "late_departures"]["found_rows"] > 100_000
    assert metadata["state_equals_changelog", "ingest"]["tasks"] == 8


def test_the_lag_check_fails_if_nothing_was_committed(place, tmp_path):
    """Another folder's warehouse is empty, while the topic on the same broker is full."""
    settings, _ = place
    with broker_for(settings) as (bootstrap_servers, settings), pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_BOOTSTRAP_SERVERS", bootstrap_servers)
        for name, value in settings.kafka.items():
            patch.setenv(f"WEIR_KAFKA_{name.replace('.', '_').upper()}", value)
        result = lag_check(FLIGHTS)(WeirResource(dir=str(tmp_path)))
    assert not result.passed
    assert result.metadata["lag_records"].value == FLIGHTS_IN_2013


def test_the_ingest_alone_is_run_and_all_its_tables_are_recorded_by_the_command_line(place, tmp_path):
    """What was processed before is in the tables, and there is nothing new in the topic."""
    settings, _ = place
    with broker_for(settings):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "dagster", "asset", "materialize", "-m", "weir.orchestration.definitions"),
                *("--select", "flights/ingest"),
                *("--config-json", json.dumps({"execution": {"config": {"in_process": {}}}})),
            ],
            env={**os.environ, "DAGSTER_HOME": str(tmp_path), "WEIR_DIR": str(settings.dir)},
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    newest = newest_commit(settings.warehouse, "flights")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        recorded = {
            key: instance.get_latest_materialization_event(key).asset_materialization
            for key in (FLIGHTS.ingest, *FLIGHTS.tables.values())
        }
        [run] = instance.get_runs()
        checks = defs.resolve_asset_graph().asset_check_keys
        of_tables = {key for key in checks if key.asset_key in FLIGHTS.tables.values()}
        evaluated = {key: evaluation for key, _, evaluation in newest_evaluations(instance, [*checks])}
    assert run.asset_selection == {FLIGHTS.ingest}
    assert recorded[FLIGHTS.ingest].metadata["ended"].value == "caught_up"
    for table, key in FLIGHTS.tables.items():
        assert recorded[key].tags[DATA_VERSION_TAG] == str(newest.table_versions.get(table, 0))
        assert recorded[key].metadata["epoch"].value == newest.epoch
    assert {key.name for key in of_tables} >= {"rows_as_committed", "files_present", "files_readable"}
    assert {key for key in evaluated if key.asset_key in FLIGHTS.tables.values()} == of_tables
    assert all(evaluation.passed for evaluation in evaluated.values())
    output = recorded[FLIGHTS.tables["carrier_totals"]].metadata
    assert output["dagster/row_count"].value == 16
    assert LINEAGE in output
