"""A backfill of some days of flights gives what the live run gave, row by row, late records included."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.pipelines.backfill.inline import made, output
from tests.pipelines.spark.inline import Place, Topics
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.examples import flights
from weir.pipelines.examples.load_flights import flight_records
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

pytestmark = pytest.mark.slow
DAYS = Days(first=date(2013, 1, 3), end=date(2013, 1, 6))
IN_DAYS = pl.col("window_start").is_between(
    datetime(2013, 1, 3, tzinfo=UTC), datetime(2013, 1, 6, tzinfo=UTC), closed="left"
)


@pytest.fixture(scope="module")
def records():
    """The topic's records up to the night of the eighth of January, by partition."""
    end_ms = datetime(2013, 1, 9, tzinfo=UTC).timestamp() * 1000
    found = flight_records(4).filter(pl.col("timestamp_ms") < end_ms)
    return {
        partition: [
            (key.encode(), value.encode(), time_ms)
            for key, value, time_ms in found.filter(partition=partition)
            .select("key", "value", "timestamp_ms")
            .iter_rows()
        ]
        for partition in range(4)
    }


@pytest.fixture
def place(records, tmp_path):
    topics = Topics({("flights", partition): list(rows) for partition, rows in records.items()})
    return Place(flights.app, topics, tmp_path, max_records=400)


def test_three_days_equal_those_of_the_live_run_while_it_continues(place, records):
    for partition, rows in records.items():
        place.topics.rows["flights", partition] = rows[: int(len(rows) * 0.85)]
    assert place.run().totals["late_records"] > 0
    cut = newest_commit(place.warehouse, "flights").epoch
    shadow = made(place, DAYS)
    backfill, margin_ms = shadow.backfill, timedelta(hours=1, minutes=10) // timedelta(milliseconds=1)
    assert [each.table for each in backfill.outputs] == ["late_departures"]
    assert backfill.left_out.keys() == {"carrier_totals"}
    for partition, (start, end) in backfill.ranges["flights"].items():
        rows = place.topics.rows["flights", partition]
        assert end == len(rows)
        assert max(time_ms for _, _, time_ms in rows[:start]) < DAYS.start_ms - margin_ms <= rows[start][2]
    place.topics.rows = {("flights", partition): rows for partition, rows in records.items()}
    place.run()
    before, totals = output(place, "late_departures"), output(place, "carrier_totals")
    prepare(shadow)
    swap_at_rest(place.warehouse, place.application, shadow.id)
    assert_frame_equal(output(place, "late_departures"), before)
    assert_frame_equal(output(place, "carrier_totals"), totals)
    rows = read_table(place.warehouse / "flights" / "late_departures")
    assert rows.filter(IN_DAYS)["_epoch"].unique().to_list() == [cut], "they come from the backfill"
    assert rows.filter(~IN_DAYS)["_epoch"].n_unique() > 3
    assert 500 < rows.filter(IN_DAYS).height < rows.height
    assert not shadow.folder.path.exists()


def test_days_that_are_not_over_keep_what_the_live_run_will_still_emit(place, records):
    """Windows that are open at the cut belong to the live run: it emits them when they close, the backfill does not."""
    place.run()
    shadow = made(place, Days(first=date(2013, 1, 7), end=date(2013, 1, 12)))
    last_ms = max(rows[-1][2] for rows in records.values())
    for partition in records:
        place.topics.rows["flights", partition].append((b"UA-EWR", b'{"dep_delay": 1, "dep_time": 1}', last_ms + 9**8))
    place.run()
    before = output(place, "late_departures")
    prepare(shadow)
    swap_at_rest(place.warehouse, place.application, shadow.id)
    assert_frame_equal(output(place, "late_departures"), before)
