"""Joins and repartitions without a name keep their rows, those on their way too, wherever they are in the program."""

from __future__ import annotations

import json
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.unnamed import Looked, Priced, Program, orders, prices
from weir import Application
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.spark.errors import PendingRowsError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows, read_table

PRICED, DISCOUNTED = Priced("orders", "prices", "priced"), Priced("orders", "discounts", "discounted")
LOOKED, BACK = Looked("orders", "prices", "looked"), Looked("returns", "discounts", "back")


def joined(place: Place, other: str, output: str) -> None:
    """Compare the table with a join of the newest rows of both topics."""
    items = {key.decode(): json.loads(value)["item"] for part in of(place, "orders") for key, value, _ in part}
    cents = {
        key.decode(): int.from_bytes(value, "big", signed=True) for part in of(place, other) for key, value, _ in part
    }
    found = read_table(place.warehouse / "shop" / output).select("order", "cents").rows()
    assert sorted(found) == sorted((order, cents[item]) for order, item in items.items() if item in cents)


def of(place: Place, topic: str) -> list:
    return [rows for (name, _), rows in place.topics.rows.items() if name == topic]


@pytest.mark.parametrize("loses_disk", [False, True])
@pytest.mark.parametrize(
    "changed", [Program((DISCOUNTED, PRICED)), Program((PRICED, DISCOUNTED), filters=2), Program((DISCOUNTED,), 1)]
)
def test_subscriptions_and_results_stay_with_their_join(tmp_path, changed, loses_disk):
    place = Place(Program((PRICED, DISCOUNTED)).application(), Topics(), tmp_path)
    place.topics.rows = {
        ("first", 0): [],
        ("orders", 0): orders(0, 30),
        ("prices", 0): prices(0, 5, 100),
        ("discounts", 0): prices(0, 3, 7),
    }
    place.run()
    for number, program in enumerate((changed, Program((PRICED, DISCOUNTED)), changed)):
        place.application = program.application()
        place.topics.rows["orders", 0] += orders(30 + 5 * number, 5)
        place.topics.rows["prices", 0] += prices(30 + 5 * number, 4, 100 + number)
        place.topics.rows["discounts", 0] += prices(30 + 5 * number, 4, 7 + number)
        if loses_disk:
            for data in place.state_folder.glob("*/*/data.mdb"):
                data.unlink()
        place.run()
        joined(place, "discounts", "discounted")
    if PRICED in changed.operators:
        joined(place, "prices", "priced")


@pytest.fixture
def behind(tmp_path):
    """One partition has ten times the records of the other over the same time, so rows of the latter wait."""
    place = Place(Program((LOOKED, BACK), declared=(LOOKED, BACK)).application(), Topics(), tmp_path, max_records=20)
    place.topics.rows = {
        **{("first", partition): [] for partition in range(2)},
        **{("prices", partition): [] for partition in range(2)},
        **{("discounts", partition): [] for partition in range(2)},
    }
    for topic, most in (("orders", 0), ("returns", 100_000)):
        for partition, every in ((0, 10), (1, 1)):
            place.topics.rows[topic, partition] = orders(0, 1_000, f"{topic}-{partition}-", most)[::every]
    return place


def stopped_half_way(place: Place) -> None:
    commits = []

    def step(name):
        commits.extend([name] if name == "pivot appended" else [])
        if len(commits) == 3 and name == "pivot appended":
            place.desk.ask("stop")
            driver._clock.requests = 0.0  # answered at once

    driver = place.driver(on_step=step)
    driver.run(Event())


def test_rows_on_their_way_reach_the_join_that_they_were_sent_to(behind):
    cents = {name: rows for name, rows in behind.topics.rows.items() if name[0] in ("prices", "discounts")}
    for (_, partition), rows in cents.items():
        rows += [(b"item-%d" % n, (1).to_bytes(8, "big"), 0) for n in range(5) if owner(n) == partition]
    stopped_half_way(behind)
    under_way = {blob.edge for blob in newest_commit(behind.warehouse, "shop").pending_blobs}
    known = edges(behind.application)
    assert under_way
    assert under_way <= known.keys()
    behind.application = Program((BACK, LOOKED), declared=(LOOKED, BACK)).application()
    moved = edges(behind.application)
    assert [moved[name] != origin for name, origin in known.items()] == [True, True], "each has the other's name"
    behind.run()
    for output, topic in (("looked", "orders"), ("back", "returns")):
        rows = read_rows(behind.warehouse / "shop" / output)
        wanted = [json.loads(value)["pieces"] for part in of(behind, topic) for _, value, _ in part]
        assert sorted(rows["pieces"]) == sorted(wanted)


def edges(application: Application) -> dict[str, str]:
    """What each edge with a made-up name is made from."""
    return {name: each.origin for name, each in application.topology.made_up_edges.items()}


def owner(item: int) -> int:
    """The partition of an item among two, by Kafka's default partitioner."""
    return (murmur2([b"item-%d" % item])[0] & 0x7FFFFFFF) % 2


def test_rows_on_their_way_to_a_join_that_is_gone_are_refused(behind):
    stopped_half_way(behind)
    behind.application = Program((LOOKED,), declared=(LOOKED, BACK)).application()
    with pytest.raises(PendingRowsError, match="drain"):
        behind.run(accept_state_loss=True)
