"""Whatever is done once too often is counted: each kind of count, and nothing that is not Weir's."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import polars as pl
import pytest

from tests.guard.allocations import Allocations
from tests.guard.counting import at_once, counted, places_of
from weir.state.engine.environment import sync_folder
from weir.state.engine.task_store import TaskStore
from weir.state.frames import framed, renamed
from weir.state.storage.local import Local
from weir.state.storage.places import table_at

COLUMN = pl.Series("a", [1, 2])


def test_calls_of_polars_from_weir_are_counted_and_queries_apart(tmp_path):
    """``framed`` calls ``to_frame`` and ``hstack``, which call others; the test is not Weir."""
    counts = counted(lambda: [framed([COLUMN]), COLUMN.to_frame(), len(COLUMN)], tmp_path)
    assert counts == {"python_calls": 1, "polars_calls": 2}
    query = counted(
        lambda: [pl.DataFrame([COLUMN]).filter(pl.col("a") > 1), pl.LazyFrame([COLUMN]).collect()], tmp_path
    )
    assert query == {"polars_queries": 2}


def test_what_a_comprehension_calls_is_counted_and_itself_is_not(tmp_path):
    """``renamed`` has one, which was a function of its own up to Python 3.11."""
    counts = counted(lambda: renamed(framed([COLUMN]), str.upper), tmp_path)
    assert counts["python_calls"] == 3, "renamed, and framed twice"


@pytest.mark.parametrize("sync", [os.fsync, os.fdatasync])
def test_syncs_are_counted(tmp_path, sync):
    with open(tmp_path / "file", "w") as file:
        assert counted(lambda: sync(file.fileno()), tmp_path) == {"syncs": 1}
    assert counted(lambda: sync_folder(tmp_path), tmp_path)["syncs"] == 1


def test_transactions_are_counted_and_the_pages_that_they_change(tmp_path):
    store = TaskStore.create(tmp_path / "state" / "0_0" / "first", "0_0", ["sums"])
    try:
        read = counted(lambda: store.base, tmp_path)
        assert (read["lmdb_transactions"], read.get("lmdb_writes"), read.get("bytes_map")) == (1, None, None)
        written = counted(lambda: store.settle(generation=1, expected=None, committed=None), tmp_path)
        assert (written["lmdb_transactions"], written["lmdb_writes"]) == (2, 1)
        assert written["bytes_map"] == 4 * 4096, "of the record, of the databases, of free pages, and LMDB's own"
        assert counted(lambda: store._databases.environment.sync(True), tmp_path)["syncs"] == 1
    finally:
        store.close()


def test_requests_to_the_storage_are_counted_once_and_bytes_by_what_they_are_for(tmp_path):
    folder = Local(tmp_path / "warehouse" / "app")
    folder.make()

    def work():
        folder.at_once([lambda: folder.put("totals/a.parquet", b"12345"), lambda: folder.find("totals/a.parquet")])
        folder.put("_changelog/sums/a.parquet", b"1234")
        (folder / "_commits").put("a.parquet", b"123")
        folder.put("_commits/_delta_log/1.json", b"12")
        folder.put("totals/_delta_log/1.json", b"1")
        folder.put("_blobs/a.arrow", b"")
        folder.sync(["totals/a.parquet"])
        list(folder.list("totals/"))

    counts = counted(work, tmp_path)
    assert {name: count for name, count in counts.items() if name.startswith(("requests", "bytes"))} == {
        "requests_put": 6,
        "requests_find": 1,
        "requests_sync": 1,
        "requests_list": 1,
        "bytes_outputs": 5,
        "bytes_changelogs": 4,
        "bytes_commit_log": 5,
        "bytes_delta_logs": 1,
    }
    assert counted(lambda: folder.get("totals/a.parquet"), tmp_path)["requests_get"] == 1


def test_a_file_that_is_replaced_counts_and_one_that_stays_does_not(tmp_path):
    folder = Local(tmp_path / "warehouse" / "app" / "totals")
    folder.make()
    folder.put("stays", b"1")
    folder.put("changes", b"12")
    assert counted(lambda: folder.put("changes", b"34"), tmp_path)["bytes_outputs"] == 2


def test_calls_of_delta_rs_are_counted(tmp_path):
    pl.DataFrame([COLUMN]).write_delta(str(tmp_path / "table"))
    assert counted(lambda: table_at(tmp_path / "table"), tmp_path)["delta_rs_calls"] == 1


def test_what_goes_to_threads_is_counted_too(tmp_path):
    def work():
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(framed, [COLUMN]).result().height == 2
            with pytest.raises(ZeroDivisionError):
                pool.submit(lambda: 1 / 0).result()
            assert next(pool.map(framed, [[COLUMN]])).height == 2

    with at_once():
        assert counted(work, tmp_path)["python_calls"] == 2


def test_the_lines_that_have_led_to_a_call_are_told():
    found = places_of(lambda: sync_folder(Path(__file__).parent))
    ((place, count),) = found["syncs"].items()
    assert count == 1
    assert place.count("state/engine/environment.py:") == 2


def test_blocks_of_memory_are_counted(tmp_path):
    allocations = Allocations(tmp_path)
    few, many = (allocations.during(lambda: [object() for _ in repeat(None, count)]) for count in (10, 1_010))  # noqa: B023
    assert 1_000 <= many - few < 1_100, "a thousand objects, and the list grows"
    assert allocations.during(lambda: None) < 10
