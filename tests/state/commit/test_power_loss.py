"""What a loss of power leaves of tables, on a disk that keeps what was synced and nothing else (PROTOCOL 13)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random

import polars as pl
import pytest

from tests.simulation.storage import PageCache
from tests.simulation.substitutes import on_disk
from weir.state.changelog.compaction import raise_horizon
from weir.state.commit.delta_log import replace_files
from weir.state.commit.files import write_files
from weir.state.commit.tables import AppendTable, read_table, tombstone_horizon
from weir.state.storage.places import folder_at, table_at
from weir.state.types import TableSpec

SPEC = TableSpec(name="changelogs/t", schema=pl.Schema({"n": pl.Int64()}))


@pytest.mark.parametrize("seed", range(12))
def test_a_table_is_there_with_the_folders_above_it_and_what_was_appended(tmp_path, seed):
    disk = PageCache(tmp_path / "disk", tmp_path / "kept")
    with on_disk(disk.fsync, lambda kind, name: nullcontext()):
        folder = folder_at(tmp_path / "disk") / "warehouse" / "app"
        rows = pl.DataFrame({"n": [seed]})
        AppendTable.create(folder, SPEC, "app").append(1, write_files(folder, SPEC, rows))
        disk.lose_power(Random(seed))
        assert read_table(folder / SPEC.name).equals(rows)


class PowerFailedError(Exception):
    pass


@pytest.mark.parametrize("seed", [24, 36, 61, 76, 77])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_table_is_made_again_if_the_power_fails_while_it_is_made(tmp_path, seed, is_done):
    """The first entry of its log used to be in halves after that, and no start went on."""
    disk, fails = PageCache(tmp_path / "disk", tmp_path / "kept"), [True]

    @contextmanager
    def calls(kind: str, name: str) -> Iterator[None]:
        is_hit = bool(fails) and kind in ("sync", "put_if_absent")
        if is_hit and not is_done:
            raise PowerFailedError
        yield
        if is_hit:
            raise PowerFailedError

    with on_disk(disk.fsync, calls):
        folder = folder_at(tmp_path / "disk") / "app"
        with pytest.raises(PowerFailedError):
            AppendTable.create(folder, SPEC, "app")
        disk.lose_power(Random(seed))
        fails.clear()
        rows = pl.DataFrame({"n": [seed]})
        AppendTable.create(folder, SPEC, "app").append(1, write_files(folder, SPEC, rows))
        assert read_table(folder / SPEC.name).equals(rows)


@pytest.mark.parametrize("seed", range(12))
def test_what_a_compaction_says_of_dropped_deletions_is_on_disk_before_they_are_gone(tmp_path, seed):
    disk = PageCache(tmp_path / "disk", tmp_path / "kept")
    with on_disk(disk.fsync, lambda kind, name: nullcontext()):
        folder = folder_at(tmp_path / "disk") / "app"
        rows = pl.DataFrame({"n": [seed]})
        table = AppendTable.create(folder, SPEC, "app")
        table.append(1, write_files(folder, SPEC, rows))
        raise_horizon(table.folder, 7)
        assert replace_files(table.folder, table.files(), write_files(folder, SPEC, rows), is_data_changed=False)
        disk.lose_power(Random(seed))
        assert read_table(table.folder).equals(rows)
        assert tombstone_horizon(table_at(table.folder)) == 7
