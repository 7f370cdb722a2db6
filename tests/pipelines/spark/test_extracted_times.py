"""Extracted times across epochs: partitions stay together by them, and the partition time is kept."""

import json
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    FailOnInvalidTimestamp,
    Json,
    LogAndSkipOnInvalidTimestamp,
    StreamsBuilder,
    String,
    UsePartitionTimeOnInvalidTimestamp,
)
from weir.state.commit.tables import read_table


@dataclass(frozen=True)
class Sale:
    ms: int | None


def application(timestamp, max_skew=None) -> Application:
    builder = StreamsBuilder()
    builder.stream("sales", key=String("shop"), value=Json(Sale), timestamp=timestamp).to_delta("out")
    return Application("sales", builder, commit_interval=timedelta(milliseconds=1), max_skew=max_skew)


def rows(times) -> list:
    return [(b"a", json.dumps({"ms": ms}).encode(), 5_000) for ms in times]


def written(place: Place) -> list[int]:
    """Times of the output in ms, in offset order if there is one partition."""
    return read_table(place.warehouse / "sales" / "out").sort("_epoch", "_seq")["_ts"].dt.epoch("ms").to_list()


@pytest.mark.slow
def test_partitions_stay_together_in_extracted_time_while_they_catch_up(tmp_path):
    times = {0: range(0, 1_000, 10), 1: range(0, 3_000, 30)}
    place = Place(
        application(FailOnInvalidTimestamp("ms"), max_skew=timedelta(milliseconds=100)),
        Topics({("sales", partition): rows(found) for partition, found in times.items()}),
        tmp_path,
        max_records=30,
    )
    driver, ahead = place.driver(), []
    coordinator = driver._coordinator
    run_epoch = coordinator.run_epoch

    def watched(*args, **others):
        result = run_epoch(*args, **others)
        read = {task.id.partition: task.positions["sales"][task.id.partition] for task in coordinator.tasks.values()}
        if 0 < read[0] < 100 and 0 < read[1] < 100:
            ahead.append(times[1][read[1] - 1] - times[0][read[0] - 1])
        return result

    coordinator.run_epoch = watched
    driver.run(Event(), until_caught_up=True)
    assert len(ahead) > 5
    assert max(map(abs, ahead)) <= 100 + 30
    assert sorted(written(place)) == sorted([*times[0], *times[1]])


def test_the_partition_time_is_kept_across_epochs_and_runs(tmp_path):
    times = [5, None, 3, *[None] * 7, 9, *[None] * 10, 2]
    place = Place(
        application(UsePartitionTimeOnInvalidTimestamp("ms")),
        Topics({("sales", 0): rows(times)}),
        tmp_path,
        max_records=4,
    )
    place.run()
    place.topics.rows["sales", 0] += rows([None, 11])
    place.run()
    assert written(place) == [5, 5, 3, *[5] * 7, 9, *[9] * 10, 2, 9, 11]


def test_skipped_records_are_counted_once_and_left_behind(tmp_path):
    place = Place(
        application(LogAndSkipOnInvalidTimestamp("ms")),
        Topics({("sales", 0): rows([5, None, -1, 7] * 10)}),
        tmp_path,
        max_records=7,
    )
    summary = place.run()
    assert (summary.totals["invalid_timestamps"], summary.records_in) == (20, 40)
    assert written(place) == [5, 7] * 10
