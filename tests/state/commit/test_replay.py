"""A table's newest state is read from its log as delta-rs reads it, whatever its history and its checkpoints.

What a log should say is known by plain dictionaries of what was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from io import BytesIO
from random import Random
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.azure_server import AZURITE
from weir.state.commit import delta_log, live_files
from weir.state.commit.checkpoints import LOG, entry_name
from weir.state.commit.delta_log import DeltaLog
from weir.state.commit.layout import Layout
from weir.state.commit.replay import replay
from weir.state.commit.tables import file_actions
from weir.state.errors import DamagedFileError
from weir.state.storage.contract import Folder
from weir.state.storage.local import Local
from weir.state.storage.places import folder_at, table_at

STORAGES = {"local": "local", "s3": "s3_bucket"} | ({"azure": "azure_container"} if AZURITE else {})
PLACES = (None, "", "a", "é ü", "50%", "%41", "a=b/c", "'quoted'", "None")
COLUMNS = ("size_bytes", "num_records", "min._epoch", "max._epoch", "partition.place")
APPLICATIONS = ("app", "another", "é/%")


@pytest.fixture(params=STORAGES.values(), ids=STORAGES)
def folder(request, tmp_path) -> Folder:
    if request.param == "local":
        return Local(tmp_path) / "t"
    return folder_at(f"{request.getfixturevalue(request.param)}/t")


class Table:
    """A table of random entries, and what its newest state is."""

    def __init__(self, folder: Folder, seed: int = 0) -> None:
        self.folder, self.log, self.random, self.version = folder, folder / LOG, Random(seed), -1
        self.files: dict[str, tuple[Any, ...]] = {}
        """By path: size, rows, least and greatest epoch, place."""
        self.removed: list[str] = []
        self.transactions: dict[str, int] = {}
        self.properties: dict[str, str] = {}
        self.columns = ["n", "_epoch", "place"]
        self.log.make()
        self.put([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, self.metadata()])

    def put(self, actions: list[dict[str, Any]]) -> None:
        self.version += 1
        content = "".join(f"{json.dumps(action, ensure_ascii=False)}\n" for action in actions)
        assert self.log.put_if_absent(entry_name(self.version), content.encode())

    def metadata(self) -> dict[str, Any]:
        types = {"place": "string"}
        fields = [
            {"name": name, "type": types.get(name, "long"), "nullable": True, "metadata": {}} for name in self.columns
        ]
        return {
            "metaData": {
                "id": "00000000-0000-0000-0000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": ["place"],
                "configuration": self.properties,
                "createdTime": 1,
            }
        }

    def add(self, path: str | None = None) -> dict[str, Any]:
        """The action that adds a file, with all, some or none of its statistics."""
        place, number, rows = self.random.choice(PLACES), self.random.randrange(1_000), 7
        path = path or f"place={quote(str(place), safe='')}/{self.random.randrange(1 << 64):x}.parquet"
        epochs = {"_epoch": number, "n": 3}
        ends = {"minValues": epochs, "maxValues": epochs, "nullCount": {"n": 0}}
        stats: str | None = json.dumps({"numRecords": rows, **ends})
        known: tuple[Any, ...] = (rows, number, number)
        match self.random.randrange(6):
            case 0:
                stats, known = None, (None, None, None)
            case 1:
                stats, known = json.dumps({"numRecords": rows}), (rows, None, None)
        self.files[path] = (number, *known, place or None)
        return {
            "add": {
                "path": quote(path, safe="/="),
                "partitionValues": {"place": place},
                "size": number,
                "modificationTime": 1,
                "dataChange": True,
                **({} if stats is None else {"stats": stats}),
            }
        }

    def remove(self) -> dict[str, Any]:
        path = self.random.choice(sorted(self.files))
        del self.files[path]
        self.removed.append(path)
        return {"remove": {"path": quote(path, safe="/="), "deletionTimestamp": 1, "dataChange": True}}

    def go_on(self, entries: int = 1) -> None:
        for _ in range(entries):
            actions: list[dict[str, Any]] = []
            if self.files and self.random.random() < 0.4:
                actions.append(self.remove())
            elif self.removed and self.random.random() < 0.2:
                actions.append(self.add(self.removed.pop()))
            actions += [self.add() for _ in range(self.random.randrange(4))]
            if self.random.random() < 0.6:
                application, version = self.random.choice(APPLICATIONS), self.random.randrange(1 << 40)
                self.transactions[application] = version
                actions.append({"txn": {"appId": application, "version": version, "lastUpdated": 1}})
            if self.random.random() < 0.15:
                self.properties = {**self.properties, "weir.x": str(self.version)}
                self.columns = [*self.columns, f"more{self.version}"]
                actions.append(self.metadata())
            self.put(actions or [{"commitInfo": {"operation": "WRITE"}}])

    def checkpoint(self, parts: int = 0) -> None:
        """By delta-rs, in so many parts as Spark writes them; 0 is one file."""
        table_at(self.folder).create_checkpoint()
        name = f"{self.version:020}.checkpoint.parquet"
        if parts:
            rows = pq.read_table(BytesIO(self.log.get(name)))
            size = rows.num_rows // parts + 1
            for number in range(parts):
                content = BytesIO()
                pq.write_table(rows.slice(number * size, size), content)
                part = f"{self.version:020}.checkpoint.{number + 1:010}.{parts:010}.parquet"
                self.log.put(part, content.getvalue())
            self.log.delete([name, "_last_checkpoint"])

    def drop_before(self, version: int) -> None:
        """What a clean-up of the log removes: what is older than a version, but no checkpoint of the newest."""
        names = [file.name for file in self.log.list() if file.name[:20].isdecimal()]
        newest = f"{self.version:020}.checkpoint"
        self.log.delete(name for name in names if int(name[:20]) < version and not name.startswith(newest))

    def check(self) -> None:
        """Compare with the dictionaries, and with delta-rs."""
        logs = {name: DeltaLog(self.folder, name) for name in APPLICATIONS}
        files, properties = live_files.live_files(self.folder, ranges=["_epoch"], partitions=["place"])
        table = table_at(self.folder)
        assert {log.version for log in logs.values()} == {table.version()} == {self.version}
        transactions = {name: self.transactions.get(name, 0) for name in APPLICATIONS}
        assert {name: log.transaction for name, log in logs.items()} == transactions
        assert {name: table.transaction_version(name) or 0 for name in APPLICATIONS} == transactions
        layout = logs["app"].layout
        assert (properties, layout.properties, list(layout.columns)) == (self.properties, self.properties, self.columns)
        assert layout == Layout.of(table)
        found = files.select("path", *COLUMNS).rows()
        assert sorted(found, key=str) == sorted(((path, *file) for path, file in self.files.items()), key=str)
        by_delta = file_actions(table, ranges=["_epoch"])
        empty = by_delta.is_empty()
        assert sorted(found, key=str) == ([] if empty else sorted(by_delta.select("path", *COLUMNS).rows(), key=str))


@pytest.fixture
def without_delta_rs(monkeypatch) -> None:
    for module in (delta_log, live_files):
        monkeypatch.setattr(module, "opened", lambda place: pytest.fail("delta-rs reads more than is needed"))


@pytest.mark.usefixtures("without_delta_rs")
@pytest.mark.parametrize("seed", range(4))
def test_a_random_history_with_checkpoints_gives_the_state_that_delta_rs_finds(folder, seed):
    table, random = Table(folder, seed), Random(seed)
    for _ in range(4):
        table.go_on(random.randrange(1, 6))
        table.check()
        table.checkpoint(parts=random.choice((0, 0, 1, 3)))
        if random.random() < 0.5:
            table.drop_before(table.version + random.randrange(2))
        table.check()
    table.go_on(3)
    table.check()


@pytest.fixture
def table(folder) -> Table:
    """With checkpoints at 5 and 10, entries from 5 on and three after the second checkpoint."""
    made = Table(folder, 1)
    made.go_on(5)
    made.checkpoint()
    made.go_on(5)
    made.checkpoint()
    made.go_on(3)
    made.drop_before(5)
    return made


def cut(content: bytes) -> bytes:
    return content[:-30]


def emptied(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("harm", [cut, emptied])
def test_a_torn_checkpoint_gives_way_to_the_one_before_for_whoever_reads_first(table, harm):
    name = f"{10:020}.checkpoint.parquet"
    table.log.put(name, harm(table.log.get(name)))
    live_files.live_files(table.folder, ranges=["_epoch"])
    table.check()


def test_a_torn_part_of_a_checkpoint_gives_way_to_the_one_before(table):
    table.checkpoint(parts=3)
    name = f"{13:020}.checkpoint.{2:010}.{3:010}.parquet"
    table.log.put(name, cut(table.log.get(name)))
    table.check()


@pytest.mark.usefixtures("without_delta_rs")
def test_a_checkpoint_without_one_of_its_parts_does_not_count(table):
    table.checkpoint(parts=3)
    table.log.delete([f"{13:020}.checkpoint.{2:010}.{3:010}.parquet"])
    table.check()


READS: dict[str, Callable[[Folder], object]] = {
    "open": lambda folder: DeltaLog(folder, "app"),
    "files": lambda folder: live_files.live_files(folder, ranges=["_epoch"]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("missing", [11, 12])
def test_a_missing_entry_after_the_checkpoint_is_named(table, missing, read):
    table.drop_before(10)
    table.log.delete([entry_name(missing)])
    with pytest.raises(DamagedFileError, match=f"{entry_name(missing)} cannot be read: it is gone"):
        read(table.folder)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_torn_checkpoint_is_named_if_an_entry_since_the_one_before_is_missing(table, read):
    name = f"{10:020}.checkpoint.parquet"
    torn = cut(table.log.get(name))
    table.log.put(name, torn)
    table.log.delete([entry_name(7)])
    with pytest.raises(DamagedFileError, match=f"{name} cannot be read: it is cut"):
        read(table.folder)
    assert table.log.get(name) == torn


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_entry_that_a_torn_checkpoint_stands_for_is_not_passed_over(table, read):
    """Without the entry of the checkpoint's own version, the one before gives an older state."""
    table.drop_before(10)
    table.checkpoint()
    name = f"{13:020}.checkpoint.parquet"
    table.log.put(name, cut(table.log.get(name)))
    table.log.delete([entry_name(13), "_last_checkpoint"])
    with pytest.raises(DamagedFileError, match=f"{name} cannot be read: it is cut"):
        read(table.folder)


@pytest.mark.usefixtures("without_delta_rs")
def test_a_checkpoint_stands_for_the_entry_of_its_own_version(table):
    table.checkpoint()
    table.log.delete([entry_name(13)])
    assert DeltaLog(table.folder, "app").version == 13
    assert live_files.live_files(table.folder, ranges=["_epoch"])[0].height == len(table.files)


def rewritten(table: Table, change: Callable[[pa.Table], pa.Table]) -> None:
    """A checkpoint of the newest version as another writer makes it, which stands for all entries."""
    table.checkpoint()
    name, content = f"{table.version:020}.checkpoint.parquet", BytesIO()
    pq.write_table(change(pq.read_table(BytesIO(table.log.get(name)))), content)
    table.log.put(name, content.getvalue())
    table.log.delete(["_last_checkpoint"])
    table.drop_before(table.version)


def with_statistics_as_columns(rows: pa.Table, *, as_text: bool) -> pa.Table:
    """As Spark writes a checkpoint with ``delta.checkpoint.writeStatsAsStruct``; ``as_text`` also keeps the text."""
    adds = rows["add"].combine_chunks()
    columns = {field.name: adds.field(field.name) for field in adds.type}
    told = [None if text is None else json.loads(text) for text in columns["stats"].to_pylist()]
    ends = pa.struct({"n": pa.int64(), "_epoch": pa.int64()})
    parsed = pa.struct({"numRecords": pa.int64(), "minValues": ends, "maxValues": ends})
    columns["stats_parsed"] = pa.array(told, parsed)
    if not as_text:
        del columns["stats"]
    changed = pa.StructArray.from_arrays(list(columns.values()), names=list(columns), mask=adds.is_null())
    return rows.set_column(rows.column_names.index("add"), "add", changed)


def test_statistics_as_columns_alone_are_left_to_delta_rs(table):
    rewritten(table, partial(with_statistics_as_columns, as_text=False))
    assert replay(table.folder, with_files=True) is None
    table.check()


@pytest.mark.usefixtures("without_delta_rs")
def test_statistics_as_columns_beside_their_text_are_passed_over(table):
    rewritten(table, partial(with_statistics_as_columns, as_text=True))
    table.check()


def with_sidecar(rows: pa.Table) -> pa.Table:
    at = rows.column_names.index("sidecar")
    there = {"path": "other.parquet", "sizeInBytes": 1, "modificationTime": 1, "tags": None}
    sidecars = pa.array([there, *[None] * (rows.num_rows - 1)], rows.schema.field("sidecar").type)
    return rows.set_column(at, "sidecar", sidecars)


def test_a_checkpoint_whose_files_are_elsewhere_is_left_to_delta_rs(table):
    rewritten(table, with_sidecar)
    assert replay(table.folder, with_files=True) is replay(table.folder, with_files=False) is None


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_checkpoint_with_a_name_of_its_own_is_left_to_delta_rs(table, kind):
    """Delta's V2 format; here it alone has what the removed entries said."""
    rewritten(table, lambda rows: rows)
    name = f"{13:020}.checkpoint"
    table.log.put(f"{name}.80a083e8-7026-4e79-81be-64bd76c43a11.{kind}", table.log.get(f"{name}.parquet"))
    table.log.delete([f"{name}.parquet", entry_name(13)])
    assert replay(table.folder, with_files=True) is None
