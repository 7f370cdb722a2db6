"""What every storage promises (``weir.state.storage.contract``), held to each implementation."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Barrier, Event

import polars as pl
import pytest
from obstore.store import MemoryStore

from tests.azure_server import AZURITE
from tests.simulation.storage import PageCache
from tests.simulation.substitutes import on_disk
from weir.state.storage.contract import Folder
from weir.state.storage.local import Local
from weir.state.storage.object_store import ObjectFolder
from weir.state.storage.places import folder_at, is_table, table_at, tables_in

WRITERS = 8


@pytest.fixture
def simulated(tmp_path) -> Iterator[Folder]:
    with on_disk(PageCache(tmp_path / "disk", tmp_path / "kept").fsync, lambda kind, name: nullcontext()):
        yield folder_at(tmp_path / "disk")


@pytest.fixture
def local(tmp_path) -> Folder:
    return Local(tmp_path)


@pytest.fixture
def memory() -> Folder:
    return ObjectFolder("memory://", "warehouse", MemoryStore())


@pytest.fixture
def s3(s3_bucket) -> Folder:
    return folder_at(f"{s3_bucket}/warehouse")


@pytest.fixture
def azure(azure_container) -> Folder:
    return folder_at(f"{azure_container}/warehouse")


@pytest.fixture(params=["local", "memory", "s3", *(["azure"] if AZURITE else []), "simulated"])
def folder(request) -> Folder:
    return request.getfixturevalue(request.param) / "app"


@pytest.fixture(params=["local", "s3", *(["azure"] if AZURITE else []), "simulated"])
def shared_folder(request) -> Folder:
    """One that delta-rs and polars can read."""
    return request.getfixturevalue(request.param) / "app"


def names(folder: Folder, prefix: str = "", **options) -> list[str]:
    return sorted(file.name for file in folder.list(prefix, **options))


def test_what_was_put_is_read_replaced_and_deleted(folder):
    folder.put("a.json", b"old")
    folder.put("a.json", b"newer")
    assert (folder.get("a.json"), folder.get_range("a.json", 1, 3), folder.get_range("a.json", 3, 9)) == (
        b"newer",
        b"ewe",
        b"er",
    )
    found = folder.find("a.json")
    assert found is not None
    assert (found.name, found.size_bytes) == ("a.json", 5)
    folder.delete(["a.json", "never there"])
    assert folder.find("a.json") is None
    with pytest.raises(FileNotFoundError):
        folder.get("a.json")


def test_after_a_call_has_failed_no_others_begin(folder: Folder):
    made = []

    def call(number: int) -> None:
        if number == 3:
            raise FileNotFoundError(str(number))
        time.sleep(0.01)
        made.append(number)

    with pytest.raises(FileNotFoundError, match="3"):
        folder.at_once(partial(call, number) for number in range(1_000))
    assert len(made) < 200


def test_calls_that_were_begun_have_ended_after_the_block(
    folder,
):
    def made(name: str) -> str:
        folder.put(name, b"x")
        return name

    with folder.begun(partial(made, name) for name in ("a", "b")) as results:
        assert (results(), results()) == (["a", "b"], ["a", "b"])
    with folder.begun([partial(made, "c"), partial(made, "d")]):
        pass
    assert names(folder) == ["a", "b", "c", "d"]
    with pytest.raises(FileNotFoundError), folder.begun([partial(folder.get, "gone"), partial(made, "e")]) as results:
        results()


def test_a_folder_is_made_with_those_above_it(folder):
    (folder / "deep" / "er").make()
    (folder / "deep" / "er").make()
    assert names(folder, below=True) == []


def test_a_folder_that_does_not_exist_has_no_files(folder):
    assert (names(folder, below=True), [*folder.folders()], folder.find("a")) == ([], [], None)


def test_names_lead_through_folders_and_two_handles_of_one_folder_are_equal(folder):
    folder.put("task/1.arrow", b"x")
    assert (folder / "task").get("1.arrow") == b"x"
    assert (folder / "task" == folder / "task", folder / "task" == folder / "other") == (True, False)
    assert ((folder / "task").name, len({folder / "task", folder / "task"})) == ("task", 1)


def test_files_are_listed_by_prefix_after_a_name_and_below(folder):
    for name in ("1.json", "2.json", "3.json", "3.part", "deep/4.json", "deep/er/5.json"):
        folder.put(name, b"x")
    assert names(folder) == ["1.json", "2.json", "3.json", "3.part"]
    assert names(folder, "3.") == ["3.json", "3.part"]
    assert names(folder, after="2.json") == ["3.json", "3.part"]
    assert names(folder, "deep/", below=True) == ["deep/4.json", "deep/er/5.json"]
    assert names(folder, below=True) == sorted([*names(folder), "deep/4.json", "deep/er/5.json"])


def test_of_several_writers_of_one_name_exactly_one_wins_and_its_content_is_there(folder):
    folder.put("begun", b"")
    for number in range(20):
        start = Barrier(WRITERS)

        def written(writer: int, name: str = f"{number:020}.json", start: Barrier = start) -> bool:
            start.wait()
            return folder.put_if_absent(name, b"%d" % writer * 1000)

        with ThreadPoolExecutor(WRITERS) as writers:
            won = list(writers.map(written, range(WRITERS)))
        assert won.count(True) == 1
        assert folder.get(f"{number:020}.json") == b"%d" % won.index(True) * 1000
    assert len(names(folder)) == 21


def test_what_is_staged_gets_a_name_that_is_free_and_leaves_nothing_when_it_is_dropped(folder):
    folder.put("1.json", b"theirs")
    staged = folder.stage(b"ours")
    assert names(folder, below=True) == ["1.json"]
    assert not folder.put_staged_if_absent("1.json", staged)
    assert folder.put_staged_if_absent("2.json", staged)
    folder.drop(staged)
    folder.drop(folder.stage(b"nobody's"))
    assert (folder.get("1.json"), folder.get("2.json")) == (b"theirs", b"ours")
    assert names(folder, below=True) == ["1.json", "2.json"]
    if isinstance(folder, Local):
        assert sorted(path.name for path in folder.path.iterdir()) == ["1.json", "2.json"]


def test_nobody_sees_a_part_of_a_file_while_it_is_replaced(folder):
    contents = [bytes([number]) * 200_000 for number in range(4)]
    folder.put("a", contents[0])
    done = Event()

    def read() -> set[bytes]:
        seen = set()
        while not done.is_set():
            seen.add(folder.get("a"))
        return seen

    with ThreadPoolExecutor(1) as reader:
        seen = reader.submit(read)
        for number in range(40):
            folder.put("a", contents[number % 4])
        done.set()
    assert seen.result() <= set(contents)
    assert names(folder) == ["a"]


def test_rows_are_added_as_polars_writes_them(shared_folder):
    folder, rows = shared_folder, pl.DataFrame({"n": [1, 2]})
    size = folder.add("part/1.parquet", rows.write_parquet, what="rows", needed=100, is_durable=False)
    folder.sync(["part/1.parquet"])
    found = folder.find("part/1.parquet")
    assert found is not None
    assert found.size_bytes == size
    uri, options = f"{folder.uri}/part/1.parquet", folder.options
    assert pl.read_parquet(uri, storage_options=options and dict(options)).equals(rows)


@pytest.mark.parametrize("take", [False, True])
def test_local_files_are_uploaded_and_downloaded_with_the_checksum_of_what_arrived(folder, tmp_path, take):
    source, target, content = tmp_path / "source", tmp_path / "target", bytes(range(256)) * 5_000
    source.write_bytes(content + b"room to grow")
    checksum = zlib.crc32(content)
    assert folder.upload("task/1.mdb", source, len(content), what="a snapshot") == checksum
    assert folder.download("task/1.mdb", target, len(content), take=take) == checksum
    assert target.read_bytes() == content
    with pytest.raises(OSError, match=r"12 bytes|No such file"):
        folder.download("task/1.mdb", tmp_path / "another", len(content) + 12)


def test_a_folder_is_deleted_with_all_below_it(folder):
    folder.put("gone/a", b"x")
    folder.put("gone/deep/b", b"x")
    folder.put("stays", b"x")
    assert sorted(folder.folders()) == ["gone"]
    folder.remove_empty("gone")
    assert len(names(folder, below=True)) == 3, "it is not empty"
    folder.delete_folder("gone")
    assert (names(folder, below=True), [*folder.folders()]) == (["stays"], [])


def test_a_folder_without_files_is_no_file_and_goes_without_a_word(folder):
    folder.put("empty/a", b"x")
    folder.delete(["empty/a"])
    folder.remove_empty("empty")
    folder.remove_empty("empty")
    assert (folder.find("empty"), [*folder.folders()]) == (None, [])


def test_delta_tables_are_found_and_opened(shared_folder):
    folder = shared_folder
    assert not is_table(folder)
    pl.DataFrame({"n": [1]}).write_delta(folder.uri, storage_options=folder.options and dict(folder.options))
    assert is_table(folder)
    assert table_at(folder).version() == table_at(folder, 0).version() == 0
    assert (tables_in(folder.parent), tables_in(folder)) == ([folder.name], [])


def test_a_writer_whose_folder_is_gone_does_not_make_it_anew(tmp_path):
    """A table that was removed must not come back as one entry of its log."""
    with pytest.raises(FileNotFoundError):
        Local(tmp_path / "gone").put_if_absent("1.json", b"x")
    assert not (tmp_path / "gone").exists()


@pytest.fixture
def events(monkeypatch) -> list[tuple[str, str]]:
    """What is done to local files from now on: syncs, links, replacements, by name."""
    noted, fsync, link, replace = list[tuple[str, str]](), os.fsync, os.link, os.replace

    def synced(descriptor: int) -> None:
        noted.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def linked(source: Path, target: Path) -> None:
        noted.append(("link", target.name))
        link(source, target)

    def replaced(source: Path, target: Path) -> None:
        noted.append(("replace", target.name))
        replace(source, target)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "fsync", synced)
    return noted


@pytest.mark.parametrize(("write", "way"), [(Local.put, "replace"), (Local.put_if_absent, "link")])
def test_a_local_file_is_on_disk_before_it_has_its_name_and_its_name_on_return(tmp_path, events, write, way):
    write(Local(tmp_path), "a.json", b"x")
    (content, scratch), *rest = events
    assert content == "sync"
    assert scratch.startswith(".")
    assert rest == [(way, "a.json"), ("sync", tmp_path.name)]


def test_a_new_local_folder_is_on_disk_before_the_file_in_it(tmp_path, events):
    Local(tmp_path).put("new/a.json", b"x")
    assert events[0] == ("sync", tmp_path.name)
    assert events[-1] == ("sync", "new")


def test_local_files_that_were_added_are_on_disk_before_their_names_at_once_or_when_synced(tmp_path, events):
    folder = Local(tmp_path / "app")

    def add(name: str, *, is_durable: bool) -> None:
        folder.add(name, lambda target: Path(target).write_bytes(b"x"), what="rows", needed=1, is_durable=is_durable)

    add("1", is_durable=True)
    assert events == [("sync", tmp_path.name), ("sync", "1"), ("sync", "app")]
    events.clear()
    add("2", is_durable=False)
    assert events == []
    folder.sync(["2"])
    assert events == [("sync", "2"), ("sync", "app")]


def test_what_a_killed_writer_left_is_no_file_and_goes_after_an_hour(tmp_path):
    folder = Local(tmp_path)
    old, new = tmp_path / ".old.tmp", tmp_path / ".new.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    (tmp_path / ".removed" / "table").mkdir(parents=True)
    assert names(folder, below=True) == []
    folder.remove_leftovers()
    assert [path.name for path in tmp_path.iterdir()] == [".new.tmp"]


def test_names_may_have_any_characters(folder):
    odd = ["a b", "c%2Fd", "e=f&g+h", "ü#?", "[i]{j}~'k'"]
    for name in odd:
        folder.put(f"{name}/{name}.json", name.encode())
    assert names(folder, below=True) == sorted(f"{name}/{name}.json" for name in odd)
    assert sorted(folder.folders()) == sorted(odd)
    for name in odd:
        assert (folder / name).get(f"{name}.json") == name.encode()
        found = folder.find(f"{name}/{name}.json")
        assert found is not None
        assert not folder.put_if_absent(found.name, b"another")
    folder.delete([f"{name}/{name}.json" for name in odd])
    assert names(folder, below=True) == []
