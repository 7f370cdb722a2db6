"""What is kept in quarantine and for how long: real folders with sparse files, their age and their size on disk."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.state import quarantine_folders
from tests.state.quarantine_folders import DAY_S, MIB, quarantined_while_open, write
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.instances import current_instance, set_current
from weir.state.engine.quarantine import (
    HOLD_S,
    QuarantinedFolder,
    QuarantineLimits,
    clean,
    due,
    quarantine,
    quarantined,
)
from weir.state.engine.task_store import TaskStore
from weir.state.errors import FencedStoreError
from weir.state.types import StateId

NOW_S = time.time()
put = partial(quarantine_folders.put, now_s=NOW_S)
WEEK = QuarantineLimits(max_age_s=7 * DAY_S, max_bytes=1 << 40)


def of_bytes(max_bytes: int) -> QuarantineLimits:
    return QuarantineLimits(max_age_s=365 * DAY_S, max_bytes=max_bytes)


def names(folders: list[QuarantinedFolder]) -> list[str]:
    return [folder.path.name for folder in folders]


def left(state: Path) -> list[str]:
    return sorted(path.name for path in state.glob("*/quarantine/*"))


def test_the_reason_is_there_from_the_moment_a_folder_is_in_quarantine(tmp_path, monkeypatch):
    folder = tmp_path / "0_0" / "a"
    folder.mkdir(parents=True)

    def die(self: Path, target: Path) -> None:
        assert (self / "reason.txt").read_text() == "damaged\n"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            quarantine(folder, "damaged")
    assert quarantined(tmp_path) == []
    assert quarantine(folder, "damaged again") == tmp_path / "0_0" / "quarantine" / "a"
    [found] = quarantined(tmp_path)
    assert (found.path / "reason.txt").read_text() == "damaged again\n"


@pytest.mark.parametrize(("noted", "is_moved"), [("", True), ("2", True), ("3", True), ("4", False)])
def test_a_driver_moves_no_instance_that_a_newer_one_uses(tmp_path, noted, is_moved):
    """An empty note is what a power failure may leave."""
    folder = put(tmp_path, "a", age_s=0).parent.parent / "b"
    folder.mkdir()
    (folder / "generation").write_text(noted)
    if is_moved:
        assert quarantine(folder, "damaged", 3).name == "b"
        return
    with pytest.raises(FencedStoreError, match="this is generation 3, but generation 4 has taken over"):
        quarantine(folder, "damaged", 3)
    assert [path.name for path in folder.iterdir()] == ["generation"]


def test_sizes_are_what_sparse_files_take_on_disk(tmp_path):
    folder = put(tmp_path, "a", age_s=0, mib=3)
    (folder / "copies" / "deep").mkdir(parents=True)
    write(folder / "copies" / "deep" / "more", mib=1, looks_mib=1)
    [found] = quarantined(tmp_path)
    du = subprocess.run(["du", "-s", "--block-size=1", folder], capture_output=True, text=True, check=True)
    assert found.size_bytes == int(du.stdout.split()[0])
    assert 4 * MIB <= found.size_bytes < 5 * MIB < (folder / "data.mdb").stat().st_size


def test_age_counts_from_the_quarantine_whatever_the_times_of_lmdbs_files(tmp_path):
    old, young = put(tmp_path, "old", age_s=8 * DAY_S), put(tmp_path, "young", age_s=6 * DAY_S)
    for path in (old / "data.mdb", old):
        os.utime(path, (NOW_S, NOW_S))
    for path in (young / "data.mdb", young):
        os.utime(path, (0, 0))
    assert names(quarantined(tmp_path)) == ["old", "young"]
    assert names(clean(tmp_path, WEEK, NOW_S).removed) == ["old"]
    assert left(tmp_path) == ["young"]


@pytest.mark.parametrize(("age_s", "stays"), [(7 * DAY_S - 1, True), (7 * DAY_S + 1, False)])
def test_a_folder_stays_for_as_long_as_the_limit_says(tmp_path, age_s, stays):
    put(tmp_path, "a", age_s=age_s)
    clean(tmp_path, WEEK, NOW_S)
    assert left(tmp_path) == (["a"] if stays else [])


def test_over_the_size_the_oldest_of_all_tasks_goes_first(tmp_path):
    for number, task in enumerate(("0_0", "1_0", "0_0", "1_0")):
        put(tmp_path, f"f{number}", age_s=(9 - number) * 3_600, task=task, mib=4)
    cleaning = clean(tmp_path, of_bytes(10 * MIB), NOW_S)
    assert (names(cleaning.removed), left(tmp_path)) == (["f0", "f1"], ["f2", "f3"])
    assert sum(folder.size_bytes for folder in cleaning.removed) >= 8 * MIB


@pytest.mark.parametrize("limits", [of_bytes(0), QuarantineLimits(max_age_s=0, max_bytes=0)], ids=["size", "both"])
def test_the_newest_of_each_task_is_there_for_an_hour_whatever_the_limits(tmp_path, limits):
    for name, task, age_s in (
        ("a", "0_0", HOLD_S - 2),
        ("b", "0_0", HOLD_S - 1),
        ("c", "0_1", HOLD_S - 1),
        ("d", "0_2", HOLD_S + 1),
    ):
        put(tmp_path, name, task=task, age_s=age_s)
    clean(tmp_path, limits, NOW_S)
    assert left(tmp_path) == ["a", "c"], "b is older than a"
    clean(tmp_path, limits, NOW_S + 3)
    assert left(tmp_path) == []


def test_what_goes_is_what_a_plain_reading_of_the_rule_says():
    """Over random folders: take away the oldest that may go, as long as there is a reason to."""
    chance = random.Random(20)
    counts = set()
    for _ in range(500):
        found = sorted(
            (
                QuarantinedFolder(
                    path=Path("state", f"0_{chance.randrange(3)}", "quarantine", f"{number:02}"),
                    at_s=NOW_S - chance.choice([60, HOLD_S, DAY_S, 9 * DAY_S]) * chance.random(),
                    size_bytes=chance.randrange(5) * MIB,
                )
                for number in range(chance.randrange(9))
            ),
            key=lambda folder: (folder.at_s, folder.path),
        )
        limits = QuarantineLimits(max_age_s=chance.choice([0.0, 2 * DAY_S]), max_bytes=chance.randrange(12) * MIB)
        kept = list(found)
        while True:
            is_over = sum(folder.size_bytes for folder in kept) > limits.max_bytes
            may_go = [
                folder
                for folder in kept
                if (is_over or NOW_S - folder.at_s > limits.max_age_s)
                and (
                    NOW_S - folder.at_s >= HOLD_S
                    or any(other.at_s > folder.at_s for other in found if other.path.parent == folder.path.parent)
                )
            ]
            if not may_go:
                break
            kept.remove(may_go[0])
        assert due(found, limits, NOW_S) == [folder for folder in found if folder not in kept]
        counts.add((len(kept), len(found)))
    assert len(counts) > 20


def test_a_dry_run_names_what_the_run_then_removes(tmp_path):
    put(tmp_path, "a", age_s=9 * DAY_S)
    put(tmp_path, "b", age_s=8 * DAY_S, task="0_1")
    put(tmp_path, "c", age_s=DAY_S)
    shown = clean(tmp_path, WEEK, NOW_S, is_dry_run=True)
    assert (names(shown.removed), left(tmp_path)) == (["a", "b"], ["a", "b", "c"])
    assert clean(tmp_path, WEEK, NOW_S) == shown
    assert left(tmp_path) == ["c"]


def test_instances_in_use_restores_and_what_others_have_put_there_are_left_alone(tmp_path):
    task = tmp_path / "0_0"
    for name in ("current", "restoring"):
        TaskStore.create(task / name, "0_0", ["a"]).close()
    set_current(task, "current")
    (task / "restoring.json").write_text("{}")
    (task / "restoring" / "reason.txt").write_text("a kill before the move\n")
    put(tmp_path, "old", age_s=9 * DAY_S)
    own = tmp_path / "_own_stores" / "quarantine"  # a store of the user's own, of that name
    (own / "index").mkdir(parents=True)
    (own / "index" / "data.mdb").touch()
    (task / "quarantine" / "notes").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "reason.txt").write_text("a copy\n")
    (task / "quarantine" / "copy").symlink_to(elsewhere)
    for path in (path for path in tmp_path.rglob("*") if not path.is_symlink()):
        os.utime(path, (0, 0))
    before = {path for path in tmp_path.rglob("*") if "old" not in path.parts}
    assert names(clean(tmp_path, QuarantineLimits(max_age_s=0, max_bytes=0), NOW_S).removed) == ["old"]
    assert set(tmp_path.rglob("*")) == before
    assert current_instance(task) == task / "current"


def test_a_folder_that_a_process_has_open_is_kept_until_that_ends(tmp_path):
    put(tmp_path, "b", age_s=9 * DAY_S)
    with quarantined_while_open(tmp_path, "a") as moved:
        for is_dry_run in (True, False):
            cleaning = clean(tmp_path, WEEK, NOW_S, is_dry_run=is_dry_run)
            assert [(kept.folder.path, kept.why) for kept in cleaning.kept] == [(moved, "a process has it open")]
            assert names(cleaning.removed) == ["b"]
    assert names(clean(tmp_path, WEEK, NOW_S).removed) == ["a"]
    assert left(tmp_path) == []


def test_a_worker_lets_go_of_an_instance_that_a_restore_has_replaced(tmp_path):
    task = tmp_path / "0_0"
    for name in ("first", "second"):
        store = TaskStore.create(task / name, "0_0", ["a"])
        store.bulk_load({"a": []}, state=StateId(1, 1), generation=1)
        store.close()
    try:
        TaskStoreCache.get(task / "first", "0_0", ["a"])
        quarantine(task / "first", "asked for")
        TaskStoreCache.get(task / "second", "0_0", ["a"])
        assert TaskStoreCache.opened(task / "first") is None
        mapped = Path("/proc/self/maps").read_text().splitlines()
        assert [line for line in mapped if str(task / "first") in line] == []
    finally:
        TaskStoreCache.close_all()


@pytest.fixture
def unprivileged(tmp_path) -> Iterator[Path]:
    """A folder in which permissions count, for root too."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as name:
        nobody = 65_534
        os.chown(name, nobody, nobody)
        os.seteuid(nobody)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_a_folder_that_cannot_be_removed_is_reported_and_does_not_stop_the_rest(unprivileged):
    put(unprivileged, "a", age_s=10 * DAY_S)
    stuck = put(unprivileged, "b", age_s=9 * DAY_S)
    put(unprivileged, "c", age_s=8 * DAY_S)
    stuck.chmod(0o500)
    try:
        cleaning = clean(unprivileged, WEEK, NOW_S)
        assert names(cleaning.removed) == ["a", "c"]
        [kept] = cleaning.kept
        assert kept.folder.path == stuck
        assert "Permission denied" in kept.why
        assert str(stuck) in kept.why
        assert names(quarantined(unprivileged)) == ["b"]
    finally:
        stuck.chmod(0o700)
    assert names(clean(unprivileged, WEEK, NOW_S).removed) == ["b"]


def test_a_removal_that_was_killed_half_way_is_finished_by_the_next(tmp_path, monkeypatch):
    folder = put(tmp_path, "a", age_s=9 * DAY_S)
    (folder / "reader.copy").touch()
    unlink = Path.unlink

    def die(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        raise KeyboardInterrupt

    steps = 0
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        while (folder / "reason.txt").exists():
            assert names(quarantined(tmp_path)) == ["a"]
            with pytest.raises(KeyboardInterrupt):
                clean(tmp_path, WEEK, NOW_S)
            steps += 1
    assert steps == 3


def _clean(state: Path, start: multiprocessing.synchronize.Barrier, answers: multiprocessing.Queue[list[str]]) -> None:
    start.wait()
    cleaning = clean(state, WEEK, NOW_S)
    assert cleaning.kept == []
    answers.put(names(cleaning.removed))


def test_of_several_cleanings_at_the_same_time_one_removes_each_folder(tmp_path):
    expected = []
    for number in range(40):
        folder = put(tmp_path, f"f{number:02}", age_s=9 * DAY_S, task=f"0_{number % 4}", mib=0)
        for file in range(30):  # so that they meet in the middle of it
            (folder / str(file)).touch()
        expected.append(folder.name)
    put(tmp_path, "young", age_s=DAY_S)
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_clean, args=(tmp_path, start, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    removed = [name for _ in processes for name in answers.get(timeout=30)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(removed) == sorted(expected)
    assert left(tmp_path) == ["young"]


def test_an_application_without_state_on_this_host_has_nothing_in_quarantine(tmp_path):
    assert quarantined(tmp_path / "none") == []
    assert clean(tmp_path / "none", WEEK, NOW_S).removed == []
