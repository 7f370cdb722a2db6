"""Sides of joins, held updates and subscriptions in memory or without changelogs, against plain loops over the records.
PROTOCOL 37 and 39; what kills at each step leave of any such store is in ``test_unlogged_stores`` and
``test_stores_in_memory``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.state.engine.own_store import InMemory
from weir import (
    Application,
    BufferConfig,
    Int64,
    JoinWindows,
    Materialized,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
)
from weir.state.commit.tables import read_rows
from weir.state.engine import in_memory
from weir.state.engine.cache import TaskStoreCache

REACH_MS, WAIT_MS, GRACE_MS = 10_000, 60_000, 20_000
ROWS = 60
UNLOGGED = {"logging": False, "on_loss": "empty"}
Updates = list[tuple[int, str, int]]
"""Time, key, value, by time."""


def application(**options: object) -> Application:
    def kept(name: str) -> Materialized:
        return Materialized(name, **options)

    builder = StreamsBuilder()
    ads = builder.stream("ads", key=String("user"), value=Int64("ad"))
    clicks = builder.stream("clicks", key=String("user"), value=Int64("click"))
    near = JoinWindows.of_time_difference_with_no_grace(timedelta(milliseconds=REACH_MS))
    ads.left_join(clicks, windows=near, store=kept("near")).to_delta("followed")
    wait = Suppressed.until_time_limit(timedelta(milliseconds=WAIT_MS), BufferConfig.unbounded())
    newest = ads.to_table(Materialized("newest", in_memory=bool(options.get("in_memory"))))
    newest.suppress(wait.with_name(kept("held"))).to_stream().to_delta("released")
    return Application("ads", builder, commit_interval=timedelta(milliseconds=1))


def updates(first: int, last: int) -> tuple[Updates, Updates]:
    """Ads and clicks of seven users, one of either every four seconds."""
    ads = [(n * 4_000, f"user-{n * 5 % 7}", n) for n in range(first, last)]
    clicks = [(n * 4_000 + 2_000, f"user-{n * 3 % 7}", n) for n in range(first, last)]
    return ads, clicks


def rows_of(found: Updates) -> list:
    return [(user.encode(), number.to_bytes(8, "big"), time_ms) for time_ms, user, number in found]


class Site(Place):
    @classmethod
    def of(cls, folder, **options: object) -> Site:
        ads, clicks = updates(0, ROWS)
        topics = Topics({("ads", 0): rows_of(ads), ("clicks", 0): rows_of(clicks)})
        return cls(application(**options), topics, folder, max_records=20)

    def more(self) -> None:
        for topic, found in zip(("ads", "clicks"), updates(ROWS, 2 * ROWS), strict=True):
            self.topics.rows[topic, 0] += rows_of(found)

    @property
    def written(self) -> dict[str, list[tuple]]:
        followed, released = (read_rows(self.warehouse / "ads" / table) for table in ("followed", "released"))
        return {
            "followed": sorted(followed.select("user", "ad", "click").rows(), key=repr),
            "released": sorted(released.select("user", "ad").rows()),
        }


def expected(*lives: tuple[Updates, Updates]) -> dict[str, list[tuple]]:
    """What must be written if the stores began empty at the start of each life; time goes on over all."""
    followed: list[tuple] = []
    released: list[tuple] = []
    now_ms = 0
    for ads, clicks in lives:
        waiting: Updates = []
        held: dict[str, tuple[int, int]] = {}
        seen: tuple[Updates, Updates] = ([], [])
        for time_ms, side, (_, user, number) in sorted(
            [*((each[0], 0, each) for each in ads), *((each[0], 1, each) for each in clicks)]
        ):
            now_ms = max(now_ms, time_ms)
            near = [
                other for at_ms, whose, other in seen[1 - side] if whose == user and abs(at_ms - time_ms) <= REACH_MS
            ]
            followed += [(user, number, other) if side == 0 else (user, other, number) for other in near]
            if side == 0 and not near:
                waiting.append((time_ms, user, number))
            if side == 1:
                waiting = [each for each in waiting if each[1] != user or each[2] not in near]
            seen[side].append((time_ms, user, number))
            over = [each for each in waiting if each[0] + REACH_MS < now_ms]
            followed += [(whose, ad, None) for _, whose, ad in over]
            waiting = [each for each in waiting if each not in over]
            if side == 0:
                held[user] = (held.get(user, (time_ms, 0))[0], number)
                ads_ms = time_ms
                for due in [name for name, (since_ms, _) in held.items() if since_ms + WAIT_MS <= ads_ms]:
                    released.append((due, held.pop(due)[1]))
    return {"followed": sorted(followed, key=repr), "released": sorted(released)}


@pytest.fixture
def site_of(tmp_path) -> Iterator:
    sites: list[Site] = []

    def make(**options: object) -> Site:
        sites.append(Site.of(tmp_path, **options))
        return sites[-1]

    yield make
    TaskStoreCache.close_all()
    for site in sites:
        in_memory.free(site.state_folder)


@pytest.mark.parametrize("options", [{}, UNLOGGED, {"in_memory": True}, {"in_memory": True, **UNLOGGED}])
def test_they_survive_a_killed_process(site_of, options):
    site = site_of(**options)
    site.die()
    site.more()
    site.run()
    assert site.written == expected(updates(0, 2 * ROWS))
    logged = {path.parent.name for path in (site.warehouse / "ads" / "_changelog").glob("*/_delta_log")}
    whole = {"near-this-join-store", "near-outer-other-join-store", "near-left-shared-join-store", "held-store"}
    assert logged == ({"newest"} if "logging" in options else {"newest", *whole})


@pytest.mark.parametrize("options", [UNLOGGED, {"in_memory": True, **UNLOGGED}, {"in_memory": True}, {}])
def test_what_is_lost_begins_empty_without_a_changelog_and_comes_back_with_one(site_of, options):
    site = site_of(**options)
    site.run()
    TaskStoreCache.close_all()
    if "in_memory" in options:
        shutil.rmtree(in_memory._memory_of(site.state_folder))  # as a restart of the machine does
    else:
        shutil.rmtree(site.state_of("0_0"))
    site.more()
    site.run()
    first, second = updates(0, ROWS), updates(ROWS, 2 * ROWS)
    whole = tuple(one + other for one, other in zip(first, second, strict=True))
    assert expected(first, second) != expected(whole)
    assert site.written == (expected(first, second) if "logging" in options else expected(whole))


def test_only_with_on_loss_can_they_do_without_a_changelog():
    with pytest.raises(TopologyError, match=r'no changelog, and if it is lost.*add on_loss="empty"'):
        application(logging=False)
    application(**UNLOGGED)


def test_the_two_sides_of_a_join_and_records_that_wait_for_a_table_have_options_of_their_own():
    builder = StreamsBuilder()
    ads = builder.stream("ads", key=String("user"), value=Int64("ad"))
    clicks = builder.stream("clicks", key=String("user"), value=Int64("click"))
    near = JoinWindows.of_time_difference_with_no_grace(timedelta(milliseconds=REACH_MS))
    ads.outer_join(clicks, windows=near, store=("shown", Materialized("clicked", **UNLOGGED))).to_delta("followed")
    users = builder.table(
        "users", key=String("user"), value=Int64("age"), store="users", history_retention=timedelta(hours=1)
    )
    grace = timedelta(milliseconds=GRACE_MS)
    ads.join(users, grace=grace, store=Materialized("waiting", **UNLOGGED)).to_delta("with_age")
    (sub_topology,) = Application("ads", builder).topology.sub_topologies
    assert {store.name: store.is_logged for store in sub_topology.stores} == {
        "shown": True,
        "clicked": False,
        "shown-outer-shared-join-store": True,
        "users": True,
        "waiting": False,
    }


def test_both_stores_of_a_join_by_foreign_key_have_the_options():
    builder = StreamsBuilder()
    orders = builder.table("orders", key=String("order"), value=String("buyer"), store="orders")
    cities = builder.table("cities", key=String("customer"), value=String("city"), store="cities")
    orders.join(cities, foreign_key="buyer", store=Materialized("buyers", **UNLOGGED)).to_delta("shipping")
    unlogged = {
        store.name
        for each in Application("shop", builder).topology.sub_topologies
        for store in each.stores
        if not store.is_logged
    }
    assert unlogged == {"buyers-subscription-store", "buyers-result-store"}


def test_none_of_them_is_in_a_store_of_ones_own():
    with pytest.raises(TopologyError, match="held updates, those of 'held', cannot be in a store of your own"):
        Suppressed.until_time_limit(timedelta(hours=1), BufferConfig.unbounded()).with_name(
            Materialized("held", InMemory)
        )
    builder = StreamsBuilder()
    ads, clicks = (builder.stream(topic, key=String("user"), value=Int64(topic)) for topic in ("ads", "clicks"))
    near = JoinWindows.of_time_difference_with_no_grace(timedelta(milliseconds=REACH_MS))
    with pytest.raises(TopologyError, match="the sides of a join, those of 'near', cannot be in a store of your own"):
        ads.join(clicks, windows=near, store=Materialized("near", InMemory))


def test_final_results_that_are_looked_up_are_kept_where_the_others_are():
    builder = StreamsBuilder()
    ads = builder.stream("ads", key=String("user"), value=Int64("ad"))
    minutes = ads.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
    final = minutes.count(Materialized("by_minute", in_memory=True)).suppress(
        Suppressed.until_window_closes(BufferConfig.unbounded())
    )
    final.join(final).to_delta("twice")
    assert Application("ads", builder).topology.sub_topologies[0].is_in_memory
