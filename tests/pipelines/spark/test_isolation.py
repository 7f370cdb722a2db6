"""With ``on_task_error="isolate"`` the others go on without a task that fails, which tries again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import msgspec
import polars as pl
import pytest

from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.threads import ThreadedPlace
from tests.waiting import wait_for
from weir import Application, Count, Json, StreamsBuilder, String, Sum, TopologyError
from weir.pipelines.spark import task as module
from weir.pipelines.spark.errors import TaskFailedError
from weir.pipelines.spark.task_state import TaskState
from weir.state.commit.tables import read_table
from weir.state.types import TaskId

RECORDS, BROKEN = 40, 12
FAILING, OTHER = TaskId(0, 0), TaskId(0, 1)


@dataclass(frozen=True)
class Click:
    number: int
    partition: int


class Fault:
    """Whether the record ``BROKEN`` of partition 0 fails, and how often it has."""

    is_there = True
    seen = 0


@pytest.fixture(autouse=True)
def fault(monkeypatch) -> type[Fault]:
    Fault.is_there, Fault.seen = True, 0
    monkeypatch.setattr(module, "FIRST_ISOLATION_MS", 50)
    monkeypatch.setattr(module, "LONGEST_ISOLATION_MS", 200)
    return Fault


def called(click: Click) -> Click:
    if (click.partition, click.number) == (0, BROKEN) and Fault.is_there:
        Fault.seen += 1
        raise ValueError("the price service is away")
    return click


def place_of(tmp_path, on_task_error: str) -> ThreadedPlace:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).map_values(called)
    clicks.group_by_key().agg("clicks", clicks=Count(), total=Sum("number")).to_delta("totals")
    rows = {
        ("clicks", partition): [
            (b"user-%d" % partition, msgspec.json.encode(Click(number, partition)), 1_000 * number)
            for number in range(RECORDS)
        ]
        for partition in range(2)
    }
    application = Application(
        "shop",
        builder,
        commit_interval=timedelta(milliseconds=20),
        on_task_error=on_task_error,  # type: ignore[arg-type]
    )
    return ThreadedPlace(application, Topics(rows), tmp_path, max_records=10)


def totals(place: ThreadedPlace) -> dict[str, tuple[int, int]]:
    frame = pl.DataFrame(read_table(place.warehouse / "shop" / "totals")).sort("_epoch", "_seq", maintain_order=True)
    return {user: (clicks, total) for user, clicks, total in frame.select("user", "clicks", "total").rows()}


def test_the_others_go_on_while_it_tries_again_and_it_goes_on_once_it_can(tmp_path, fault):
    place = place_of(tmp_path, "isolate")
    run, stop = place.begin(until_caught_up=False)
    try:
        wait_for(lambda: place.positions("clicks")[1:] == [RECORDS], "the other partition is committed to its end", 30)
        wait_for(lambda: fault.seen >= 4, "it is tried again and again", 30)
        assert place.positions("clicks")[0] <= BROKEN
        fault.is_there = False
        wait_for(lambda: place.positions("clicks") == [RECORDS] * 2, "all is committed", 30)
    finally:
        stop.set()
        run.result(60)
    assert totals(place) == {f"user-{partition}": (RECORDS, sum(range(RECORDS))) for partition in range(2)}


def test_a_run_until_caught_up_stops_all_the_same(tmp_path):
    with pytest.raises(TaskFailedError, match="the price service is away"):
        place_of(tmp_path, "isolate").run()


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_a_success():
    found = module.Task(id=FAILING, instance="i", topics=())
    found.opened()
    waits = []
    for _ in range(5):
        found.isolated("it fails", 1_000)
        waits.append(found.isolated_until_ms - 1_000)
        found.try_again(found.isolated_until_ms - 1)
        assert found.state is TaskState.ISOLATED
        found.try_again(found.isolated_until_ms)
        assert found.state is TaskState.RUNNING
    assert waits == [50, 100, 200, 200, 200]


def test_another_word_is_refused(tmp_path):
    with pytest.raises(TopologyError, match='on_task_error is \'skip\'; it must be "stop" or "isolate"'):
        place_of(tmp_path, "skip")
