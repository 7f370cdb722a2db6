"""The limit on uncommitted state: epochs stop reading early, at most one batch of records too late (KIP-892)."""

from __future__ import annotations

import json
from datetime import timedelta
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import Sale, application, expected, totals
from weir import Application, Count, Json, StreamsBuilder, String
from weir.pipelines.application import NO_LIMIT
from weir.pipelines.tasks import batch_sizes
from weir.state.commit.tables import read_table

ROW_BYTES = 40
"""Roughly the size of a shop's state, including its key."""
BATCH_ROWS = batch_sizes.LEAST_ROWS
"""With limits as low as here."""


@pytest.fixture
def place(tmp_path):
    """1,500 shops in each of two partitions, one sale each."""
    topics = Topics(
        {
            ("sales", partition): [
                (b"shop-%d-%d" % (partition, number), json.dumps({"amount": number}).encode(), 1_000 + number)
                for number in range(1500)
            ]
            for partition in (0, 1)
        }
    )
    return Place(application(commit_interval=timedelta(hours=1)), topics, tmp_path, max_records=10_000)


def run(place: Place) -> list[int]:
    """Run until caught up; the uncommitted bytes after each epoch."""
    driver = place.driver()
    coordinator, seen = driver._coordinator, []
    run_epoch = coordinator.run_epoch

    def watched(*args, **others):
        result = run_epoch(*args, **others)
        seen.append(coordinator.uncommitted_bytes)
        return result

    coordinator.run_epoch = watched
    driver.run(Event(), until_caught_up=True)
    return seen


@pytest.mark.slow
def test_no_epoch_passes_the_limit_by_more_than_a_batch_of_each_task(place):
    place.application.uncommitted_max_bytes = 20_000
    seen = run(place)
    assert max(seen) > 20_000 * 0.8
    assert max(seen) < 20_000 + 2 * BATCH_ROWS * ROW_BYTES
    assert len(seen) > 3
    assert totals(place) == expected(place)


@pytest.mark.slow
def test_tasks_behind_a_repartition_keep_to_it_too(place):
    """Each sale moves to the task of its amount; the tasks that send it write nothing that would limit them."""
    builder = StreamsBuilder()
    sales = builder.stream("sales", key=String("shop"), value=Json(Sale))
    sales.group_by("amount").agg("by_amount", sold=Count()).to_delta("by_amount")
    place.application = Application("sales", builder, commit_interval=timedelta(hours=1), uncommitted_max_bytes=20_000)
    seen = run(place)
    assert 20_000 * 0.8 < max(seen) < 20_000 + 2 * BATCH_ROWS * ROW_BYTES
    sold = read_table(place.warehouse / "sales" / "by_amount").select("amount", "sold").rows()
    assert sorted(sold) == [(number, 2) for number in range(1500)]


def test_without_a_limit_the_interval_alone_decides(place):
    place.application.uncommitted_max_bytes = NO_LIMIT
    seen = run(place)
    assert max(seen) > 50_000
    assert len(seen) <= 3
    assert totals(place) == expected(place)


@pytest.mark.slow
def test_records_after_the_cut_are_dead_letters_once(place):
    """A bad record that is left for the next epoch is not counted by this one as well."""
    place.application = application(on_error="dead_letter", commit_interval=timedelta(hours=1))
    place.application.uncommitted_max_bytes = 20_000
    for offset in range(0, 1500, 100):
        place.topics.rows["sales", 0][offset] = (b"shop", b"bad", 5_000)
    driver = place.driver()
    assert driver.run(Event(), until_caught_up=True).totals["dead_letters"] == 15
    place.topics.rows["sales", 0] = [row for row in place.topics.rows["sales", 0] if row[1] != b"bad"]
    assert totals(place) == expected(place)
