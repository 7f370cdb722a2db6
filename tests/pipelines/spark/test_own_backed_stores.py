"""Runs whose tables and aggregations keep their rows in stores of the user's: crashes, restores, queries, verify."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event

import lmdb
import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.state.engine.own_store import InMemory, InSqlite, InSqliteWithOffsets
from weir import (
    Application,
    Count,
    JoinWindows,
    Json,
    Materialized,
    QueryError,
    SessionWindows,
    StateReader,
    StreamsBuilder,
    String,
    Sum,
    TimeWindows,
    TopologyError,
    read_table,
)
from weir.infra.settings import Settings
from weir.pipelines.operations.verify import verify_application
from weir.state.changelog.compaction import Compaction
from weir.state.changelog.verify import StateDifferenceError
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.instances import current_instance

SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Sale:
    amount: int


def application(supplier) -> Application:
    """A table, and aggregations by key, by window, by session and behind a repartition, all in the user's stores."""

    def kept(name: str) -> Materialized | str:
        return name if supplier is None else Materialized(name, supplier)

    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("shop"), value=Json(Sale))
    by_shop = stream.group_by_key()
    by_shop.agg(kept("sums"), total=Sum("amount"), sales=Count()).to_delta("totals")
    by_shop.windowed_by(TimeWindows.of_size_and_grace(SECOND, SECOND)).count(kept("seconds"))
    by_shop.windowed_by(SessionWindows.of_inactivity_gap_and_grace(SECOND, SECOND)).count(kept("visits"))
    stream.group_by("amount").agg(kept("by_amount"), sales=Count()).to_delta("amounts")
    stream.to_table(kept("newest")).to_delta("newest_sales")
    return Application("sales", builder, commit_interval=timedelta(milliseconds=1))


def sales(first: int, last: int, partition: int) -> list:
    """A sale every 30 ms; every seventh takes the shop's newest sale away."""
    return [
        (
            b"shop-%d" % (number % 5 * 2 + partition),
            None if number % 7 == 0 else json.dumps({"amount": number % 11}).encode(),
            1_000 + number * 30,
        )
        for number in range(first, last)
    ]


class Shop(Place):
    """Two partitions of sales."""

    @classmethod
    def over(cls, supplier, folder: Path) -> Shop:
        topics = Topics({("sales", partition): sales(0, 60, partition) for partition in (0, 1)})
        return cls(application(supplier), topics, folder, max_records=20)

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "sales"

    @property
    def reader(self) -> StateReader:
        return StateReader(self.folder, self.application)

    def more(self) -> None:
        """Sixty more sales in each partition."""
        for (_, partition), rows in self.topics.rows.items():
            rows += sales(len(rows), len(rows) + 60, partition)

    def die(self, *, steps: list[str] | None = None) -> None:
        """A run that reads everything and ends without closing its stores, so that a last commit goes unheard."""
        driver = self.driver((lambda name: None) if steps is None else steps.append)
        driver._finish = lambda reason, stop: None
        driver.run(Event(), until_caught_up=True)
        TaskStoreCache.close_all()

    @property
    def sold(self) -> list[tuple[str, int, int]]:
        """Shop, amount and time of every sale."""
        return [
            (key.decode(), json.loads(value)["amount"], time_ms)
            for rows in self.topics.rows.values()
            for key, value, time_ms in rows
            if value is not None
        ]

    @property
    def expected(self) -> tuple[dict, dict, dict]:
        """What the stores must hold, worked out record by record: sums by shop, sales by amount, the newest by shop."""
        totals, counts = Counter[str](), Counter[str]()
        for shop, amount, _ in self.sold:
            totals[shop] += amount
            counts[shop] += 1
        newest: dict[str, int] = {}
        for rows in self.topics.rows.values():
            for key, value, _ in rows:
                if value is None:
                    newest.pop(key.decode(), None)
                else:
                    newest[key.decode()] = json.loads(value)["amount"]
        amounts = Counter(amount for _, amount, _ in self.sold)
        return {shop: (totals[shop], counts[shop]) for shop in totals}, dict(amounts), newest

    @property
    def written(self) -> tuple[dict, dict, dict]:
        """The same, from the outputs."""

        def rows(table: str, *columns: str) -> list:
            return read_table(self.warehouse / "sales" / table).select(columns).rows()

        return (
            {shop: (total, count) for shop, total, count in rows("totals", "shop", "total", "sales")},
            dict(rows("amounts", "amount", "sales")),
            dict(rows("newest_sales", "shop", "amount")),
        )

    @property
    def queried(self) -> tuple[dict, dict, dict]:
        """The same, from the stores."""
        sums, amounts, newest = (self.reader.range(store).rows for store in ("sums", "by_amount", "newest"))
        return (
            {shop: (total, count) for shop, total, count in sums.select("shop", "total", "sales").rows()},
            dict(amounts.select("amount", "sales").rows()),
            dict(newest.select("shop", "amount").rows()),
        )

    def open_windows(self) -> tuple[dict, dict]:
        """The windows that have not closed, and the sessions of the shops, worked out record by record."""
        windows = Counter[tuple[str, int]]()
        sessions: dict[str, list[list[int]]] = {}
        for partition in (0, 1):
            times = [time_ms for _, _, time_ms in self.topics.rows["sales", partition]]
            for key, _, time_ms in self.topics.rows["sales", partition]:  # windows count null values too
                shop, start = key.decode(), time_ms // 1000 * 1000
                if start + 2000 > max(times):
                    windows[shop, start] += 1
                held = sessions.setdefault(shop, [])
                if held and time_ms - held[-1][1] <= 1000:
                    held[-1][1:] = [time_ms, held[-1][2] + 1]
                else:
                    held.append([time_ms, time_ms, 1])
        return dict(windows), {shop: held[-1][2] for shop, held in sessions.items()}

    def queried_windows(self) -> tuple[dict, dict]:
        windows = self.reader.windows("seconds").rows.select("shop", "window_start", "count").rows()
        shops = {shop for shop, *_ in windows}
        sessions = {shop: self.reader.sessions("visits", shop).rows["count"].to_list()[-1] for shop in shops}
        return {(shop, int(start.timestamp() * 1000)): count for shop, start, count in windows}, sessions


PERSISTENT = [InSqlite, InSqliteWithOffsets]


@pytest.fixture(autouse=True)
def closed():
    yield
    TaskStoreCache.close_all()


@pytest.mark.parametrize("supplier", [*PERSISTENT, InMemory])
def test_runs_that_die_and_go_on_give_what_a_plain_count_gives(tmp_path, supplier):
    place = Shop.over(supplier, tmp_path)
    for _ in range(3):
        place.die()
        assert place.written == place.expected
        place.more()
    place.run()
    assert place.written == place.expected
    if supplier is not InMemory:
        assert place.queried == place.expected
        assert place.queried_windows() == place.open_windows()


@pytest.mark.parametrize("supplier", [*PERSISTENT, InMemory])
def test_a_lost_folder_is_restored_with_the_users_store_in_it(tmp_path, supplier):
    place = Shop.over(supplier, tmp_path)
    place.snapshot_rows = 1  # a snapshot would hold the keys alone
    place.die()
    assert place.snapshots.done == []
    for folder in place.state_folder.iterdir():
        shutil.rmtree(folder / "first")
    place.more()
    place.run()
    assert len(place.restores.done) == len(list(place.state_folder.iterdir()))
    assert place.written == place.expected
    if supplier is not InMemory:
        assert place.queried == place.expected


@pytest.mark.parametrize(("before", "now"), [(None, InSqlite), (InSqlite, None), (InMemory, InSqliteWithOffsets)])
def test_a_program_may_move_its_rows_into_a_store_of_ones_own_and_out_again(tmp_path, before, now):
    place = Shop.over(before, tmp_path)
    place.die()
    place.application = application(now)
    place.more()
    place.run()
    assert place.written == place.queried == place.expected


def test_a_store_that_fell_behind_its_changelog_is_filled_from_there(tmp_path):
    """KIP-892: the file of one store of one task is an older copy, as if it had not been synced."""
    place = Shop.over(InSqliteWithOffsets, tmp_path)
    place.die()
    file = place.state_of("0_1") / "first" / "own" / "sums" / "rows.sqlite"
    kept = file.read_bytes()
    place.more()
    place.die()
    place.more()
    place.die()
    file.write_bytes(kept)
    place.more()
    steps: list[str] = []
    place.die(steps=steps)
    assert steps.count("own stores filled") == 1
    place.run()
    assert place.written == place.queried == place.expected


@pytest.mark.parametrize("has_input", [True, False])
def test_a_store_that_fell_behind_deletions_which_compaction_has_dropped_is_restored(tmp_path, has_input):
    builder = StreamsBuilder()
    builder.table("names", key=String("key"), value=String("name"), store=Materialized("names", InSqliteWithOffsets))
    application = Application("names", builder, commit_interval=timedelta(milliseconds=1))
    place = Place(application, Topics({("names", 0): [(b"a", b"ann", 1), (b"b", b"bob", 2)]}), tmp_path)
    place.run()
    file = place.state_of("0_0") / "first" / "own" / "names" / "rows.sqlite"
    kept = file.read_bytes()
    place.topics.rows["names", 0].append((b"a", None, 3))
    place.run()
    TaskStoreCache.close_all()
    file.write_bytes(kept)
    compaction = Compaction(place.warehouse, "names", is_whole=True, tombstone_retention_ms=-60_000)
    list(compaction.run(["_changelog/names"]))
    if has_input:
        place.topics.rows["names", 0].append((b"c", b"cid", 4))
    place.run()
    place.run()
    TaskStoreCache.close_all()
    found = current_instance(place.state_of("0_0")) / "own" / "names" / "rows.sqlite"
    (rows,) = sqlite3.connect(found).execute("select count(*) from rows").fetchone()
    assert rows == 1 + has_input, "b, and c if it came; a was deleted"


def test_a_store_in_the_memory_of_its_task_says_where_its_rows_can_be_read(tmp_path):
    place = Shop.over(InMemory, tmp_path)
    place.run()
    with pytest.raises(QueryError, match="your own store behind 'sums' is not persistent") as refused:
        place.reader.range("sums")
    assert 'weir.read_table("WAREHOUSE/APP/_changelog/sums")' in str(refused.value)
    rows = read_table(place.warehouse / "sales" / "_changelog" / "sums").select("shop", "total", "sales").rows()
    assert {shop: (total, count) for shop, total, count in rows} == place.expected[0]


def test_verify_compares_the_keys_of_a_users_store_with_its_changelog(tmp_path):
    place = Shop.over(InSqlite, tmp_path)
    place.run()
    assert all(agreement.state for agreement in verify_application(Settings(dir=tmp_path), place.application))
    place.more()
    place.die()
    assert all(agreement.state for agreement in verify_application(Settings(dir=tmp_path), place.application))
    place.run()
    with (
        lmdb.open(str(place.state_of("0_1") / "first"), max_dbs=32, map_size=1 << 30) as raw,
        raw.begin(write=True) as txn,
    ):
        newest = raw.open_db(b"newest", txn=txn)
        key, held = next(iter(txn.cursor(newest).iternext()))
        txn.delete(key, db=newest)
        txn.put(key[:-1] + b"X", held, db=newest)
    with pytest.raises(StateDifferenceError, match="store 'newest', key shop=shop-"):
        list(verify_application(Settings(dir=tmp_path), place.application))


def test_only_aggregations_and_tables_take_a_store_of_ones_own():
    stream = StreamsBuilder().stream("sales", key=String("shop"), value=Json(Sale))
    windows = JoinWindows.of_time_difference_with_no_grace(SECOND)
    with pytest.raises(TopologyError, match="the sides of a join, those of 'joined', cannot be in a store of your own"):
        stream.join(stream, windows=windows, store=Materialized("joined", InMemory))
    with pytest.raises(TopologyError, match=r"Materialized\('sums'\) got 'sqlite'; pass a class or function"):
        Materialized("sums", "sqlite")
    with pytest.raises(TopologyError, match="the store has no name"):
        Materialized("", InMemory)
