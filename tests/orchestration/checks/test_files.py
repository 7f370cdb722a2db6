"""Output tables whose files are gone or damaged, as checks of their assets."""

import polars as pl
import pytest

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.checks.files import file_checks
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
        for check in file_checks(FLIGHTS):
            for result in check(WeirResource(dir=str(settings.dir))):
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
