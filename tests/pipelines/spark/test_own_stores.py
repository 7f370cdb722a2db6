"""An application feeds a store of the user's own with what it commits, and never waits for it."""

from __future__ import annotations

import logging
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales
from weir import Application, StreamsBuilder, String, TopologyError
from weir.pipelines.spark.own_stores import feeding, followers


class Shelf:
    """Keeps rows and offsets in memory; fails when told to."""

    name, is_broken = "shelf", False

    def __init__(self, folder):
        self.folder, self.rows, self.offsets = folder, {}, {}

    def put_rows(self, rows):
        if self.is_broken:
            raise OSError("the shelf is full")
        for row in rows.iter_rows(named=True):
            self.rows[row["shop"]] = (row["total"], row["sales"])

    def commit(self, offsets):
        self.offsets |= offsets

    def committed_offset(self, topic, partition):
        return self.offsets.get(topic, {}).get(partition)

    def manages_offsets(self):
        return True

    def approximate_num_uncommitted_bytes(self):
        return 0


@pytest.fixture
def place(tmp_path):
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    place = Place(application(), topics, tmp_path, max_records=30)
    place.application.own_stores = {"sums": Shelf}
    return place


def fed(place):
    """Run until caught up, feeding the application's own stores; returns the only shelf."""
    (follower,) = followers(place.application, place.warehouse / "sales", place.folder / "state")
    feed, driver = feeding([follower]), place.driver()
    driver._coordinator._on_commit = feed
    driver.run(Event(), until_caught_up=True)
    feed.close()
    return follower._store


def test_it_holds_the_committed_rows_when_the_run_ends(place):
    shelf = fed(place)
    assert shelf.rows == expected(place)
    assert shelf.folder == place.folder / "state" / "_own_stores" / "sums"


@pytest.mark.slow
def test_a_store_that_fails_is_reported_and_the_run_continues(place, monkeypatch, caplog):
    monkeypatch.setattr(Shelf, "is_broken", True)
    with caplog.at_level(logging.WARNING, "weir.driver"):
        assert fed(place).rows == {}
    assert "a store of your own could not follow: the shelf is full" in caplog.text
    monkeypatch.undo()
    place.topics.rows["sales", 0] += sales(10, 0)
    assert fed(place).rows == expected(place), "it catches up on what it missed"


def test_a_store_that_the_topology_does_not_have_is_refused():
    builder = StreamsBuilder()
    builder.table("shops", key=String("shop"), value=String("city"), store="shops").to_delta("shops")
    with pytest.raises(TopologyError, match=r"own_stores names shelf, which .* does not have; its stores are shops"):
        Application("shops", builder, own_stores={"shelf": Shelf})
