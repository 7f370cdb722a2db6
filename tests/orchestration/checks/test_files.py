"""Output tables whose files are gone or damaged, as checks of their assets."""

import dagster as dg
import polars as pl
import pytest

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.checks.files import file_checks, file_results
from weir.orchestration.resources import WeirResource
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec

TABLE = next(iter(FLIGHTS.outputs))
SPEC = TableSpec(name=TABLE, schema=pl.Schema({"n": pl.Int64(), "task": pl.String()}), partition_by=("task",))


@pytest.fixture
def results(settings):
    """``results()`` gives, by the check's name, whether it passed for the table, and what it said."""

    def run():
        found = {}
        for name, reads in (("files_present", False), ("files_readable", True)):
            for result in file_results(FLIGHTS, settings, name, reads=reads):
                if result.asset_key == FLIGHTS.outputs[TABLE]:
                    found[result.check_name] = result.passed, result.description
                else:
                    assert (result.passed, result.description) == (True, "nothing was written yet")
        return found

    return run


def test_a_file_that_is_cut_or_spoilt_fails_the_check_of_its_table(settings, results):
    assert results() == {name: (True, "nothing was written yet") for name in ("files_present", "files_readable")}
    folder = settings.warehouse / FLIGHTS.id
    folder.mkdir(parents=True)
    table = AppendTable.create(folder, SPEC, FLIGHTS.id)
    entry = write_file(folder, SPEC, pl.DataFrame({"n": range(1_000)}), {"task": "0_0"})
    table.append(1, [entry])
    assert results() == {"files_present": (True, ""), "files_readable": (True, "")}

    file = folder / TABLE / entry.path
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(len(content) // 2) + content[4 + len(content) // 2 :])
    found = results()
    assert found["files_present"] == (True, "")
    passed, said = found["files_readable"]
    assert not passed
    assert f"names the file {file}: its rows cannot be read" in said

    file.unlink()
    for passed, said in results().values():
        assert not passed
        assert f"names the file {file}: it is gone; put it back from a backup" in said


def test_of_several_tables_those_that_a_run_selects_are_looked_at(settings):
    key = dg.AssetCheckKey(FLIGHTS.outputs[TABLE], "files_readable")
    defs = dg.Definitions(
        asset_checks=file_checks(FLIGHTS),
        resources={"weir": WeirResource(dir=str(settings.dir))},
        jobs=[dg.define_asset_job("one", dg.AssetSelection.checks(key))],
    )
    assert len(FLIGHTS.outputs) > 1
    found = defs.resolve_job_def("one").execute_in_process().get_asset_check_evaluations()
    assert [(each.asset_key, each.check_name) for each in found] == [(key.asset_key, key.name)]
