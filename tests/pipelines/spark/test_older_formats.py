"""Folders that an older Weir has left: continued, or refused with the way out and left as they are.

``data/sales-before-rollups.tar.gz`` was written by Weir at commit cef0259, ``sales(20, ...)`` over two partitions:
commit rows without ``topology``, ``is_rolled_up`` and snapshots, stores without expiries, and another fingerprint of
the same program.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.state.commit import log
from weir.state.commit.protocol import newest_commit
from weir.state.errors import FormatVersionError

OLD = Path(__file__).parent / "data" / "sales-before-rollups.tar.gz"


@pytest.fixture
def place(tmp_path):
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    topics = Topics({("sales", partition): sales(50, partition) for partition in (0, 1)})
    return Place(application(), topics, tmp_path, max_records=30)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("was_stopped_cleanly", [True, False])
def test_a_folder_of_an_older_version_is_continued_and_its_next_commits_are_in_the_new_format(
    place, was_stopped_cleanly
):
    for identity in (place.folder / "state").glob("*/first/instance.json") if not was_stopped_cleanly else ():
        crashed = {**json.loads(identity.read_text()), "clean_txn": None, "boot_id": "of another start"}
        identity.write_text(json.dumps(crashed))
    old = newest_commit(place.warehouse, "sales")
    (first, _) = sorted(old.tasks)
    assert first.startswith("sales-"), "names had a fingerprint"
    assert (old.topology, old.tasks[first].positions) == (None, {"sales": {0: 20}})
    assert old.fingerprint != place.application.topology.fingerprint
    assert place.run().records_in == 60
    assert totals(place) == expected(place)
    assert len(place.restores.done) == (0 if was_stopped_cleanly else 2)
    new = newest_commit(place.warehouse, "sales")
    assert (new.generation, new.topology.outputs) == (old.generation + 1, ("totals",))
    assert sorted(new.tasks) == ["sales_0", "sales_1"]
    place.topics.rows["sales", 0] += sales(10, 0)
    for data in place.state_folder.glob("*/*/data.mdb"):
        data.unlink()
    place.run()
    assert totals(place) == expected(place), "rows in the changelog have both names"


def test_a_folder_in_an_unknown_format_is_refused_and_left_as_it_is(place, monkeypatch):
    monkeypatch.setattr(log, "FORMATS", (2,))
    before = contents(place.folder)
    with pytest.raises(
        FormatVersionError, match=r"format version 1\b.*reads 2\b.*run the version that.*`weir reset sales`"
    ):
        place.run()
    assert contents(place.folder) == before
