"""A disk that fills up during a commit: the run waits, says so, and goes on; nothing is lost or doubled."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.pipelines.spark import driver as driver_module
from weir.pipelines.spark.errors import CommitOutOfSpaceError
from weir.state import full_disk
from weir.state.commit.log import COMMITS
from weir.state.commit.tables import read_rows


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    monkeypatch.setattr(driver_module, "DISK_FULL_WAIT_S", 0.01)
    topics = Topics({("sales", part): sales(300, part) for part in (0, 1)})
    return Place(application(), topics, tmp_path, max_records=50)


class Disk:
    """Has no room for ``times`` entries of a table's log, from the ``first`` one of this process on."""

    def __init__(self, monkeypatch, table: str, *, first: int, times: int) -> None:
        self.left, self.seen, self.table, self.first, link = times, 0, table, first, os.link

        def linked(source, target, **options):
            if Path(target).parent.parent.name == self.table:
                self.seen += 1
                if self.seen >= self.first and self.left > 0:
                    self.left -= 1
                    raise OSError(errno.ENOSPC, "No space left on device", str(target))
            link(source, target, **options)

        monkeypatch.setattr(os, "link", linked)


@pytest.mark.parametrize("table", ["_commits", "totals", "sums"])
@pytest.mark.parametrize("first", [3, 5])
def test_the_commit_waits_for_space_and_is_finished(place, monkeypatch, table, first):
    states, disk = list[tuple[str, str]](), Disk(monkeypatch, table, first=first, times=7)
    place.desk.report = lambda progress, tasks, ends: states.append((progress.state, progress.message))
    place.run()
    assert disk.left == 0
    assert totals(place) == expected(place)
    waits = [message for state, message in states if state == "waiting"]
    assert waits
    assert all("a commit waits for space: " in message and f"disk of {place.warehouse}" in message for message in waits)
    assert states[-1][1] == "", "it no longer waits"


def test_a_stop_ends_the_wait_and_the_next_run_goes_on(place, monkeypatch):
    disk, stop = Disk(monkeypatch, "_commits", first=3, times=10_000), Event()

    def report(progress, tasks, ends):
        if progress.state == "waiting":
            stop.set()

    place.desk.report = report
    with pytest.raises(CommitOutOfSpaceError, match="free some space there and start it again"):
        place.driver().run(stop)
    disk.left = 0
    place.desk.report = lambda progress, tasks, ends: None
    place.run()
    assert totals(place) == expected(place)


@pytest.mark.parametrize("folder", ["state", "warehouse"])
def test_a_start_without_room_waits_makes_no_half_of_a_store_and_claims_once(place, monkeypatch, folder):
    """What ``test_small_disks`` does on real disks, for machines where no test may mount one."""
    free, looks, said = full_disk.free_bytes, 0, list[str]()

    def found(where: Path) -> int:
        nonlocal looks
        if not where.is_relative_to(place.folder / folder):
            return free(where)
        looks += 1
        return 1_000 if looks <= 4 else free(where)

    def report(progress, tasks, ends):
        if progress.state == "waiting":
            said.append(progress.message)
            assert not list(place.state_folder.glob("*/*"))

    monkeypatch.setattr(full_disk, "free_bytes", found)
    place.desk.report = report
    place.wait_for_disk = lambda error: said.append(str(error)) is None
    place.run()
    assert len(said) == 4
    assert all(f"disk of {place.folder / folder}/" in message and "1,000 bytes free" in message for message in said)
    assert totals(place) == expected(place)
    assert not list(place.state_folder.glob("*/quarantine"))
    assert read_rows(place.warehouse / "sales" / COMMITS.name)["kind"].to_list().count("claim") == 1
