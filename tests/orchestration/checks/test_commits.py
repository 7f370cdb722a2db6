"""Checks of a warehouse whose commits are right, and of others whose commits are not."""

import dagster as dg
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.orchestration.applications import FLIGHTS
from weir.infra.control import TaskStatusRow, this_host
from weir.orchestration.checks.commits import commit_checks, commit_results
from weir.orchestration.resources import WeirResource
from weir.orchestration.thresholds import Thresholds
from weir.state.commit.files import write_file

CHECKS = {"offsets_continuous", "late_record_rate", "uncommitted_bytes", "dead_letter_rate", "rows_as_committed"}


@pytest.fixture
def audit(settings):
    """``audit()`` runs the checks and returns their results by name."""

    def run() -> dict[str, dg.AssetCheckResult]:
        results = list(commit_results(FLIGHTS, settings))
        assert {result.check_name for result in results} == CHECKS
        return {result.check_name: result for result in results}

    return run


@pytest.mark.usefixtures("committer")
def test_without_a_commit_every_check_passes(audit):
    assert all(result.passed for result in audit().values())


def test_offsets_that_go_back_are_an_error_and_gaps_are_a_warning(committer, commit_of, audit):
    committer.commit(commit_of(1, offset=10))
    committer.commit(commit_of(2, offset=25))
    assert audit()["offsets_continuous"].passed
    committer.commit(commit_of(3, offset=35, records_in=30))
    gap = audit()["offsets_continuous"]
    assert (gap.passed, gap.severity) == (False, dg.AssetCheckSeverity.WARN)
    committer.commit(commit_of(4, offset=30, records_in=30))
    back = audit()["offsets_continuous"]
    assert (back.passed, back.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "goes back in flights-0" in back.description


def test_rates_are_shares_of_the_records_read(committer, commit_of, audit):
    committer.commit(commit_of(1, offset=1000, dead_letters=1, late_records=8))
    found = audit()
    assert (found["dead_letter_rate"].passed, found["late_record_rate"].passed) == (True, True), "1 and 10 of 1000"
    committer.commit(commit_of(2, offset=2000, dead_letters=3, late_records=19))
    found = audit()
    assert (found["dead_letter_rate"].passed, found["late_record_rate"].passed) == (False, False), "3 and 21 of 2000"
    assert found["dead_letter_rate"].metadata["share"].value == 0.0015


def test_uncommitted_bytes_count_while_a_driver_is_running(database, audit):
    lease = database.acquire_lease("flights", owner="weir run", pid=1, host=this_host(), ttl_s=60)
    database.report_tasks(
        "flights",
        [TaskStatusRow(task="0_0", slot=0, status="running", uncommitted_bytes=Thresholds().uncommitted_max_bytes + 1)],
    )
    assert not audit()["uncommitted_bytes"].passed
    database.release(lease)
    assert audit()["uncommitted_bytes"].passed


def test_a_file_that_is_gone_fails_the_check_of_its_table_and_no_other(committer, commit_of, settings):
    spec = FLIGHTS.table_specs["late_departures"]
    rows = pl.DataFrame([{name: None for name in spec.schema} | {"_epoch": 1}] * 3, schema=spec.schema)
    folder = settings.warehouse / "flights"
    entry = write_file(folder, spec, rows)
    committer.commit(commit_of(1, files=(entry,)))
    before = {(result.asset_key, result.check_name) for result in commit_results(FLIGHTS, settings) if result.passed}
    file = folder / "late_departures" / entry.path
    file.unlink()
    found = {(result.asset_key, result.check_name): result for result in commit_results(FLIGHTS, settings)}
    passed = {name for name, result in found.items() if result.passed}
    assert before - passed == {(FLIGHTS.outputs["late_departures"], "rows_as_committed")}
    failed = found[FLIGHTS.outputs["late_departures"], "rows_as_committed"]
    assert failed.description.startswith(f"the file {file} cannot be read: it is gone; put it back from a backup")


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_output_that_lacks_committed_rows_blocks_what_is_downstream(
    committer, commit_of, settings, instance, is_lost
):
    spec = FLIGHTS.table_specs["late_departures"]
    rows = pl.DataFrame([{name: None for name in spec.schema} | {"_epoch": 1}] * 3, schema=spec.schema)
    entry = write_file(settings.warehouse / "flights", spec, rows)
    committer.commit(commit_of(1, files=(entry,)))
    if is_lost:
        DeltaTable(settings.warehouse / "flights" / "late_departures").delete()

    @dg.multi_asset(specs=[dg.AssetSpec(key) for key in (FLIGHTS.ingest, *FLIGHTS.tables.values())])
    def committed():
        yield from (dg.MaterializeResult(key) for key in (FLIGHTS.ingest, *FLIGHTS.tables.values()))

    @dg.asset(deps=[FLIGHTS.outputs["late_departures"]])
    def report() -> None: ...

    result = dg.materialize(
        [committed, commit_checks(FLIGHTS), report],
        instance=instance,
        raise_on_error=False,
        resources={"weir": WeirResource(dir=str(settings.dir))},
    )
    assert result.success is not is_lost
    made = {event.asset_key for event in result.get_asset_materialization_events()}
    assert (dg.AssetKey("report") in made) is not is_lost
