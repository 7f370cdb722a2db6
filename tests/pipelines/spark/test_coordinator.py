"""What commits say about the tasks, which numbers epochs get, and what happens to rows between sub-topologies."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import replace

import pytest

from tests.pipelines.spark.away import put_away, put_back
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import Sale, application, expected, sales, totals
from weir import Application, Count, Json, StreamsBuilder, String
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.errors import PendingRowsError
from weir.pipelines.spark.planner import Limits
from weir.state.commit.protocol import Claim, Committer, newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.errors import FencedError
from weir.state.types import TaskId

LIMITS = Limits(max_records=30, max_bytes=1 << 20, max_skew_ms=None)
SOURCE, TARGET = TaskId(0, 0), TaskId(1, 0)


def topics(*counts: int) -> Topics:
    return Topics({("sales", partition): sales(count, partition) for partition, count in enumerate(counts)})


def newest(place: Place) -> CommitRecord:
    found = newest_commit(place.warehouse, "sales")
    assert found is not None
    return found


def test_a_commit_names_every_task_including_those_without_input(tmp_path):
    """PROTOCOL 12: the next driver knows nothing but the newest row."""
    place = Place(application(), topics(90, 10), tmp_path)
    coordinator, ends = place.driver()._coordinator, {("sales", 0): 90, ("sales", 1): 10}
    for _ in range(3):
        idle = coordinator.tasks[TaskId(0, 1)].current
        coordinator.run_epoch(ends, LIMITS, now_ms=0)
        coordinator.commit("a test")
    tasks = newest(place).tasks
    assert [tasks[place.name_of(name)].positions for name in ("0_0", "0_1")] == [{"sales": {0: 90}}, {"sales": {1: 10}}]
    assert tasks[place.name_of("0_1")].state == idle, "it has run no epoch since the commit before"
    assert tasks[place.name_of("0_1")].clocks


def test_the_next_punctuation_of_a_task_outlives_its_driver(tmp_path):
    """PROTOCOL 11 and 12."""
    place = Place(application(), topics(10), tmp_path)
    coordinator = place.driver()._coordinator
    coordinator.run_epoch({("sales", 0): 10}, LIMITS, now_ms=0)
    coordinator.tasks[SOURCE].next_punctuation_ms = 60_000
    coordinator.commit("a test")
    assert place.driver()._coordinator.tasks[SOURCE].next_punctuation_ms == 60_000


def test_epochs_of_a_new_generation_are_numbered_above_the_last_committed_one(tmp_path):
    """PROTOCOL 1: rows of changelogs and tables of updates are ordered by their epoch."""
    place = Place(application(), topics(100), tmp_path, max_records=30)
    place.run()
    before = newest(place)
    place.topics.rows["sales", 0] += sales(20, 0)
    place.run()
    after = newest(place)
    assert (after.generation, after.epoch) > (before.generation, before.epoch)
    assert after.epoch > before.epoch > 1
    assert totals(place) == expected(place)


def by_amount() -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("shop"), value=Json(Sale))
    stream.group_by("amount").agg("by_amount", sold=Count()).to_delta("by_amount")
    return Application("sales", builder)


@pytest.fixture
def repartitioned(tmp_path) -> Place:
    return Place(by_amount(), topics(90), tmp_path)


def with_a_waiting_blob(place: Place) -> Coordinator:
    """A driver whose target is restoring, so that what its source has sent waits."""
    coordinator = place.driver()._coordinator
    put_away(coordinator.tasks[TARGET])
    coordinator.run_epoch({("sales", 0): 90}, LIMITS, now_ms=0)
    return coordinator


def test_a_source_gets_no_plan_while_too_much_waits_for_its_target(repartitioned):
    """PROTOCOL 23: what waits between sub-topologies is bounded."""
    coordinator, ends = with_a_waiting_blob(repartitioned), {("sales", 0): 90}
    coordinator.run_epoch(ends, LIMITS, now_ms=0)
    assert coordinator.tasks[SOURCE].positions == {"sales": {0: 60}}
    assert coordinator.run_epoch(ends, replace(LIMITS, max_pending_bytes=1), now_ms=0) is None
    assert coordinator.tasks[SOURCE].positions == {"sales": {0: 60}}
    put_back(coordinator.tasks[TARGET])
    coordinator.run_epoch(ends, replace(LIMITS, max_pending_bytes=1), now_ms=0)
    coordinator.run_epoch(ends, replace(LIMITS, max_pending_bytes=1), now_ms=0)
    assert coordinator.tasks[SOURCE].positions == {"sales": {0: 90}}


def test_a_blob_is_listed_until_it_is_consumed_and_deleted_after_the_commit_that_passes_it(repartitioned):
    """PROTOCOL 23: a rollback to the commit before reads it again."""
    coordinator = with_a_waiting_blob(repartitioned)
    (blob,) = coordinator.tasks[TARGET].pending
    path = repartitioned.warehouse / "sales" / "_blobs" / blob.path
    coordinator.commit("a test")
    assert newest(repartitioned).pending_blobs == (blob,)
    put_back(coordinator.tasks[TARGET])
    coordinator.run_epoch({("sales", 0): 30}, LIMITS, now_ms=0)
    assert not coordinator.tasks[TARGET].pending
    assert path.exists(), "no commit has passed it yet"
    coordinator.commit("a test")
    assert not newest(repartitioned).pending_blobs
    assert not path.exists()


def test_a_start_that_is_overtaken_leaves_what_the_newer_driver_writes(repartitioned, monkeypatch):
    """PROTOCOL 20 and 23: files that are listed after the claim could be those of a newer driver."""
    repartitioned.run()
    app_folder, claim, written = repartitioned.warehouse / "sales", Committer.claim, []

    def overtaken(self: Committer) -> Claim:
        """A claim right after which another driver claims and writes."""
        own = claim(self)
        claim(copy(self))
        for path in ("_blobs/newer.arrow", "_snapshots/sales_0/newer.mdb"):
            written.append(app_folder / path)
            written[-1].parent.mkdir(parents=True, exist_ok=True)
            written[-1].touch()
        return own

    monkeypatch.setattr(Committer, "claim", overtaken)
    with suppress(FencedError):
        repartitioned.driver()
    assert written
    assert all(path.exists() for path in written)


def test_a_start_keeps_the_blobs_that_the_newest_commit_lists_and_removes_the_others(repartitioned):
    """PROTOCOL 23: the others were left by epochs that are rolled back."""
    coordinator = with_a_waiting_blob(repartitioned)
    coordinator.commit("a test")
    coordinator.run_epoch({("sales", 0): 90}, LIMITS, now_ms=0)
    folder = repartitioned.warehouse / "sales" / "_blobs"
    assert len(list(folder.iterdir())) == 2
    (listed,) = newest(repartitioned).pending_blobs
    successor = repartitioned.driver()._coordinator
    assert [path.name for path in folder.iterdir()] == [listed.path]
    assert successor.tasks[TARGET].pending == [listed]


def test_another_topology_is_refused_while_rows_wait_between_sub_topologies(repartitioned):
    """PROTOCOL 26: even if a loss is accepted; nothing is claimed."""
    with_a_waiting_blob(repartitioned).commit("a test")
    other = replace(repartitioned, application=application())
    with pytest.raises(PendingRowsError, match="1 "):
        other.run(accept_state_loss=True)
    assert repartitioned.driver()._coordinator.generation == 2
