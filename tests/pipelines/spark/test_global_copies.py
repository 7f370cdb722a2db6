"""Copies of global tables follow their topics while the tasks that join them have nothing to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, StreamsBuilder, String
from weir.pipelines.spark import global_copies
from weir.pipelines.spark.global_copies import GlobalCopies
from weir.pipelines.spark.worker import CopyRequest
from weir.pipelines.tasks.global_table import shared_folder, shared_stores
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.shared_rows import newest_rows
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore

SALES = [(b"shop-0", b"tea", 1)]
Towns = tuple[tuple[bytes, bytes | None], ...]


def program() -> Application:
    builder = StreamsBuilder()
    towns = builder.global_table("towns", key=String("shop"), value=String("town"), store="towns")
    sales = builder.stream("sales", key=String("shop"), value=String("item"))
    sales.join(towns, key="shop").to_delta("sold_in")
    return Application("sold", builder, commit_interval=timedelta(milliseconds=1))


@pytest.fixture
def place(tmp_path) -> Place:
    topics = Topics({("sales", 0): list(SALES), ("towns", 0): [(b"shop-0", b"Ulm", 0)], ("towns", 1): []})
    return Place(program(), topics, tmp_path)


class Copies:
    """Brings copies on at once. Once they are at its end, the next of ``changes`` comes to the topic; after the last
    one the run stops, and ``at_end`` is called."""

    def __init__(self, place: Place, changes: Sequence[Towns] = (), at_end: Callable[[], None] = lambda: None) -> None:
        self.place, self.changes, self.at_end, self.stop = place, list(changes), at_end, Event()
        self.driver = place.driver()
        self.driver._copies = self
        self.asked = list[CopyRequest]()
        self.is_due = True

    def bring_on(self, requests: Sequence[tuple[int, CopyRequest]]) -> None:
        for slot, request in requests:
            assert slot == 0
            assert self.driver._coordinator.slots.runner.bring_on(request.ranges, request.generation)
            self.asked.append(request)
        topic = self.place.topics.rows["towns", 0]
        if rows(self.place)[1] < len(topic) or self.stop.is_set():
            return
        if self.changes:
            topic += [(shop, town, 0) for shop, town in self.changes.pop(0)]
        else:
            self.stop.set()
            self.at_end()

    def run(self) -> None:
        self.driver.run(self.stop)


def rows(place: Place) -> tuple[dict[str, str], int]:
    """The rows of the copy, and how far the topic's first partition is in them."""
    (node,) = place.application.topology.global_tables
    with newest_rows(shared_folder(place.state_folder, "towns"), shared_stores("towns")) as found:
        frame = KeyValueStore(node.store, found, StoreTime(clocks={}, now_ms=0)).range(None, None).frame()
        return dict(frame.select("shop", "town").rows()), found.about.positions[0]


def test_a_copy_follows_its_topic_without_records_to_join_and_without_commits(place):
    changes = [((b"shop-0", b"Bonn"),), ((b"shop-1", b"Jena"), (b"shop-0", None))]
    copies = Copies(place, changes)
    copies.run()
    assert rows(place) == ({"shop-1": "Jena"}, 4)
    assert [[each.end for each in request.ranges] for request in copies.asked] == [[2, 0], [4, 0]]
    assert newest_commit(place.warehouse, "sold").epoch == 1
    place.topics.rows["sales", 0] += [(b"shop-1", b"cup", 2), (b"shop-0", b"cup", 2)]
    place.run()
    sold = read_table(place.warehouse / "sold" / "sold_in").select("item", "town").rows()
    assert sorted(sold) == [("cup", "Jena"), ("tea", "Ulm")]


def test_no_copy_is_brought_on_while_a_plan_is_under_way_or_its_worker_is_away(place, monkeypatch):
    def check() -> None:
        coordinator = copies.driver._coordinator
        behind = partial(coordinator.copies_behind, {("towns", 0): 9, ("towns", 1): 0, ("sales", 0): 1})
        (task,) = coordinator.tasks
        with monkeypatch.context() as patch:
            patch.setitem(coordinator._under_way, task, None)
            assert behind() == []
        with monkeypatch.context() as patch:
            patch.setattr(coordinator.slots, "is_ready", lambda slot: False)
            assert behind() == []
        assert [slot for slot, _ in behind()] == [0]
        assert behind() == [], "it has been asked for"

    copies = Copies(place, at_end=check)
    copies.run()
    assert copies.stop.is_set()


def test_what_fails_is_left_to_the_next_plan(place):
    def check() -> None:
        coordinator, before = copies.driver._coordinator, place.topics.rows["towns", 0]
        ((_, request),) = coordinator.copies_behind({("towns", 0): 2, ("towns", 1): 0})
        place.topics.rows["towns", 0] = [*before, (b"shop-1", b"Jena", "no time")]
        assert not coordinator.slots.runner.bring_on(request.ranges, request.generation)
        place.topics.rows["towns", 0] = before

    copies = Copies(place, at_end=check)
    copies.run()
    assert rows(place) == ({"shop-0": "Ulm"}, 1)
    place.topics.rows["towns", 0].append((b"shop-1", b"Jena", 0))
    place.topics.rows["sales", 0].append((b"shop-1", b"cup", 2))
    place.run()
    assert rows(place) == ({"shop-0": "Ulm", "shop-1": "Jena"}, 2)


def test_slots_are_asked_one_time_after_another(monkeypatch):
    monkeypatch.setattr(global_copies, "EVERY_S", 0.0)
    asked = list[tuple[int, Future]]()

    class Slots:
        def ask(self, slot, work, items) -> Future:
            assert work is global_copies.run_copies
            asked.append((slot, Future()))
            return asked[-1][1]

    copies, request = GlobalCopies(Slots()), CopyRequest(ranges=(), generation=1)
    assert copies.is_due
    copies.bring_on([(0, request), (3, request)])
    assert [slot for slot, _ in asked] == [0, 3]
    asked[0][1].set_result([True])
    assert not copies.is_due
    asked[1][1].set_exception(OSError("its worker is gone"))
    assert copies.is_due
    monkeypatch.setattr(global_copies, "EVERY_S", 60.0)
    copies.bring_on([])
    assert not copies.is_due
