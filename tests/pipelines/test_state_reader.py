"""Queries of a real run's stores: keys, ranges, positions, waiting for one, and which task holds a key."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace

import polars as pl
import pytest

from tests.pipelines.serdes.registry_server import schema_registry
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import sales
from weir import (
    Application,
    Avro,
    Count,
    Json,
    Query,
    QueryError,
    SchemaRegistryError,
    StateReader,
    StreamsBuilder,
    String,
    Sum,
)
from weir.pipelines import state_reader
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.serdes.row_type import RowType
from weir.state.engine.cache import TaskStoreCache
from weir.state.types import IsolationLevel


@dataclass(frozen=True)
class Sale:
    amount: int


def application(isolation: str = "read_committed") -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("shop"), value=Json(Sale))
    stream.group_by_key().agg("sums", total=Sum("amount"), sales=Count()).to_delta("totals")
    stream.group_by("amount").agg("by_amount", sales=Count()).to_delta("amounts")
    return Application("sales", builder, commit_interval=timedelta(milliseconds=1), state_isolation=isolation)


@pytest.fixture
def place(tmp_path):
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    place = Place(application(), topics, tmp_path, max_records=30)
    place.run()
    (tmp_path / "dir" / "state").mkdir(parents=True)
    (tmp_path / "dir" / "state" / "sales").symlink_to(tmp_path / "state")
    return place


def test_keys_ranges_and_prefixes_are_answered_with_their_position(place):
    reader = StateReader(place.folder / "dir", place.application)
    answer = reader.get("sums", "shop-2")
    assert answer.rows.select("shop", "sales").rows() == [("shop-2", 20)]
    assert answer.position == {"sales": {0: 100, 1: 100}}
    shops = [f"shop-{number}" for number in range(10)]  # of both tasks
    assert reader.range("sums").rows["shop"].to_list() == shops
    assert reader.range("sums", "shop-2", "shop-4").rows["shop"].to_list() == ["shop-2", "shop-3", "shop-4"]
    assert reader.prefix("sums", "shop-7").rows["shop"].to_list() == ["shop-7"]
    assert reader.get("by_amount", {"amount": 7}).rows["sales"].to_list() == [2]
    for key in (7, (7,), RowType(pl.Schema({"amount": pl.Int64()})).to_objects(pl.DataFrame({"amount": [7]}))[0]):
        assert reader.get("by_amount", key).rows["sales"].to_list() == [2]
        assert reader.range("by_amount", key, key).rows["sales"].to_list() == [2]
    for look in (reader.get, reader.range, reader.task_of):
        for key in ("seven", (7, 7), {"shop": 7}):
            with pytest.raises(QueryError, match=r"store 'by_amount': .* the key, which has the column amount \(int\)"):
                look("by_amount", key)
    with pytest.raises(QueryError, match="'sums' is a key-value store"):
        reader.windows("sums", "shop-2")


def test_a_query_waits_for_a_position_or_says_why_it_is_not_reached(place, monkeypatch):
    reader = StateReader(place.folder / "dir", place.application)
    assert reader.get("sums", "shop-2", query=Query(at_least={"sales": {0: 100}})).rows.height == 1
    with pytest.raises(QueryError, match="sales-0 is at 100, not 120"):
        reader.get("sums", "shop-2", query=Query(at_least={"sales": {0: 120}}))
    with pytest.raises(QueryError, match=r"'sums' do not read .*sales"):
        reader.get("sums", "shop-2", query=Query(at_least={"sales": {7: 1}}))
    place.topics.rows["sales", 0] += sales(20, 0)
    waits = SimpleNamespace(monotonic=time.monotonic, time_ns=time.time_ns, sleep=lambda seconds: place.run())
    monkeypatch.setattr(state_reader, "time", waits)
    answer = reader.get("sums", "shop-2", query=Query(at_least={"sales": {0: 120}}, timeout=timedelta(seconds=30)))
    assert answer.rows["sales"].to_list() == [24]
    assert answer.position["sales"][0] == 120


def test_the_task_that_holds_a_key_is_found(place):
    reader = StateReader(place.folder / "dir", place.application)
    assert reader.tasks("by_amount") == [place.name_of("1_0"), place.name_of("1_1")]
    for amount in range(20):
        task = reader.task_of("by_amount", amount)
        others = [name for name in reader.tasks("by_amount") if name != task]
        (folder,) = [place.folder / "state" / name for name in others]
        hidden = folder.rename(folder.with_name("hidden"))
        try:
            assert reader.get("by_amount", amount).rows.height == 1
        finally:
            hidden.rename(folder)
    assert reader.task_of("sums", "a") in reader.tasks("sums")


@dataclass(frozen=True)
class Town:
    mayor: str


def test_the_task_of_a_key_does_not_depend_on_what_a_store_calls_its_columns(monkeypatch):
    monkeypatch.setattr(StateReader, "tasks", lambda reader, store: [f"{store}_{number}" for number in range(64)])
    builder = StreamsBuilder()
    sold = builder.stream("sales", key=String("shop"), value=Json(Sale))
    towns = builder.table("towns", key=String("town"), value=Json(Town), store="towns")
    sold.to_table("newest").join(towns).to_delta("joined")
    moved = builder.stream("moves", key=String("id"), value=Json(Town)).group_by("mayor")
    both = builder.stream("votes", key=String("name"), value=Json(Sale)).group_by_key().cogroup(votes=Count())
    both.cogroup(moved, moves=Count()).agg("both").to_delta("both")
    owned = builder.table("owned", key=String("id"), value=Json(Town), store="owned")
    owned.join(
        builder.table("mayors", key=String("person"), value=Json(Sale), store="mayors"),
        foreign_key="mayor",
        store="ruled",
    ).to_stream().to_delta("ruled")
    reader = StateReader("nowhere", Application("sales", builder))
    found = [reader.task_of(store, "Ulm") for store in ("newest", "towns", "both", "mayors", "ruled-result-store")]
    found.append(reader.task_of("ruled-subscription-store", ("Ulm", "7")))
    partition = int(murmur2([b"Ulm"])[0] & 0x7FFFFFFF) % 64
    assert {task.rpartition("_")[2] for task in found} == {str(partition)}


@dataclass(frozen=True)
class Shop:
    town: str
    number: int


def by_shop() -> Application:
    builder = StreamsBuilder()
    builder.stream("sales", key=Avro(Shop), value=Json(Sale)).group_by_key().agg("sums", total=Sum("amount"))
    return Application("sales", builder, commit_interval=timedelta(milliseconds=1))


@pytest.mark.slow
def test_stores_with_avro_keys_need_a_registry_only_to_find_a_keys_task(tmp_path):
    with schema_registry() as server:
        serde = Avro(Shop)
        connect_serdes([serde], {"url": server.url})
        keys = {number: serde.encode(Shop("Ulm", number)) for number in range(8)}
        rows = {
            ("sales", partition): [
                (key, b'{"amount": %d}' % number, 1_000)
                for number, key in keys.items()
                if murmur2([key])[0] % 2 == partition
            ]
            for partition in (0, 1)
        }
        running = by_shop()
        connect_serdes(running.topology.serdes(), {"url": server.url})
        place = Place(running, Topics(rows), tmp_path)
        place.run()
        (tmp_path / "dir" / "state").mkdir(parents=True)
        (tmp_path / "dir" / "state" / "sales").symlink_to(tmp_path / "state")
        reader = StateReader(tmp_path / "dir", by_shop())
        assert reader.get("sums", Shop("Ulm", 3)).rows["total"].to_list() == [3]
        with pytest.raises(SchemaRegistryError, match=r"--set schema_registry\.url"):
            reader.task_of("sums", Shop("Ulm", 3))
        reader = StateReader(tmp_path / "dir", by_shop(), schema_registry={"url": server.url})
        for number, key in keys.items():
            partition = murmur2([key])[0] % 2
            assert reader.task_of("sums", Shop("Ulm", number)) == place.name_of(f"0_{partition}")
    assert {partition for partition in (0, 1) if rows["sales", partition]} == {0, 1}, "keys of both tasks"


@pytest.mark.slow
def test_queries_use_the_applications_isolation_level_unless_they_set_their_own(place):
    driver = place.driver()
    place.topics.rows["sales", 0] += sales(5, 0)
    driver._ends = place.topics.end_offsets([("sales", 0), ("sales", 1)])
    driver._run_epoch()
    TaskStoreCache.close_all()  # a process opens a store once
    for default, isolation, wanted in (
        ("read_committed", None, 20),
        ("read_uncommitted", None, 21),
        ("read_uncommitted", IsolationLevel.READ_COMMITTED, 20),
        ("read_committed", IsolationLevel.READ_UNCOMMITTED, 21),
    ):
        reader = StateReader(place.folder / "dir", application(default))
        assert reader.get("sums", "shop-2", query=Query(isolation=isolation)).rows["sales"].to_list() == [wanted]
