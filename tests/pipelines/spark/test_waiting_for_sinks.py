"""A sink that is away: its outbox grows to the limit, then nothing more is read; all else goes on."""

from __future__ import annotations

import math
import shutil
import time
from concurrent.futures import Future
from datetime import timedelta
from threading import Event, Thread

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.waiting import wait_for
from weir import Application, Count, Sink, StreamsBuilder, String
from weir.pipelines.publishing import publisher
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.spark import driver
from weir.pipelines.spark.errors import RunError
from weir.state.commit.outbox import Outbox
from weir.state.commit.protocol import Committer
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.instances import instances
from weir.state.errors import ObjectStoreAwayError

ROWS, EPOCH_ROWS, LIMIT_BYTES, STOP_LIMIT_S = 600, 20, 20_000, 5.0


class Shelf(Sink):
    """Takes orders once it is ``back``."""

    def __init__(self) -> None:
        self.back, self.orders = Event(), list[str]()

    def __copy__(self) -> Shelf:
        return self  # events cannot be copied, and the test looks at what it has

    def open(self) -> None:
        if not self.back.is_set():
            raise OSError("the shelf is away")

    def send(self, batch) -> None:
        self.orders += batch.rows["order"].to_list()


class OwnThread:
    """A ``Publishing`` of one sink in this process, begun once a driver has claimed."""

    def __init__(self, place: Place) -> None:
        self._place, self._stop, self._publisher = place, Event(), None

    def start(self) -> None:
        application = self._place.application
        (sink,) = application.topology.outside_sinks
        outbox = Outbox(self._place.warehouse / application.id, sink.name, application.id)
        made = Publisher(
            outbox, sink.name, lambda: connect(application.id, sink, outbox, {}, ""), application=application.id
        )
        self._publisher = made
        self._thread = Thread(target=made.run, args=(self._stop, Event()), daemon=True)
        self._thread.start()

    @property
    def states(self):
        return [self._publisher.state] if self._publisher else []

    tells = math.inf

    def keep_alive(self) -> None:
        pass

    def decide(self, decision) -> str:
        raise RunError("it needs none")

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)


class Run:
    """A driver in a thread, and what it has reported."""

    def __init__(self, place: Place, **options: bool) -> None:
        self.reports = []
        made = place.driver(on_progress=self.reports.append)
        place.publishing.start()
        self._stop, self._options = Event(), options
        self._ended = Future()
        Thread(target=self._run, args=(made,), daemon=True).start()

    def _run(self, driver) -> None:
        try:
            self._ended.set_result(driver.run(self._stop, **self._options))
        except BaseException as error:
            self._ended.set_exception(error)

    def state(self) -> str:
        return self.reports[-1].state if self.reports else ""

    def is_at_rest(self, why: str) -> bool:
        """Whether nothing is read, for this reason, and all that was is committed."""
        if not self.reports:
            return False
        newest, state = self.reports[-1], {"held": "waiting", "paused": "paused", "idle": "running"}[why]
        is_read = why != "idle" or newest.records_in == ROWS
        return newest.state == state and newest.committed_epoch == newest.epoch > 0 and is_read

    def stop(self):
        self._stop.set()
        began = time.monotonic()
        summary = self._ended.result(60)
        return summary, time.monotonic() - began

    def error(self):
        return self._ended.exception(60)

    def reason(self) -> str | None:
        """Why it has ended, if it has."""
        return self._ended.result().reason if self._ended.done() else None


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def place(tmp_path, shelf, monkeypatch):
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(publisher, "LONGEST_WAIT_S", 0.1)
    monkeypatch.setattr(publisher, "REMOVE_EVERY_S", 0.05)
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=String("order"))
    orders.to_sink(shelf, name="shelf")
    orders.group_by_key().agg("counts", n=Count())
    shop = Application("shop", builder, commit_interval=timedelta(milliseconds=50))
    topics = Topics({("orders", 0): [(b"ann", b"order %d" % number, 1_000) for number in range(ROWS)]})
    made = Place(shop, topics, tmp_path, max_records=EPOCH_ROWS, outbox_max_bytes=LIMIT_BYTES)
    made.publishing = OwnThread(made)
    yield made
    made.publishing.close()


def expected(place):
    return [order.decode() for _, order, _ in place.topics.rows["orders", 0]]


def test_reading_stops_at_the_limit_and_goes_on_when_the_sink_is_back(place, shelf):
    run = Run(place)
    wait_for(lambda: run.state() == "waiting", "the limit is reached", 20)
    held_at = len(run.reports)
    wait_for(lambda: len(run.reports) >= held_at + 4, "the run reports on and on")
    held = run.reports[held_at:]
    assert {report.state for report in held} == {"waiting"}
    assert all("wait for sinks; reading goes on when they have caught up" in report.message for report in held)
    assert {report.records_in for report in held} == {held[0].records_in}
    assert held[0].lag == ROWS - held[0].records_in > 0
    assert held[-1].committed_epoch == held[-1].epoch, "what was read is committed"
    (sink,) = held[-1].sinks
    assert sink.waiting_bytes > LIMIT_BYTES
    assert sink.waiting_rows == held[0].records_in
    lags = {each.name: each.value for each in held[-1].readings if each.tags.get("sink-id") == "shelf"}
    assert (lags["records-lag"], lags["bytes-lag"]) == (sink.waiting_rows, sink.waiting_bytes)
    assert lags["seconds-lag"] > 4 * 0.4, "the oldest row has waited for four reports"
    assert lags["is-failing"] == 1
    asked = place.desk.ask("commit")
    wait_for(lambda: asked in place.desk.answers, "requests are answered")
    assert not shelf.orders

    shelf.back.set()
    wait_for(lambda: len(shelf.orders) == ROWS, "reading goes on, and all is delivered")
    assert shelf.orders == expected(place)
    wait_for(lambda: run.state() == "running", "the run is no longer held")
    assert not run.reports[-1].message
    summary, _ = run.stop()
    assert (summary.reason, summary.records_in) == ("stopped", ROWS)


def test_a_run_that_is_held_by_a_sink_stops_at_once_and_the_next_one_delivers(place, shelf):
    run = Run(place)
    wait_for(lambda: run.state() == "waiting", "the limit is reached", 20)
    summary, took_s = run.stop()
    assert summary.reason == "stopped"
    assert took_s < STOP_LIMIT_S
    place.publishing.close()
    shelf.back.set()
    place.publishing = OwnThread(place)
    again = Run(place)
    wait_for(lambda: len(shelf.orders) == ROWS, "the next run delivers all")
    assert shelf.orders == expected(place)
    again.stop()


def test_a_run_that_is_held_has_not_caught_up_before_it_has_looked_at_every_store(place, shelf):
    run = Run(place)
    wait_for(lambda: run.is_at_rest("held"), "the limit is reached", 20)
    run.stop()
    place.publishing.close()
    TaskStoreCache.close_all()
    del place.topics.rows["orders", 0][run.reports[-1].records_in :]  # nothing is left to be read
    shutil.rmtree(place.state_folder)
    place.publishing = OwnThread(place)
    place.publishing.start()
    wait_for(lambda: place.publishing.states[0].waiting_bytes > LIMIT_BYTES, "the sink's rows are counted")
    again = Run(place, until_caught_up=True)
    wait_for(lambda: again.state() == "waiting" or again.reason(), "it is held, too")
    assert again.reason() is None
    shelf.back.set()
    wait_for(again.reason, "it ends")
    assert again.reason() == "caught_up"
    assert list(instances(place.state_folder)), "the store is restored"


@pytest.mark.parametrize("why", ["held", "paused", "idle"])
def test_a_run_that_commits_nothing_learns_that_a_newer_driver_has_taken_over(place, shelf, why, monkeypatch):
    monkeypatch.setattr(driver, "TOPICS_EVERY_S", 0.05)
    if why != "held":
        shelf.back.set()
    run = Run(place)
    if why == "paused":
        wait_for(lambda: run.is_at_rest("idle"), "all is committed", 60)
        place.desk.ask("pause")
    wait_for(lambda: run.is_at_rest(why), "there is nothing to commit", 20)
    place.driver()
    assert "newer driver has taken over" in str(run.error())


def test_a_paused_run_stops_at_once_though_the_warehouse_does_not_answer(place, shelf, monkeypatch):
    monkeypatch.setattr(driver, "TOPICS_EVERY_S", 0.05)
    shelf.back.set()
    run, asked = Run(place), Event()
    wait_for(lambda: run.is_at_rest("idle"), "all is committed", 60)
    place.desk.ask("pause")
    wait_for(lambda: run.is_at_rest("paused"), "there is nothing to commit", 20)

    def away(committer) -> None:
        asked.set()
        raise ObjectStoreAwayError("s3://bucket", "connection refused")

    monkeypatch.setattr(Committer, "check_claim", away)
    assert asked.wait(20)
    summary, _ = run.stop()
    assert summary.reason == "stopped"
