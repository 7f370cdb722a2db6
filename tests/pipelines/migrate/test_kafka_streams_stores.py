"""Every kind of store of a real Kafka Streams application becomes what plain rules say that it holds.

The changelogs are bytes that Kafka Streams printed.
"""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.pipelines.migrate.every_store import TOPICS, program
from tests.pipelines.migrate.kafka_streams_bytes import RECORDS, cluster
from tests.pipelines.spark.inline import Place, Topics
from weir.pipelines.migrate import KafkaStreamsApp
from weir.state.commit.tables import read_table
from weir.state.types import TaskId

STREAM_TIME = max(time for topic, _, _, time in RECORDS if topic == "clicks")


def app(topics, application=None, **options):
    return KafkaStreamsApp(
        id="app",
        application=application or program("moved"),
        cluster=topics,
        reader=topics.reader,
        topic_counts=dict.fromkeys(TOPICS, 1),
        **options,
    )


@pytest.fixture(scope="module")
def migration():
    return app(cluster()).migration()


def rows(migration, store, *columns):
    (frame,) = [each.rows for each in migration.stores if each.store.name == store]
    return sorted(
        tuple(int(item.timestamp() * 1000) if isinstance(item, datetime) else item for item in row)
        for row in frame.select(columns).rows()
    )


def of(topic):
    return [(key, value, time) for name, key, value, time in RECORDS if name == topic]


def test_every_store_is_taken(migration):
    stores = {each.store.name for each in migration.stores}
    assert stores == {
        "visits",
        "windows",
        "finals-store",
        "totals",
        "slow-store",
        "tiers",
        "orders",
        "users",
        "buyers-subscription-store",
        "buyers-result-store",
        "near-this-join-store",
        "near-outer-other-join-store",
        "near-left-shared-join-store",
    }
    assert not migration.left_out


def test_sessions_are_those_of_the_records_less_than_a_gap_apart(migration):
    sessions = {}
    for key, _, time in sorted(of("clicks"), key=lambda record: record[2]):
        known = sessions.setdefault(key, [])
        if known and time - known[-1][1] <= 5_000:
            known[-1] = (known[-1][0], time, known[-1][2] + 1)
        else:
            known.append((time, time, 1))
    still_open = [
        (key, start, end, count, end)
        for key, found in sessions.items()
        for start, end, count in found
        if end >= STREAM_TIME - 6_000
    ]
    assert rows(migration, "visits", "user", "window_start", "window_end", "count", "_ts") == sorted(still_open)
    assert len(still_open) == 2


def test_windows_and_totals_count_the_records(migration):
    windows, totals, newest = {}, {}, {}
    for key, _, time in of("clicks"):
        start = time // 10_000 * 10_000
        count, newest_ts = windows.get((key, start), (0, 0))
        windows[key, start] = (count + 1, max(newest_ts, time))
        totals[key] = totals.get(key, 0) + 1
        newest[key] = max(newest.get(key, 0), time)
    wanted = [(key, start, start + 10_000, count, ts) for (key, start), (count, ts) in windows.items()]
    assert rows(migration, "windows", "user", "window_start", "window_end", "count", "_ts") == sorted(wanted)
    held = [(key, start, count, start + 10_000, ts) for (key, start), (count, ts) in windows.items()]
    assert rows(migration, "finals-store", "user", "window_start", "count", "_since", "_ts") == sorted(held)
    assert rows(migration, "totals", "user", "count") == sorted(totals.items())
    first = {key: min(time for name, _, time in of("clicks") if name == key) for key in totals}
    slow = [(key, totals[key], first[key], False) for key in totals]
    assert rows(migration, "slow-store", "user", "count", "_since", "_gone") == sorted(slow)
    clocks = migration.clocks[TaskId(0, 0)]
    assert {clocks[name] for name in ("visits", "windows", "finals-store", "slow-store")} == {STREAM_TIME}
    assert clocks["_held_bytes:slow-store"] > 0


def test_versions_are_ordered_by_time_and_know_deletions(migration):
    wanted = sorted((key, time, value or "", value is None) for key, value, time in of("tiers"))
    found = rows(migration, "tiers", "user", "valid_from", "tier", "_gone")
    assert [(key, time, value or "", gone) for key, time, value, gone in found] == wanted
    assert migration.clocks[TaskId(0, 0)]["tiers"] == 9_000


def test_a_join_by_foreign_key_knows_its_subscriptions_and_results(migration):
    orders, users = {}, {}
    for table, topic in ((orders, "orders"), (users, "users")):
        for key, value, _ in of(topic):
            table[key] = value
    orders, users = ({key: value for key, value in table.items() if value} for table in (orders, users))
    assert rows(migration, "orders", "id", "buyer") == sorted(orders.items())
    assert rows(migration, "users", "user", "country") == sorted(users.items())
    subscribed = [(buyer, order, 0) for order, buyer in orders.items()]
    assert rows(migration, "buyers-subscription-store", "user", "id", "_sender") == sorted(subscribed)
    assert [key for (key,) in rows(migration, "buyers-result-store", "id")] == sorted(
        order for order, buyer in orders.items() if buyer in users
    )


def test_a_join_of_streams_keeps_both_sides_and_what_waits(migration):
    clicks = [(key, time, number, page) for number, (key, page, time) in enumerate(of("clicks"))]
    buys = [(key, time, number, item) for number, (key, item, time) in enumerate(of("buys"))]
    assert rows(migration, "near-this-join-store", "user", "_at", "_seq", "page") == sorted(clicks)
    assert rows(migration, "near-outer-other-join-store", "user", "_at", "_seq", "item") == sorted(buys)
    met = {click for click in clicks for buy in buys if click[0] == buy[0] and abs(click[1] - buy[1]) <= 3_000}
    newest, alone = 0, []
    for topic, key, value, time in RECORDS:
        if topic in ("clicks", "buys"):
            newest = max(newest, time)
            found = [
                click for click in clicks if topic == "clicks" and (click[0], click[1], click[3]) == (key, time, value)
            ]
            alone += [click for click in found if click not in met and time + 3_000 >= newest]
    alone = [click for click in alone if click[1] + 4_000 >= newest]
    found = rows(migration, "near-left-shared-join-store", "user", "_at", "_seq", "page", "_is_left")
    assert found == [(*click, True) for click in alone]
    assert len(found) == 1
    clocks = migration.clocks[TaskId(0, 0)]
    assert clocks["near-this-join-store&near-outer-other-join-store"] == newest
    assert clocks["_rows:near-this-join-store"] == len(clicks)


LATER = (
    ("clicks", "ann", "exit", 16_000),  # joins the session that began at 11,500
    ("buys", "ann", "cap", 12_500),  # meets the click at 11,500, which waits
    ("tiers", "ann", "tin", 15_000),
    ("users", "eve", "fr", 5_000),  # order o3 subscribes to it
    ("users", "ann", "au", 5_500),
    ("clicks", "eve", "home", 40_000),  # closes every window, and time limit
)


def test_what_is_read_after_the_move_meets_what_was_read_before(migration, tmp_path):
    topics = Topics()
    for topic, key, value, time in (*RECORDS, *LATER):
        topics.rows.setdefault((topic, 0), []).append((key.encode(), value and value.encode(), time))
    place = Place(program("moved"), topics, tmp_path, max_records=1)
    moved = app(cluster(), place.application).migration()
    assert moved.write(place.warehouse)
    assert place.run().records_in == len(LATER)

    def table(name, *columns):
        found = read_table(place.warehouse / "moved" / name).select(*columns).rows()
        return sorted(
            tuple(int(item.timestamp() * 1000) if isinstance(item, datetime) else item for item in row) for row in found
        )

    assert ("ann", 11_500, 16_000, 2) in table("visits", "user", "window_start", "window_end", "count")
    assert table("finals", "user", "window_start", "count") == [("ann", 0, 2), ("ann", 10_000, 2), ("bob", 0, 2)]
    assert table("slow", "user", "count") == [("ann", 4), ("bob", 2)]
    assert table("tiered", "user", "page", "tier") == [("ann", "exit", "tin")]
    assert table("buyers", "id", "buyer", "country") == [("o2", "ann", "au"), ("o3", "eve", "fr")]
    assert ("ann", "pay", "cap") in table("near", "user", "page", "item")
