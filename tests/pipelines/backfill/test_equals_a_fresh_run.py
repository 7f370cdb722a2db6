"""A backfill equals a run that began with the same topics complete, also after a repartition, where records that came
out of order are late or not by the order in which the partitions' rows meet."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.examples import combined
from tests.faults.dying import KilledError, dying_at
from tests.pipelines.backfill.inline import begun, begun_whole, made, output, run_shadow
from tests.pipelines.spark.inline import Place, Row, Topics
from weir import (
    Application,
    BufferConfig,
    Count,
    Json,
    Max,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.backfill.errors import NoCutError
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.state.commit.protocol import newest_commit

pytestmark = pytest.mark.slow

DAYS = Days(first=date(2024, 4, 30), end=date(2024, 5, 5))
FIRST = datetime(2024, 5, 1, tzinfo=UTC)
PARTITIONS = 3
HOUR_MS, GRACE_MS = 3_600_000, 1_200_000
TABLES = ("hours", "final_hours", "seen")


@dataclass(frozen=True)
class Click:
    page: str
    number: int


def build() -> Application:
    """Clicks by user, counted by page and hour: as a table of windows, as final results, and as the facts behind."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    by_page = (
        clicks.group_by("page")
        .windowed_by(TimeWindows.of_size_and_grace(timedelta(milliseconds=HOUR_MS), timedelta(milliseconds=GRACE_MS)))
        .agg("by_page", clicks=Count(), newest=Max("number"))
    )
    by_page.to_delta("hours")
    by_page.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("final_hours")
    clicks.to_delta("seen")
    return Application("clicking", builder, commit_interval=timedelta(milliseconds=1))


PROGRAM = build()


def clicks(pages: int = 4) -> dict[tuple[str, int], list[Row]]:
    """Three days of clicks, some of them up to two hours out of order; each partition has all pages."""
    rng = random.Random(7)
    found: dict[tuple[str, int], list[Row]] = {("clicks", partition): [] for partition in range(PARTITIONS)}
    for number in range(900):
        delay = timedelta(minutes=rng.choice([0, 0, 0, 10, 45, 120]))
        at_ms = round((FIRST + timedelta(days=3) * number / 900 - delay).timestamp() * 1000)
        partition = rng.randrange(PARTITIONS)
        value = b'{"page": "page-%d", "number": %d}' % (rng.randrange(pages), number)
        found["clicks", partition].append((b"user-%d" % partition, value, at_ms))
    return found


def outputs(place: Place) -> dict:
    return {table: output(place, table) for table in TABLES}


def fresh_run(folder, complete: dict) -> Place:
    place = Place(PROGRAM, Topics(complete), folder, max_records=60)
    assert place.run().totals["late_records"] > 0
    return place


def live_run(folder, complete: dict) -> Place:
    """It gets the partitions one after the other, so much of the later ones is late."""
    place = Place(PROGRAM, Topics({partition: [] for partition in complete}), folder, max_records=40)
    for partition, rows in complete.items():
        place.topics.rows[partition] = rows
        place.run()
    return place


def swap_days(place: Place) -> None:
    shadow = made(place, DAYS)
    prepare(shadow)
    swap_at_rest(place.warehouse, place.application, shadow.id)


def swap_whole(place: Place) -> None:
    swap_everything(place.warehouse, place.application, run_shadow(place, begun_whole(place)))


@combined("max_records,swap", [25, 1_000], [swap_whole, swap_days])
def test_a_backfill_equals_a_run_that_began_with_the_same_topics_complete(tmp_path, swap, max_records):
    wanted, place = outputs(fresh_run(tmp_path / "fresh", clicks())), live_run(tmp_path / "live", clicks())
    assert not outputs(place)["final_hours"].equals(wanted["final_hours"])
    place.max_records = max_records
    swap(place)
    for table, rows in outputs(place).items():
        assert_frame_equal(rows, wanted[table])


def one_machine(complete: dict) -> dict[int, list[int]]:
    """The numbers of the clicks of each hour, of a plain machine that takes all records in the order of the greatest
    time so far in their partition, then partition and offset."""
    order = []
    for (_, partition), rows in complete.items():
        reached_ms = 0
        for offset, (_, value, at_ms) in enumerate(rows):
            reached_ms = max(reached_ms, at_ms)
            order.append((reached_ms, partition, offset, at_ms, json.loads(value)["number"]))
    hours, stream_time_ms = dict[int, list[int]](), 0
    for *_, at_ms, number in sorted(order):
        stream_time_ms = max(stream_time_ms, at_ms)
        start_ms = at_ms // HOUR_MS * HOUR_MS
        if start_ms + HOUR_MS + GRACE_MS > stream_time_ms:
            hours.setdefault(start_ms, []).append(number)
    return hours


@pytest.mark.parametrize("swap", [swap_days, swap_whole])
def test_both_equal_one_machine_that_takes_one_record_after_the_other(tmp_path, swap):
    """With a single page there is a single stream time."""
    complete = clicks(pages=1)
    hours = one_machine(complete)
    assert sum(map(len, hours.values())) < 900, "some are late"
    place = live_run(tmp_path / "live", complete)
    swap(place)
    for there in (fresh_run(tmp_path / "fresh", complete), place):
        rows = output(there, "hours").with_columns(pl.col("window_start").dt.timestamp("ms"))
        found = {start: (count, newest) for start, count, newest in rows["window_start", "clicks", "newest"].rows()}
        assert found == {start: (len(numbers), max(numbers)) for start, numbers in hours.items()}


def test_while_a_run_catches_up_a_backfill_of_days_is_refused_and_afterwards_it_is_not(tmp_path):
    """Rows wait between tasks until nothing that lies before them can still come."""
    place = Place(PROGRAM, Topics(clicks()), tmp_path, max_records=60)
    with pytest.raises(KilledError):
        place.run(dying_at("settled", 3))
    assert newest_commit(place.warehouse, "clicking").pending_blobs
    with pytest.raises(NoCutError, match="wait until none are, which `weir status"):
        begun(place, DAYS)
    place.run()
    before = outputs(place)
    swap_days(place)
    for table, rows in outputs(place).items():
        assert_frame_equal(rows, before[table])
