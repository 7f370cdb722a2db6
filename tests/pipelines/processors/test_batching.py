"""``KStream.batch``: the batches are those of a plain model, however epochs are cut, drivers die and disks are lost.

The model takes record by record: it opens a batch for a key, and lets it go when it is full, when a record would not
fit into it any more, or when its first record has waited long enough.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.processors.runs import CrashError, CrashesAt, disturbed_run
from tests.pipelines.spark.inline import Place, Topics
from tests.state.engine.own_store import InMemory
from weir import Application, Json, Materialized, StreamsBuilder, String, TopologyError
from weir.pipelines.processors import batching
from weir.state.commit.tables import read_rows
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.in_memory import free, is_in_memory
from weir.state.engine.instances import instances
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Order:
    item: str
    cents: int | None


@dataclass
class Model:
    max_records: int | None = None
    max_bytes: int | None = None
    max_wait: int | None = None
    now: int = 0
    open: dict = field(default_factory=dict)
    gone: list = field(default_factory=list)

    def take(self, key, record, size):
        held = self.open.get(key)
        is_above = held and self.max_records is not None and len(held["records"]) >= self.max_records
        if is_above or (held and self.max_bytes is not None and held["size"] + size > self.max_bytes):
            self.leave(key)
            held = None
        if held is None:
            held = self.open[key] = {"records": [], "size": 0, "opened": self.now}
        held["records"].append(record)
        held["size"] += size
        is_full = self.max_records is not None and len(held["records"]) >= self.max_records
        if is_full or (self.max_bytes is not None and held["size"] >= self.max_bytes):
            self.leave(key)

    def leave(self, key):
        self.gone.append((key, self.open.pop(key)["records"]))

    def wait(self, seconds):
        self.now += seconds
        due = [key for key, held in self.open.items() if held["opened"] + self.max_wait <= self.now]
        for key in due:
            self.leave(key)


def size_of(order: Order) -> int:
    return len(order.item.encode()) + (0 if order.cents is None else 8)


def program(**limits) -> Application:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("customer"), value=Json(Order))
    orders.batch(**{"name": "batches", **limits}).to_delta("out")
    return Application("orders", builder)


def orders(seed: int, count: int) -> list[tuple[str, Order]]:
    chance = random.Random(seed)
    return [
        (f"customer-{chance.randrange(6)}", Order("ö" * chance.choice([0, 1, 5, 40]), chance.choice([None, number])))
        for number in range(count)
    ]


def raw(given: list[tuple[str, Order]]) -> list[tuple[bytes, bytes, int]]:
    return [
        (key.encode(), json.dumps(order.__dict__).encode(), 1_000 * (place - 3 * (place % 4)) + 20_000)
        for place, (key, order) in enumerate(given)
    ]


def left(place: Place) -> list[tuple]:
    rows = read_rows(place.warehouse / "orders" / "out").sort("_epoch", "_seq")
    return [(row["customer"], [Order(**each) for each in row["records"]]) for row in rows.iter_rows(named=True)]


LIMITS = [{"max_records": 1}, {"max_records": 4}, {"max_bytes": 50}, {"max_records": 3, "max_bytes": 60}]


@pytest.mark.parametrize("seed", range(8))
def test_runs_that_crash_and_lose_disks_leave_the_batches_of_the_model(seed, tmp_path):
    limits, found = LIMITS[seed % len(LIMITS)], orders(seed, 200)
    place = disturbed_run(program(**limits), raw(found), tmp_path, seed, topic="orders")
    model = Model(**limits)
    for key, order in found:
        model.take(key, order, size_of(order))
    assert left(place) == model.gone
    rows = read_rows(place.warehouse / "orders" / "out")
    assert rows["count"].to_list() == rows["records"].list.len().to_list()
    times = {order.cents: ms for (_, order), (_, _, ms) in zip(found, raw(found), strict=True) if order.cents}
    for row in rows.iter_rows(named=True):
        known = [times[each["cents"]] for each in row["records"] if each["cents"]]
        assert all(row["first_time"].timestamp() * 1000 <= ms <= row["last_time"].timestamp() * 1000 for ms in known)
        assert row["_ts"] == row["last_time"]

    changed = program(max_records=2)  # other limits go on with the open batches
    place.application = changed
    model.max_records, model.max_bytes = 2, None
    more = orders(seed + 100, 60)
    place.topics.rows["orders", 0] = raw(found + more)
    place.run()
    for key, order in more:
        model.take(key, order, size_of(order))
    assert left(place) == model.gone


EVENTS = st.lists(
    st.one_of(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), st.tuples(st.just("wait"), st.integers(1, 40))),
    max_size=40,
)


@given(events=EVENTS, max_records=st.sampled_from([None, 3]))
def test_batches_leave_when_their_first_record_has_waited(events, max_records):
    model = Model(max_records=max_records, max_wait=30)
    limits = {"max_wait": timedelta(seconds=30)} | ({"max_records": max_records} if max_records else {})
    with TopologyTestDriver(program(**limits)) as driver:
        topic, table = driver.create_input_topic("orders"), driver.create_output_table("out")
        for name, number in events:
            if name == "wait":
                driver.advance_wall_clock_time(timedelta(seconds=number))
                model.wait(number)
            else:
                order = Order("x", number)
                topic.pipe_input(name, order)
                model.take(name, order, size_of(order))
            found = [(row["customer"], [Order(**each) for each in row["records"]]) for row in table.read_rows()]
            assert sorted(found, key=lambda batch: batch[0]) == sorted(model.gone, key=lambda batch: batch[0])
            model.gone.clear()


def test_an_open_batch_that_is_overdue_leaves_at_the_next_start_and_a_longer_wait_counts_from_its_first_record(
    tmp_path,
):
    place = Place(program(max_wait=timedelta(hours=1)), Topics({("orders", 0): raw(orders(1, 5))}), tmp_path)
    place.run()
    assert left(place) == []
    place.application = program(max_wait=timedelta(days=1))
    place.run()
    assert left(place) == []
    place.application = program(max_wait=timedelta(milliseconds=1))
    place.run()
    place.run()
    assert sorted(len(records) for _, records in left(place)) == sorted(
        [key for key, _ in orders(1, 5)].count(key) for key in {key for key, _ in orders(1, 5)}
    )


@pytest.mark.parametrize("seed", range(2))
def test_with_both_limits_each_record_leaves_once_and_in_its_order_whatever_is_killed(seed, tmp_path):
    """When a batch leaves by the wall clock depends on the run; which records leave does not."""
    chance, found = random.Random(seed), orders(seed, 200)
    place = Place(program(max_records=3, max_wait=timedelta(milliseconds=4)), Topics({("orders", 0): []}), tmp_path)
    for run in range(12):
        place.topics.rows["orders", 0] = raw(found[: (run + 1) * 200 // 12])
        place.max_records = chance.choice([4, 50])
        with suppress(Exception):
            place.run(CrashesAt(chance.randrange(1, 45) if run % 2 else 10_000))
        if chance.random() < 0.3:
            place.state_folder.rename(tmp_path / f"lost in {run}")
    for _ in range(2):
        place.run()
        time.sleep(0.01)
    place.run()
    given, gone = defaultdict(list), defaultdict(list)
    for key, order in found:
        given[key].append(order)
    for key, records in left(place):
        gone[key] += records
    assert gone == given
    assert {len(records) for _, records in left(place)} == {1, 2, 3}


@pytest.mark.parametrize("options", [{"in_memory": True}, {"logging": False, "on_loss": "empty"}])
def test_open_batches_may_be_in_memory_or_without_a_changelog(options, tmp_path):
    found, model = orders(3, 60), Model(max_records=4)
    application = program(max_records=4, name=Materialized("batches", **options))
    specs = application.topology.sub_topologies[0].stores
    assert {(spec.is_in_memory, spec.is_logged) for spec in specs} == {
        ("in_memory" in options, "logging" not in options)
    }
    place = Place(application, Topics({("orders", 0): []}), tmp_path, max_records=7)
    try:
        for last in (25, 60):
            place.topics.rows["orders", 0] = raw(found[:last])
            with suppress(CrashError):
                place.run(CrashesAt(12))
            place.run()
            for key, order in found[0 if last == 25 else 25 : last]:
                model.take(key, order, size_of(order))
            assert left(place) == model.gone
            assert model.open
            assert [is_in_memory(each) for each in instances(place.state_folder)] == ["in_memory" in options]
            if "logging" in options:
                assert not (place.warehouse / "orders" / "_changelog").exists()
                place.state_folder.rename(tmp_path / f"lost at {last}")
                model.open.clear()
    finally:
        TaskStoreCache.close_all()
        if place.state_folder.exists():
            free(place.state_folder)


def test_the_options_of_open_batches_are_checked():
    with pytest.raises(TopologyError, match=r'is neither an aggregation nor a table of a topic; add on_loss="empty"'):
        program(max_records=1, name=Materialized("batches", logging=False))
    with pytest.raises(TopologyError, match=r"cannot be in a store of your own; leave it out"):
        program(max_records=1, name=Materialized("batches", InMemory))


@pytest.mark.parametrize("on_stop", ["keep", "flush"])
def test_at_a_stop_open_batches_are_kept_or_leave_with_the_last_commit(on_stop, tmp_path):
    found = orders(2, 30)
    place = Place(program(max_records=4, on_stop=on_stop), Topics({("orders", 0): raw(found[:17])}), tmp_path)
    place.run()
    place.topics.rows["orders", 0] = raw(found)
    place.run()
    model = Model(max_records=4)
    for number, (key, order) in enumerate(found):
        model.take(key, order, size_of(order))
        if on_stop == "flush" and number in (16, 29):
            for each in list(model.open):
                model.leave(each)
    assert sorted(map(str, left(place))) == sorted(map(str, model.gone))


def test_at_a_stop_open_batches_leave_in_parts_whatever_their_keys_are(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "SCAN_ROWS", 2)
    builder = StreamsBuilder()
    pages = builder.stream("pages", key=String("user"), value=String("page"))
    part = pl.when(pl.col("page").str.len_chars() > 2).then(pl.col("page").str.slice(0, 2))
    keyed = pages.select_key(user=pl.col("user"), part=part, length=pl.col("page").str.len_chars().cast(pl.Int64))
    keyed.batch(max_records=100, name="read", on_stop="flush").to_delta("read")
    rows = [(b"u%d" % (number % 3), b"x" * (1 + number % 4), number) for number in range(30)]
    place = Place(Application("pages", builder), Topics({("pages", 0): rows}), tmp_path)
    place.run()
    found = read_rows(place.warehouse / "pages" / "read")
    counted = Counter(
        (user.decode(), page[:2].decode() if len(page) > 2 else None, len(page)) for user, page, _ in rows
    )
    assert dict(zip(found.select("user", "part", "length").rows(), found["count"], strict=True)) == counted
    place.run()
    assert read_rows(place.warehouse / "pages" / "read").height == found.height == len(counted)


def test_scalars_and_changed_keys_and_nulls():
    builder = StreamsBuilder()
    pages = builder.stream("pages", key=String("user"), value=String("page"))
    pages.select_key(section=pl.col("page").str.slice(0, 2)).batch(max_records=2, name="read").to_delta("read")
    with TopologyTestDriver(Application("pages", builder)) as driver:
        topic, table = driver.create_input_topic("pages"), driver.create_output_table("read")
        topic.pipe_key_value_list([("ann", "/a"), ("bob", None), ("bob", "/b"), ("eve", "/also")])
        (row,) = table.read_rows()
        assert (row["section"], row["records"], row["count"]) == ("/a", ["/a", "/also"], 2)
        assert driver.counts["null_keys"] + driver.counts["null_values"] == 1


def test_batches_without_a_name_are_refused():
    orders = StreamsBuilder().stream("orders", key=String("customer"), value=Json(Order))
    with pytest.raises(TopologyError, match="the store has no name; pass one, because unnamed state"):
        orders.batch(max_records=5)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({}, r"has no limit, so no batch would ever leave; pass max_records=, max_bytes= or max_wait="),
        ({"max_records": 0}, "max_records"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"max_wait": timedelta(0)}, "max_wait"),
        ({"max_records": 1, "on_stop": "drop"}, "on_stop is 'drop'; pass \"keep\""),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits, text):
    with pytest.raises(TopologyError, match=text):
        program(**limits)
