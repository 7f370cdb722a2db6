"""The simulated storage: what a loss of power leaves of files, and calls that fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random

import pytest

from tests.simulation.faults import error_at
from tests.simulation.storage import PageCache
from tests.simulation.substitutes import on_disk
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at

LOSSES = range(60)
"""So many losses of power, each with a seed of its own, are enough to see all that may be left."""
CONTENT = b"content!"


def left_after(tmp_path: Path, write: Callable[[Folder], object]) -> set[tuple[tuple[str, bytes], ...]]:
    """What losses of power leave, each time of what ``write`` has written."""
    found = set()
    for seed in LOSSES:
        disk = PageCache(tmp_path / str(seed) / "disk", tmp_path / str(seed) / "kept")
        with on_disk(disk.fsync, lambda kind, name: nullcontext()):
            folder = folder_at(tmp_path / str(seed) / "disk")
            write(folder)
            disk.lose_power(Random(seed))
            files = tuple((file.name, folder.get(file.name)) for file in sorted(folder.list(below=True), key=str))
            disk.lose_power(Random(seed))
            assert [folder.get(name) for name, _ in files] == [content for _, content in files], "it is on disk now"
        found.add(files)
    return found


def add(folder: Folder, name: str, *, is_durable: bool) -> None:
    folder.add(name, lambda target: Path(target).write_bytes(CONTENT), what="rows", needed=8, is_durable=is_durable)


def test_what_is_durable_by_the_contract_is_there_whatever_happens(tmp_path):
    def write(folder):
        folder.put("a", b"old")
        folder.put("a", CONTENT)
        folder.put_if_absent("b", CONTENT)
        add(folder, "deep/er/c", is_durable=True)
        add(folder, "deep/d", is_durable=False)
        folder.sync(["deep/d"])

    assert left_after(tmp_path, write) == {tuple((name, CONTENT) for name in ("a", "b", "deep/d", "deep/er/c"))}


def test_what_was_not_synced_is_there_whole_or_torn_or_gone(tmp_path):
    half = CONTENT[:4]
    found = left_after(tmp_path, lambda folder: add(folder, "a", is_durable=False))
    assert found == {(), *((("a", content),) for content in (CONTENT, half, b"", half + bytes(4)))}


def test_a_name_that_was_synced_may_stand_for_content_that_was_not(tmp_path):
    def write(folder):
        add(folder, "a", is_durable=False)
        folder.sync()

    assert left_after(tmp_path, write) == {(("a", content),) for content in (CONTENT, b"", b"cont", b"cont" + bytes(4))}


def test_names_that_were_not_synced_are_lost_in_any_order(tmp_path):
    def write(folder):
        for name in ("a", "b"):
            folder.put(name, b"old")
            folder.put(f"of {name}", CONTENT)
        for name in ("a", "b"):
            os.replace(folder.path / f"of {name}", folder.path / name)

    found = [dict(files) for files in left_after(tmp_path, write)]
    assert {(files["a"], files["b"]) for files in found} == {
        (one, other) for one in (b"old", CONTENT) for other in (b"old", CONTENT)
    }


def test_what_was_deleted_may_be_back(tmp_path):
    def write(folder):
        folder.put("deep/a", CONTENT)
        folder.put("b", CONTENT)
        folder.delete(["b"])
        folder.delete_folder("deep")

    a, b = ("deep/a", CONTENT), ("b", CONTENT)
    assert left_after(tmp_path, write) == {(), (a,), (b,), (b, a)}


def test_every_call_of_a_folder_may_fail(tmp_path):
    kinds = set()

    def calls(kind: str, name: str) -> nullcontext[None]:
        kinds.add(kind)
        return nullcontext()

    with on_disk(PageCache(tmp_path / "disk", tmp_path / "kept").fsync, calls):
        folder = folder_at(tmp_path / "disk") / "app"
        folder.make()
        folder.put("a", CONTENT)
        folder.put_if_absent("b", CONTENT)
        add(folder, "c", is_durable=False)
        folder.upload("d", folder.path / "a", 8, what="a copy")
        folder.download("d", tmp_path / "e", 8)
        folder.get_range("a", 0, len(folder.get("a")))
        folder.sync_content("c")
        folder.sync(["c"])
        assert (folder.find("a"), [*folder.list(prefix="z")], [*folder.folders()]) != (None, [], [])
        folder.delete(["a"])
        folder.delete_folder("gone")
        folder.remove_empty("gone")
        folder.remove_leftovers()
    without_answer = {"name", "parent", "path", "uri", "options", "at_once", "begun", "get_range"}
    of_what_is_staged = {"put_staged_if_absent", "drop"}
    assert kinds >= {name for name in vars(Folder) if not name.startswith("_")} - without_answer - of_what_is_staged
    assert all(error_at(f"{kind} a", Random(0)) for kind in kinds)


def test_a_call_fails_before_it_has_done_anything_or_after(tmp_path):
    fails: list[str] = ["before"]

    @contextmanager
    def calls(kind: str, name: str) -> Iterator[None]:
        if fails == ["before"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        yield
        if fails == ["after"]:
            raise TimeoutError(errno.ETIMEDOUT, "no answer")

    with on_disk(PageCache(tmp_path / "disk", tmp_path / "kept").fsync, calls):
        folder = folder_at(tmp_path / "disk") / "app"
        with pytest.raises(OSError, match="No space left"):
            folder.put("a", CONTENT)
        fails[:] = ["after"]
        with pytest.raises(TimeoutError):
            folder.put("a", CONTENT)
        fails.clear()
        assert folder.get("a") == CONTENT
