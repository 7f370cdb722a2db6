"""What only object stores have: answers that get lost, and stores that let a second writer win."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import obstore
import polars as pl
import pytest
from obstore.store import MemoryStore

from tests.s3_proxy import Proxy, s3_proxy
from tests.state.commit.commits import FACTS, TABLES, all_counts, record
from weir.state.commit.checkpoints import is_whole
from weir.state.commit.damage import damaged_file, unreadable
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.errors import ConditionalPutError, ObjectStoreAwayError, ObjectStoreError
from weir.state.storage import object_store
from weir.state.storage.object_store import ObjectFolder, away, is_away, require_conditional_puts
from weir.state.storage.places import folder_at, table_at


@pytest.fixture
def folder() -> ObjectFolder:
    return ObjectFolder("memory://", "app", MemoryStore())


def test_a_put_whose_answer_was_lost_finds_its_own_file_when_it_is_repeated(folder, monkeypatch):
    def put_twice(*arguments, put=obstore.put, **options):
        put(*arguments, **options)
        return put(*arguments, **options)

    monkeypatch.setattr(object_store.obstore, "put", put_twice)
    assert folder.put_if_absent("1.json", b"mine")
    assert not folder.put_if_absent("1.json", b"mine"), "the same content is no sign of the same writer"


def test_a_store_that_refuses_a_second_put_is_taken_and_nothing_is_left_there(folder, s3_bucket):
    for each in (folder, folder_at(f"{s3_bucket}/app")):
        require_conditional_puts(each)
        assert [part for part in obstore.list(each.store)] == []


def test_a_store_that_lets_a_second_writer_win_is_refused(folder, monkeypatch):
    def put(*arguments, put=obstore.put, mode="overwrite", **options):
        return put(*arguments, **options)

    monkeypatch.setattr(object_store.obstore, "put", put)
    with pytest.raises(ConditionalPutError, match=r"does not refuse a second put .* or a folder of a local disk"):
        require_conditional_puts(folder)
    assert list(obstore.list(folder.store)) == []


@pytest.fixture
def proxy(s3_url, s3_bucket, monkeypatch) -> Iterator[Proxy]:
    with s3_proxy(s3_url) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        yield found


def test_a_put_whose_answer_the_network_loses_is_known_as_ones_own_and_nobody_elses(proxy, s3_bucket):
    folder = folder_at(f"{s3_bucket}/app")
    proxy.losing = 1
    assert folder.put_if_absent("1.json", b"mine")
    assert proxy.losing == 0
    assert folder.get("1.json") == b"mine"
    proxy.losing = 1
    assert not folder.put_if_absent("1.json", b"mine")


def test_a_server_that_asks_for_time_is_asked_again(proxy, s3_bucket):
    folder = folder_at(f"{s3_bucket}/app")
    for call in (
        lambda: folder.put("1", b"x"),
        lambda: folder.put_if_absent("2", b"x"),
        lambda: folder.get("1"),
        lambda: folder.find("1"),
        lambda: list(folder.list()),
        lambda: folder.delete(["1"]),
    ):
        proxy.refusing = 2
        call()
        assert proxy.refusing == 0
    assert [file.name for file in folder.list()] == ["2"]


def test_delta_rs_gives_a_store_that_is_away_as_long_as_obstore_does(proxy, s3_bucket):
    """Its error says for how long it would have asked; here it asks twice."""
    folder = AppendTable.create(folder_at(s3_bucket) / "app", FACTS, "app").folder
    assert isinstance(folder, ObjectFolder)
    proxy.refusing = 1_000_000
    asking_twice = replace(folder, options={**(folder.options or {}), "max_retries": "1"})
    with pytest.raises(OSError, match=r"(?s)retry_timeout\s.*15s\s.*503 Service Unavailable") as error:
        table_at(asking_twice)
    assert is_away(error.value)


def test_commits_lose_and_double_nothing_though_answers_get_lost_and_the_server_asks_for_time(proxy, s3_bucket):
    warehouse = folder_at(f"{s3_bucket}/warehouse")
    driver = Committer(warehouse, "app", [FACTS], fingerprint="f")
    driver.claim()
    for epoch in range(1, 7):
        rows = pl.DataFrame({"n": [epoch], "_epoch": [epoch]})
        files = (write_file(warehouse / "app", FACTS, rows),)
        proxy.losing, proxy.refusing = epoch % 3, epoch % 2
        driver.commit(CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=files))
    driver.close()
    proxy.losing = proxy.refusing = 0
    assert sorted(read_rows(warehouse / "app" / FACTS.name)["n"]) == [1, 2, 3, 4, 5, 6]
    log = read_rows(warehouse / "app" / "_commits")
    assert sorted(log["epoch"]) == [0, 1, 2, 3, 4, 5, 6]


def test_errors_are_those_of_the_contract_and_leave_out_what_obstore_adds(monkeypatch, s3_bucket):
    with pytest.raises(ObjectStoreError, match=r"The specified bucket does not exist; check") as found:
        folder_at(f"{s3_bucket}-2/app").put("1", b"x")
    assert "\n" not in str(found.value)
    assert isinstance(found.value, OSError)
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)
    with pytest.raises(FileNotFoundError):
        folder_at(f"{s3_bucket}/app").get("1")
    with pytest.raises(ObjectStoreError, match="Account must be specified"):
        folder_at("az://container/app")


OF_DELTA = """Kernel error -> Generic S3 error
          \x1b[31m\u21b3\x1b[0m Error performing GET http://127.0.0.1:9/bench/t in 101.9ms, after 1 retries
            \x1b[31m\u21b3\x1b[0m 180s  - Server returned non-2xx status code
             \x1b[31m\u21b3\x1b[0m 503 Service Unavailable
"""


def test_a_store_that_is_away_is_not_taken_for_a_damaged_file(proxy, s3_bucket, monkeypatch):
    retry = {"max_retries": 1, "backoff": {"init_backoff": timedelta(milliseconds=1)}}
    monkeypatch.setattr(object_store, "_RETRY", retry)
    monkeypatch.setitem(object_store._OPTIONS, "s3", {**object_store._OPTIONS["s3"], "max_retries": 1})  # polars' own
    app = folder_at(f"{s3_bucket}/warehouse/app")
    name, table = write_file(app, FACTS, pl.DataFrame({"n": [1], "_epoch": [1]})).path, app / FACTS.name
    proxy.hanging_up = 1_000_000
    for call in (
        lambda: is_whole(table, name),
        lambda: unreadable(table, name),
        lambda: damaged_file(table, [name]),
        lambda: read_rows(table),
    ):
        with pytest.raises(
            ObjectStoreAwayError, match=r"/facts(/_delta_log)? does not answer: .*error sending request.*; check"
        ):
            call()
    proxy.hanging_up = 0
    assert is_whole(table, name)
    assert unreadable(table, name) == ""
    assert is_away(OSError(OF_DELTA))
    assert "answer: Server returned non-2xx status code 503 Service Unavailable; check" in str(
        away(table.uri, OSError(OF_DELTA))
    )


@pytest.mark.parametrize("table", ["_commits", "facts"])
def test_a_write_whose_answer_is_lost_by_a_store_that_stays_away_is_known_as_ones_own_later(
    proxy, s3_bucket, monkeypatch, table
):
    retry = {"max_retries": 1, "backoff": {"init_backoff": timedelta(milliseconds=1)}}
    monkeypatch.setattr(object_store, "_RETRY", retry)
    warehouse, write = folder_at(f"{s3_bucket}/warehouse"), AppendTable.write
    driver = Committer(warehouse, "app", TABLES, fingerprint="f")
    driver.claim()
    wanted = record(warehouse, 1, 1)

    def written_without_an_answer(self, version, files):
        assert write(self, version, files)
        if self.name == table and not proxy.hanging_up:
            self._log.version, self._log.transaction = before[self.name]
            proxy.hanging_up = 1_000_000
            raise ObjectStoreAwayError(self.folder.uri, "error sending request")
        return True

    with monkeypatch.context() as broken:
        before = {each.name: (each._log.version, each.version) for each in (driver._log, *driver._tables.values())}
        broken.setattr(AppendTable, "write", written_without_an_answer)
        with pytest.raises(ObjectStoreAwayError):
            driver.commit(wanted)
    proxy.hanging_up = 0
    driver.commit(wanted)
    driver.commit(record(warehouse, 1, 2))
    driver.close()
    assert all_counts(warehouse) == [2, 4, 2]
    assert sorted(read_rows(warehouse / "app" / "_commits")["epoch"]) == [0, 1, 2]


def test_a_long_download_comes_in_parts_each_of_which_is_a_request(proxy, s3_bucket, monkeypatch, tmp_path):
    """A request has half a minute for its whole answer."""
    monkeypatch.setattr(object_store, "_CHUNK_BYTES", 100_000)
    folder, content = folder_at(f"{s3_bucket}/app"), bytes(range(251)) * 4_000
    folder.put("1.mdb", content)
    proxy.requests.clear()
    assert folder.download("1.mdb", tmp_path / "1.mdb", len(content)) == zlib.crc32(content)
    assert (tmp_path / "1.mdb").read_bytes() == content
    assert proxy.requests == {"GET": 11}


def test_a_commit_asks_as_often_as_the_page_says(proxy, s3_bucket):
    """Of three tables with a file each; the fewer requests, the sooner a commit is done far from the store."""
    warehouse = folder_at(f"{s3_bucket}/warehouse")
    driver = Committer(warehouse, "app", TABLES, fingerprint="f")
    driver.claim()
    driver.commit(record(warehouse, 1, 1))
    proxy.requests.clear()
    second = record(warehouse, 1, 2)
    assert proxy.requests == {"PUT": 3}
    driver.commit(second)
    driver.close()
    assert proxy.requests == {"PUT": 8, "HEAD": 7, "GET": 8}


def test_what_a_commit_waits_for_does_not_grow_with_its_tables(proxy, s3_bucket):
    """The checks, the pivot, what came after it, the appends, what came after those."""
    warehouse = folder_at(f"{s3_bucket}/warehouse")
    driver = Committer(warehouse, "app", TABLES, fingerprint="f")
    driver.claim()
    written = record(warehouse, 1, 1)
    proxy.delay_s, proxy.rounds = 0.2, 0
    driver.commit(written)
    driver.close()
    assert proxy.rounds <= 5


class CrashError(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("deletions", [0, 1])
def test_what_a_killed_deletion_leaves_goes_later_and_nothing_that_came_since(folder, monkeypatch, deletions):
    for name in ("t/_delta_log/0.json", "t/_delta_log/1.json", "t/a.parquet", "t/part=1/b.parquet", "other/c"):
        folder.put(name, b"old")
    done, delete = [], ObjectFolder._delete

    def dies(self, keys):
        if len(done) == deletions:
            raise CrashError
        delete(self, keys)
        done.append(keys)

    with monkeypatch.context() as broken:
        broken.setattr(ObjectFolder, "_delete", dies)
        with pytest.raises(CrashError):
            folder.delete_folder("t")
    left = {file.name for file in folder.list(below=True)} - {"other/c"}
    assert left >= {"t/a.parquet", "t/part=1/b.parquet"}, "a log that is there has its files"
    assert any("_delta_log" in name for name in left) is (deletions == 0)
    for name in ("t/_delta_log/0.json", "t/new.parquet"):
        folder.put(name, b"new")
    folder.remove_leftovers()
    assert {file.name for file in folder.list(below=True)} == {"t/_delta_log/0.json", "t/new.parquet", "other/c"}
    assert folder.get("t/_delta_log/0.json") == b"new"
    folder.delete_folder("t")
    assert [each["path"] for part in obstore.list(folder.store) for each in part] == ["app/other/c"]
