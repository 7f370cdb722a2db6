"""A stop that drains changes no result, and another stop ends it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import pytest

from tests.pipelines.spark.away import put_away, put_back
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, FailOnInvalidTimestamp, Json, StreamsBuilder, String
from weir.pipelines.spark import driver as driver_module
from weir.pipelines.spark.planner import Limits
from weir.pipelines.tasks import batch_sizes
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.types import TaskId

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Click:
    page: str
    at: int


def program(timestamp=None, **settings):
    """Counts per user, kept by the tasks that read, are sent on and written in the order in which they are taken."""
    builder = StreamsBuilder()
    of_source = {} if timestamp is None else {"timestamp": timestamp}
    stream = builder.stream("clicks", key=String("user"), value=Json(Click), **of_source)
    counts = stream.group_by_key().count("by_user").to_stream()
    counts.map(key="count", value={"user": "user"}).repartition(name="r").to_delta("out")
    return Application("clicks", builder, **settings)


def clicks(times, later_ms=0):
    """One click of each user, written to Kafka ``later_ms`` after it happened."""
    return [(f"{time:06}".encode(), json.dumps({"page": "p", "at": time}).encode(), time + later_ms) for time in times]


def bounded(driver, epochs=200):
    """Let the driver run so many epochs and no more."""
    run_epoch, found = driver._coordinator.run_epoch, []

    def counted(*arguments, **others):
        found.append(len(found))
        assert len(found) <= epochs, "it does not come to an end"
        return run_epoch(*arguments, **others)

    driver._coordinator.run_epoch = counted
    return driver


@pytest.mark.parametrize(
    ("application", "later_ms", "is_on_disk"),
    [
        (program(), 0, True),
        (program(uncommitted_max_bytes=1), 0, True),
        (program(FailOnInvalidTimestamp(of="at")), 10**6, True),
        (program(FailOnInvalidTimestamp(of="at"), uncommitted_max_bytes=1), 10**6, True),
        (program(commit_interval=timedelta(milliseconds=1)), 0, False),
    ],
    ids=[
        "plain",
        "few uncommitted bytes",
        "extracted times",
        "extracted times and few uncommitted bytes",
        "on an object store, with many commits",
    ],
)
def test_a_drain_takes_rows_in_the_order_in_which_a_run_does(
    request, tmp_path, monkeypatch, application, later_ms, is_on_disk
):
    """All rows of partition 1 wait for partition 0, which has as much again behind them."""
    monkeypatch.setattr(batch_sizes, "FIRST_ROWS", 80)
    dense, thin = range(0, 1_000, 2), range(1, 500, 30)
    topics = Topics({("clicks", 0): clicks(dense, later_ms), ("clicks", 1): clicks(thin, later_ms)})
    bucket = "" if is_on_disk else request.getfixturevalue("s3_bucket")
    place = Place(application, topics, tmp_path, max_records=100, bucket=bucket)
    driver = bounded(place.driver())
    behind = driver._coordinator.tasks[TaskId(0, 0)]
    put_away(behind)
    limits = Limits.of(application, max_records=100, max_bytes=1 << 20)
    driver._coordinator.run_epoch(topics.end_offsets(list(topics.rows)), limits, now_ms=0)
    put_back(behind)
    place.desk.ask("stop", drain="yes")
    driver.run(Event())
    assert not newest_commit(place.warehouse, "clicks").pending_blobs
    assert behind.positions["clicks"][0] == sum(time <= max(thin) for time in dense), "it reads no further"
    bounded(place.driver()).run(Event(), until_caught_up=True)
    rows = read_table(place.warehouse / "clicks" / "out").sort("_epoch", "_seq")
    assert rows["user"].to_list() == [f"{time:06}" for time in sorted([*dense, *thin])]


def test_another_stop_ends_a_drain_and_leaves_the_rows_that_wait(tmp_path, monkeypatch):
    """The task that the rows wait for never comes back."""
    for name, seconds in {"IDLE_WAIT_S": 0.001, "REPORT_EVERY_S": 0.0, "REPORT_SHARE": 1_000.0}.items():
        monkeypatch.setattr(driver_module, name, seconds)
    topics = Topics({("clicks", 0): clicks(range(10)), ("clicks", 1): clicks(range(10, 20))})
    place, stop, states = Place(program(), topics, tmp_path), Event(), []

    def on_progress(progress):
        states.append(progress.state)
        match states.count("draining"):
            case 5:
                asked.append(place.desk.ask("stop"))
            case 50:
                stop.set()  # it drains on and on

    driver, asked = place.driver(on_progress=on_progress), []
    put_away(driver._coordinator.tasks[TaskId(0, 0)])
    place.desk.ask("stop", drain="yes")
    summary = driver.run(stop)
    assert summary.reason == "stopped"
    assert not stop.is_set(), "the other stop did not end the drain"
    assert place.desk.answers[asked[0]][1] is False
    assert sum(blob.rows for blob in newest_commit(place.warehouse, "clicks").pending_blobs) == 10
