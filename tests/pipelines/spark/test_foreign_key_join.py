"""A join by foreign key through the driver: its messages circle through epochs, commits, stops and kills."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Json, StreamsBuilder, String
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.spark.errors import TaskFailedError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

ORDERS, CUSTOMERS = 2, 3
"""Partitions of the two topics."""


@dataclass(frozen=True)
class Order:
    customer: str | None
    amount: int


@dataclass(frozen=True)
class Customer:
    tier: str


def program() -> Application:
    builder = StreamsBuilder()
    orders = builder.table("orders", key=String("id"), value=Json(Order), store="orders")
    customers = builder.table("customers", key=String("customer_id"), value=Json(Customer), store="customers")
    orders.join(customers, foreign_key="customer", store="priced").to_delta("priced")
    orders.left_join(customers, foreign_key="customer", store="all").to_delta("all")
    return Application("shop", builder, commit_interval=timedelta(milliseconds=20))


@pytest.fixture
def place(tmp_path) -> Place:
    """Rows of both topics; orders are in any partition, and times go back and forth."""
    random, topics = Random(7), Topics({})
    for number in range(ORDERS):
        topics.rows["orders", number] = [
            (
                b"%d-%d" % (number, random.randrange(12)),
                None
                if random.random() < 0.2
                else json.dumps(
                    {"customer": random.choice(["ann", "bob", "eve", "joe", None]), "amount": index}
                ).encode(),
                random.randrange(1_000),
            )
            for index in range(90)
        ]
    for name in (b"ann", b"bob", b"eve", b"joe"):
        rows = topics.rows.setdefault(("customers", int(murmur2([name])[0] & 0x7FFFFFFF) % CUSTOMERS), [])
        rows += [
            (name, None if random.random() < 0.3 else b'{"tier": "%d"}' % index, random.randrange(1_000))
            for index in range(40)
        ]
    for number in range(CUSTOMERS):
        topics.rows.setdefault(("customers", number), [])
    return Place(program(), topics, tmp_path, max_records=9)


def expected(place: Place) -> tuple[dict, dict]:
    """The expected rows of both joins by key, given what the topics hold."""
    newest: dict[str, dict] = {"orders": {}, "customers": {}}
    for (topic, _), rows in place.topics.rows.items():
        newest[topic] |= {key.decode(): value and json.loads(value) for key, value, _ in rows}
    orders = {key: order for key, order in newest["orders"].items() if order}
    every = {
        key: (order["amount"], (newest["customers"].get(order["customer"]) or {}).get("tier"))
        for key, order in orders.items()
    }
    return {key: row for key, row in every.items() if row[1] is not None}, every


def found(place: Place) -> tuple[dict, dict]:
    tables = (read_table(place.warehouse / "shop" / name) for name in ("priced", "all"))
    inner, left = ({row["id"]: (row["amount"], row["tier"]) for row in table.to_dicts()} for table in tables)
    return inner, left


@dataclass(frozen=True)
class Noted:
    customer: str | None
    amount: int
    note: str | None = None


@pytest.mark.parametrize(("before", "now"), [(Order, Noted), (Noted, Order)])
def test_an_order_hears_of_its_customer_after_its_fields_have_changed(tmp_path, before, now):
    def of(value: type) -> Application:
        builder = StreamsBuilder()
        orders = builder.table("orders", key=String("id"), value=Json(value), store="orders")
        customers = builder.table("customers", key=String("customer_id"), value=Json(Customer), store="customers")
        priced = orders.join(customers, foreign_key="customer", store="priced")
        priced.map_values(amount="amount", tier="tier").to_delta("priced")
        return Application("shop", builder)

    order = b'{"customer": "ann", "amount": 5, "note": "quick"}'
    place = Place(of(before), Topics({("orders", 0): [(b"1", order, 1)]}), tmp_path)
    place.topics.rows["customers", 0] = [(b"ann", b'{"tier": "old"}', 2)]
    place.run()
    place.application = of(now)
    place.topics.rows["customers", 0].append((b"ann", b'{"tier": "new"}', 3))
    place.run()
    rows = read_table(place.warehouse / "shop" / "priced").select("id", "amount", "tier").rows()
    assert rows == [("1", 5, "new")]


@pytest.mark.slow
def test_the_tables_are_joined_once_everything_is_read(place):
    summary = place.run()
    assert summary.records_in == sum(map(len, place.topics.rows.values()))
    assert found(place) == expected(place)
    assert len(found(place)[0]) > 5


@pytest.mark.slow
def test_a_topic_of_another_partitioner_is_refused_before_rows_miss_each_other(place):
    place.topics.rows |= {("customers", number): [] for number in range(CUSTOMERS)}
    place.topics.rows["customers", 0] = [(b"user-%d" % index, b'{"tier": "1"}', index) for index in range(9)]
    with pytest.raises(TaskFailedError, match=r"topic 'customers', partition 0: \d of 9 keys belong"):
        place.run()


@pytest.mark.slow
def test_a_table_joins_counts_of_itself(place):
    builder = StreamsBuilder()
    orders = builder.table("orders", key=String("id"), value=Json(Order), store="orders")
    per_customer = orders.group_by("customer").agg("per_customer", n=Count())
    orders.left_join(per_customer, foreign_key="customer").to_delta("counted")
    del place.topics.rows["customers", 0], place.topics.rows["customers", 1], place.topics.rows["customers", 2]
    place.application = Application("shop", builder, commit_interval=timedelta(milliseconds=20))
    place.run()
    newest = {key: value and json.loads(value) for rows in place.topics.rows.values() for key, value, _ in rows}
    named = {key.decode(): order["customer"] for key, order in newest.items() if order}
    counts = Counter(name for name in named.values() if name)
    found = read_table(place.warehouse / "shop" / "counted").to_dicts()
    assert {row["id"]: row["n"] for row in found} == {key: counts[name] or None for key, name in named.items()}


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_stop_commits_the_messages_under_way_and_the_next_run_takes_them_over_kept_or_restored_state(place, is_lost):
    stop = Event()
    place.driver(on_progress=lambda progress: stop.set() if progress.epoch > 3 else None).run(stop)
    commit = newest_commit(place.warehouse, "shop")
    assert commit.pending_blobs
    assert (
        0
        < sum(
            offset
            for task in commit.tasks.values()
            for offsets in task.positions.values()
            for offset in offsets.values()
        )
        < sum(map(len, place.topics.rows.values()))
    )
    if is_lost:
        shutil.rmtree(place.folder / "state")
    place.run()
    assert found(place) == expected(place)


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("step", ["blob written", "blob consumed", "pivot appended"])
def test_messages_are_neither_lost_nor_doubled_when_the_driver_dies(place, step):
    times = 0

    def die(name: str) -> None:
        nonlocal times
        times += name == step
        if times == 5:
            times += 1
            raise Killed

    with pytest.raises(Killed):
        place.run(die)
    place.run()
    assert found(place) == expected(place)
