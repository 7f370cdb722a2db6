"""Disks of a few megabytes that are really full: a run waits, says for what, loses nothing, and blames no store."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.pipelines.spark import inline
from tests.pipelines.spark.full_disk_life import lived, shop
from tests.pipelines.spark.inline import Place
from tests.pipelines.spark.sales import expected, sales, totals
from tests.small_disk import SmallDisk, small_disk
from weir.pipelines.spark import driver as driver_module
from weir.pipelines.spark import restores as restores_module
from weir.pipelines.spark import snapshot_jobs
from weir.state.changelog.snapshot import SNAPSHOT_FOLDER
from weir.state.commit import tables as tables_module
from weir.state.commit.log import COMMITS
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.copies import committed_copy
from weir.state.engine.environment import MAX_DEATHS
from weir.state.errors import DiskFullError

STATE_MB, WAREHOUSE_MB = 100, 60


@pytest.fixture
def place(tmp_path, monkeypatch) -> Iterator[Place]:
    for module in (driver_module, restores_module):
        monkeypatch.setattr(module, "DISK_FULL_WAIT_S", 0.01)
    yield shop(tmp_path)
    TaskStoreCache.close_all()


@pytest.fixture
def state(place) -> Iterator[SmallDisk]:
    with small_disk(place.state_folder, STATE_MB) as disk:
        yield disk
        TaskStoreCache.close_all()


@pytest.fixture
def warehouse(place) -> Iterator[SmallDisk]:
    with small_disk(place.warehouse, WAREHOUSE_MB) as disk:
        yield disk


def quarantined(place: Place) -> list[Path]:
    return list(place.state_folder.glob("*/quarantine/*"))


def instances(place: Place) -> dict[str, str]:
    return {task: each.instance for task, each in newest_commit(place.warehouse, "sales").tasks.items()}


def clear_when_waiting(place: Place, disk: SmallDisk) -> list[str]:
    """Give the room back the second time that the run says that it waits; what it says."""
    said = list[str]()

    def report(progress, tasks, ends):
        if progress.state == "waiting":
            said.append(progress.message)
            if len(said) > 1:
                disk.clear()

    place.desk.report = report
    return said


@pytest.mark.parametrize("has_stores", [False, True])
def test_drivers_that_start_on_a_full_disk_put_no_store_into_quarantine(place, state, has_stores):
    rows = place.topics.rows
    if has_stores:
        place.topics.rows = {partition: rows[partition][:100] for partition in rows}
        place.run()
        TaskStoreCache.close_all()
    before = instances(place) if has_stores else {}
    state.fill()
    for _ in range(MAX_DEATHS + 1):
        said, code = lived(place.folder)
        assert code == -signal.SIGKILL, said  # not SIGBUS
        assert f"the disk of {place.state_folder}/" in said
        assert "has 0 bytes free, but " in said
        assert quarantined(place) == []
        assert {folder.name for folder in place.state_folder.glob("*/*/")} == ({"first"} if has_stores else set())
    state.clear()
    place.topics.rows = rows
    place.run()
    assert totals(place) == expected(place)
    assert quarantined(place) == []
    assert instances(place).items() >= before.items()
    assert not place.restores.done


@pytest.mark.parametrize("leave", [0, (32 << 20) + (64 << 10)], ids=["for nothing", "for half of an instance"])
def test_a_restore_waits_for_space_and_leaves_no_half_of_an_instance(place, state, leave):
    place.run()
    TaskStoreCache.close_all()
    task, instance = place.state_of("0_0"), instances(place)[place.name_of("0_0")]
    (task / instance / "data.mdb").write_bytes(b"x" * 4096)
    place.topics.rows["sales", 0] += sales(100, 0)
    driver, said = place.driver(), list[str]()

    def report(progress, tasks, ends):
        if "space" in progress.message:
            said.append(progress.message)
            (restoring,) = (each for each in tasks if str(each.id) == "0_0")
            assert "its restore waits for space" in restoring.progress or len(said) == 1
            assert {folder.name for folder in task.glob("*/")} <= {instance, "quarantine"}
            if len(said) == 3:
                state.clear()

    place.desk.report = report
    state.fill(leave)
    driver.run(Event(), until_caught_up=True)
    assert len(said) >= 3
    assert all(f"the disk of {place.state_folder}" in message and "bytes free" in message for message in said)
    assert totals(place) == expected(place)
    assert [folder.name for folder in quarantined(place)] == [instance]


@pytest.mark.parametrize("step", ["files written", "pivot appended", "table appended", "settled"])
def test_a_warehouse_that_fills_up_at_a_step_of_a_commit_is_waited_for(place, warehouse, monkeypatch, step):
    monkeypatch.setattr(tables_module, "CHECKPOINT_EVERY_VERSIONS", 2)
    said, passed = clear_when_waiting(place, warehouse), 0

    def on_step(name: str) -> None:
        nonlocal passed
        passed += name == step
        if name == step and passed in (2, 4):
            warehouse.fill()

    place.run(on_step)
    assert len(said) >= 3
    assert all(f"the disk of {place.warehouse}/sales" in message for message in said)
    assert all("0 bytes free" in message for message in said)
    assert totals(place) == expected(place)
    for table in ("totals", "_changelog/sums"):
        known = set(AppendTable(place.warehouse / "sales" / table, table, "sales").files()["path"])
        folder = place.warehouse / "sales" / table
        assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")} - known <= {
            path.relative_to(folder).as_posix() for path in folder.glob("_delta_log/*.parquet")
        }, "attempts for which there was no room leave no files"


def test_a_start_waits_for_the_warehouse_and_claims_once(place, warehouse):
    said = list[str]()

    def wait(error: Exception) -> bool:
        said.append(str(error))
        if len(said) == 3:
            warehouse.clear()
        return True

    warehouse.fill()
    place.wait_for_disk = wait
    place.run()
    assert len(said) == 3
    assert f"the disk of {place.warehouse}/sales has 0 bytes free, but 33,554,432 may be needed" in said[0]
    assert totals(place) == expected(place)
    assert read_rows(place.warehouse / "sales" / COMMITS.name)["kind"].to_list().count("claim") == 1


def test_snapshots_for_which_there_is_no_room_are_left_out_and_made_later(place, warehouse, caplog):
    place.snapshot_rows = 12
    copies = place.state_folder
    published = snapshot_jobs.publish

    def full(*arguments):
        warehouse.fill(4096)
        try:
            return published(*arguments)
        finally:
            warehouse.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "publish", full)
        place.run()
    assert "no snapshot: the snapshot of task sales_0: the disk of " in caplog.text
    assert "Traceback" not in caplog.text
    assert not list((place.warehouse / "sales" / SNAPSHOT_FOLDER).glob("*/*"))
    assert not list(copies.glob("*/.copy-*"))
    place.topics.rows["sales", 0] += sales(100, 0)
    place.run()
    assert totals(place) == expected(place)
    assert any(each.snapshot for each in newest_commit(place.warehouse, "sales").tasks.values())


def test_a_copy_for_which_there_is_no_room_is_not_taken_for_a_damaged_store(place, state):
    place.run()
    folder = place.state_of("0_0") / "first"
    state.fill(8192)
    message = r"a copy of task sales_0: the disk of .* bytes free"
    with pytest.raises(DiskFullError, match=message), committed_copy(folder, "sales_0"):
        pass
    assert not list(folder.parent.glob(".copy-*"))
