"""The commit protocol over each storage that delta-rs can read: what a driver does is the same."""

from __future__ import annotations

import polars as pl
import pytest

from tests.state.commit.commits import FACTS
from weir.state.commit.files import write_file
from weir.state.commit.log import newest_commit
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.errors import FencedError
from weir.state.storage.contract import Folder
from weir.state.storage.local import Local
from weir.state.storage.places import folder_at
from weir.state.types import StateId


@pytest.fixture(params=["local", "s3"])
def warehouse(request, tmp_path) -> Folder:
    return (
        Local(tmp_path) if request.param == "local" else folder_at(request.getfixturevalue("s3_bucket") + "/warehouse")
    )


def record(warehouse: Folder, generation: int, epoch: int) -> CommitRecord:
    rows = pl.DataFrame({"n": [epoch], "_epoch": [epoch]})
    files = (write_file(warehouse / "app", FACTS, rows),)
    return CommitRecord(kind="commit", generation=generation, epoch=epoch, at_ms=0, fingerprint="f", files=files)


def test_commits_are_read_back_a_newer_driver_fences_and_a_checkpoint_covers_the_log(warehouse):
    older, newer = (Committer(warehouse, "app", [FACTS], fingerprint="f") for _ in range(2))
    older.claim()
    older.commit(record(warehouse, 1, 1))
    claim = newer.claim()
    assert claim.newest is not None
    assert claim.newest.state_id == StateId(1, 1)
    with pytest.raises(FencedError):
        older.commit(record(warehouse, 1, 2))
    newer.commit(record(warehouse, 2, 2))
    AppendTable(warehouse / "app" / FACTS.name, FACTS.name, "app").checkpoint()
    newer.commit(record(warehouse, 2, 3))
    found = newest_commit(warehouse, "app")
    assert found is not None
    assert found.state_id == StateId(2, 3)
    assert sorted(read_rows(warehouse / "app" / FACTS.name)["n"]) == [1, 2, 3]
    older.close()
    newer.close()
