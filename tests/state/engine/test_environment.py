"""Which instances are not trusted when opened, the cache of open stores, and the folders of instances."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import pickle
import shutil
from pathlib import Path

import lmdb
import msgspec
import pytest

from weir.state.engine import environment
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.environment import MAX_DEATHS, PAGE_BYTES
from weir.state.engine.instances import current_instance, new_instance, set_current, task_folder
from weir.state.engine.meta import Meta, decode_meta, encode_meta
from weir.state.engine.quarantine import quarantine
from weir.state.engine.task_store import TaskStore
from weir.state.errors import NetworkFileSystemError, TaskCorruptedError
from weir.state.types import StateId


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An instance with 2,000 rows, closed without a clean stop."""
    folder = tmp_path / "0_0" / "instance"
    store = TaskStore.create(folder, "0_0", ["a"])
    keys = [b"%06d" % n for n in range(2000)]
    store.bulk_load({"a": [(keys, [b"x" * 100] * 2000)]}, state=StateId(1, 1), generation=1)
    store.close()
    return folder


def open_again(folder: Path) -> None:
    TaskStore.open(folder, "0_0", ["a"]).close()


def change_identity(folder: Path, **changes: object) -> None:
    path = folder / "instance.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **changes}))


def corrupted(reason: str):
    return pytest.raises(TaskCorruptedError, match=reason)


def test_an_instance_survives_a_process_without_a_clean_stop(folder):
    open_again(folder)


def test_a_restart_of_the_machine_is_trusted_only_after_a_clean_stop(folder):
    TaskStore.open(folder, "0_0", ["a"]).close(clean=True)
    change_identity(folder, boot_id="another")
    open_again(folder)  # trusted, and in use from now on
    change_identity(folder, boot_id="another")
    with corrupted("machine has restarted.*not closed cleanly"):
        open_again(folder)


def _stop_late(
    folder: Path, is_settled: multiprocessing.synchronize.Event, stops: multiprocessing.synchronize.Event
) -> None:
    store = TaskStore.open(folder, "0_0", ["a"])
    store.settle(generation=1, expected=StateId(1, 1), committed=StateId(1, 1))
    is_settled.set()
    assert stops.wait(30)
    store.close(clean=True)


@pytest.mark.parametrize("is_settled_before", [True, False])
def test_the_clean_stop_of_an_older_driver_marks_nothing_that_a_newer_one_writes(folder, is_settled_before):
    """Its worker was slow, or frozen, while another one took over: nobody syncs what that one writes."""
    context = multiprocessing.get_context("fork")
    is_settled, stops = context.Event(), context.Event()
    older = context.Process(target=_stop_late, args=(folder, is_settled, stops))
    older.start()
    assert is_settled.wait(30)
    newer = TaskStore.open(folder, "0_0", ["a"])
    if is_settled_before:
        newer.settle(generation=2, expected=StateId(1, 1), committed=StateId(1, 1))
    stops.set()
    older.join()
    assert older.exitcode == 0
    if not is_settled_before:
        newer.settle(generation=2, expected=StateId(1, 1), committed=StateId(1, 1))
    newer.close()
    change_identity(folder, boot_id="another")
    with corrupted("machine has restarted.*not closed cleanly"):
        open_again(folder)


def test_another_device_is_trusted_only_after_a_clean_stop(folder):
    change_identity(folder, device=12345)
    with corrupted("another device"):
        open_again(folder)


def test_an_instance_written_after_its_clean_mark_is_not_trusted(folder):
    TaskStore.open(folder, "0_0", ["a"]).close(clean=True)
    mark = (folder / "instance.json").read_bytes()
    store = TaskStore.open(folder, "0_0", ["a"])
    store.settle(generation=9, expected=StateId(1, 1), committed=StateId(1, 1))
    store.close()
    (folder / "instance.json").write_bytes(mark)
    change_identity(folder, boot_id="another")
    with corrupted("after its clean stop"):
        open_again(folder)


@pytest.mark.parametrize(
    ("changes", "reason"), [({"format_version": 99}, "format version 99"), ({"device": "x"}, "cannot be read")]
)
def test_an_identity_of_another_format_is_refused(folder, changes, reason):
    change_identity(folder, **changes)
    with corrupted(reason):
        open_again(folder)


def test_a_missing_folder_or_identity_is_refused(folder, tmp_path):
    with corrupted("missing"):
        open_again(tmp_path / "gone")
    (folder / "instance.json").unlink()
    with corrupted("cannot be read"):
        open_again(folder)


def test_a_truncated_data_file_is_refused_before_it_is_mapped(folder):
    os.truncate(folder / "data.mdb", 10 * PAGE_BYTES)
    with corrupted(r"data.mdb has 40960 bytes, but \d+ were written"):
        open_again(folder)


def test_a_data_file_that_is_not_lmdb_is_refused(folder):
    (folder / "data.mdb").write_bytes(b"not a database" * 1000)
    with corrupted("no LMDB header"):
        open_again(folder)


def test_a_damaged_meta_record_is_refused(folder):
    data = (folder / "data.mdb").read_bytes()
    (folder / "data.mdb").write_bytes(data.replace(b"committed_rows", b"committed_rowz"))
    with corrupted("meta record"):
        open_again(folder)


def test_lost_rows_show_in_the_counts(folder):
    with lmdb.open(str(folder), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as txn:
        txn.delete(b"000007", db=raw.open_db(b"a", txn=txn))
    with corrupted("store 'a' holds 1999 rows.* 2000 "):
        open_again(folder)


def test_processes_that_die_before_they_finish_an_epoch_count_as_corruption(folder):
    dead = [folder / f"unproven.{5_000_001 + n}" for n in range(MAX_DEATHS)]  # above the kernel's highest process id
    for mark in dead[1:]:
        mark.touch()
    (folder / f"unproven.{os.getppid()}").touch()  # has it open right now, and is alive
    reused = folder / f"unproven.{os.getppid()}.1"  # of a process that has ended, whose id another one has now
    dead[0] = reused
    open_again(folder)
    assert dead[1].exists(), "opening and closing it proves nothing"
    store = TaskStore.open(folder, "0_0", ["a"])
    with store.session() as session:
        store.apply(
            session,
            state=StateId(1, 2),
            expected=StateId(1, 1),
            generation=1,
            plan_hash="2",
            make_receipt=lambda uncommitted: b"",
        )
    store.close()
    for mark in dead:
        assert not mark.exists()
        mark.touch()
    with corrupted("3 processes died"):
        open_again(folder)


def test_a_failed_open_leaves_the_folder_free_for_quarantine_and_the_error_pickles(folder):
    change_identity(folder, boot_id="another")
    with corrupted("restarted") as caught:
        open_again(folder)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_network_file_systems_are_refused(tmp_path, monkeypatch):
    mounts = Path("/proc/self/mountinfo").read_text()
    device = os.stat(tmp_path).st_dev
    monkeypatch.setattr(
        environment,
        "_NETWORK_FILE_SYSTEMS",
        {
            line.partition(" - ")[2].split()[0]
            for line in mounts.splitlines()
            if line.split()[2] == f"{os.major(device)}:{os.minor(device)}"
        },
    )
    with pytest.raises(NetworkFileSystemError, match="local disk"):
        TaskStore.create(tmp_path / "i", "0_0", [])


def test_a_meta_record_reads_as_it_was_written_or_not_at_all():
    meta = Meta(stores={"a": 1}, current=StateId(1, 2), receipt=b"\x00r")
    assert decode_meta(encode_meta(meta)) == meta
    assert decode_meta(encode_meta(meta)[:-1] + b"!") is None
    assert decode_meta(None) is None


def test_the_cache_opens_a_store_once_and_again_when_its_folder_was_replaced(folder, tmp_path):
    try:
        first = TaskStoreCache.get(folder, "0_0", ["a"])
        assert TaskStoreCache.get(folder, "0_0", ["a"]) is first
        assert TaskStoreCache.get(folder, "0_0", ["a", "b"]).has_stores(["b"])
        folder.rename(tmp_path / "old")
        with corrupted("missing"):
            TaskStoreCache.get(folder, "0_0", ["a"])
        shutil.copytree(tmp_path / "old", folder)
        second = TaskStoreCache.get(folder, "0_0", ["a"])
        assert second is not first
        assert second.current == StateId(1, 1)
    finally:
        TaskStoreCache.close_all()


def test_a_forked_process_opens_its_own_environments(folder):
    try:
        TaskStoreCache.get(folder, "0_0", ["a"])
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if TaskStoreCache.get(folder, "0_0", ["a"]).current == StateId(1, 1) else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        TaskStoreCache.close_all()


def test_one_instance_is_current_and_quarantined_ones_keep_their_files(tmp_path):
    task = task_folder(tmp_path, "app", "0_1")
    assert current_instance(task) is None
    name = new_instance()
    set_current(task, name)
    assert current_instance(task) == task / name
    for reason in ("first", "second"):
        (task / name).mkdir()
        (task / name / "data.mdb").write_text(reason)
        moved = quarantine(task / name, reason)
        assert moved is not None
        assert (moved / "reason.txt").read_text() == reason + "\n"
        assert (moved / "data.mdb").read_text() == reason
    assert len(list((task / "quarantine").iterdir())) == 2
    assert quarantine(task / name, "gone") is None


def test_new_folders_are_on_disk_with_those_above_them(tmp_path, monkeypatch):
    """What is written into them would be lost with their names, if power failed."""
    synced, sync = [], environment.sync_folder
    monkeypatch.setattr(environment, "sync_folder", lambda folder: synced.append(folder) or sync(folder))
    environment.make_folders(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    environment.make_folders(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3
