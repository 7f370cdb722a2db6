"""Tables of upserts follow a swap, of days and of everything, made at rest or by a running driver."""

from __future__ import annotations

from threading import Event

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.faults.dying import KilledError, dying_at
from tests.pipelines.backfill.inline import begun_whole, made, of_days, run_shadow
from tests.pipelines.backfill.program import DAYS, build_upserts, sensors
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.spark.upserts import refreshing
from weir.state.commit.tables import read_rows, read_table

pytestmark = pytest.mark.faults

OUTPUTS = ("overlapping", "totals")


def run(place) -> None:
    """A run until caught up, which keeps the tables up to date."""
    driver = place.driver()
    tables = refreshing(place.application, place.warehouse / "sensors")
    driver._coordinator._on_commit = lambda positions: [table(positions) for table in tables]
    for table in tables:
        table(None)
    driver.run(Event(), until_caught_up=True)
    for table in tables:
        table.close()


def shown(place, table: str) -> pl.DataFrame:
    """What a reader of Delta sees, which is what the updates say."""
    folder = place.warehouse / "sensors"
    rows = read_rows(folder / table)
    updates = read_table(folder / "_updates" / table).select(rows.columns)
    rows, updates = rows.sort(rows.columns), updates.sort(rows.columns)
    assert_frame_equal(rows, updates)
    return rows


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the program and the mended one show after reading everything."""
    found = []
    for program in (build_upserts(), build_upserts(300)):
        place = sensors(tmp_path_factory.mktemp("whole"), program)
        run(place)
        found.append({table: shown(place, table) for table in OUTPUTS})
    return found


@pytest.fixture
def place(tmp_path):
    place = sensors(tmp_path, build_upserts())
    run(place)
    return place


def mixed(results) -> pl.DataFrame:
    before, after = (of["overlapping"] for of in results)
    rows = pl.concat([of_days(before, DAYS, inside=False), of_days(after, DAYS, inside=True)])
    return rows.sort(rows.columns)


@pytest.mark.parametrize("is_running", [False, True])
def test_days_that_are_swapped_in_show_at_once(place, results, is_running):
    shadow = made(place, DAYS, build_upserts(300))
    prepared = prepare(shadow)
    assert str(prepared).startswith("overlapping ")
    assert_frame_equal(shown(place, "overlapping"), results[0]["overlapping"])
    if is_running:
        asked = place.desk.ask("swap", backfill=shadow.id)
        run(place)
        assert place.desk.answers[asked][0].startswith("swapped in by the commit")
    else:
        swap_at_rest(place.warehouse, place.application, shadow.id)
    assert_frame_equal(shown(place, "overlapping"), mixed(results))
    assert not mixed(results).equals(results[0]["overlapping"])


def test_a_swap_that_dies_after_its_pivot_shows_at_the_next_start(place, results):
    shadow = made(place, DAYS, build_upserts(300))
    prepare(shadow)
    with pytest.raises(KilledError):
        swap_at_rest(place.warehouse, place.application, shadow.id, dying_at("pivot appended"))
    run(place)
    assert_frame_equal(shown(place, "overlapping"), mixed(results))


def test_everything_that_is_swapped_in_shows_at_once(place, results):
    mended = build_upserts(300)
    shadow = run_shadow(place, begun_whole(place, mended), mended)
    swap_everything(place.warehouse, mended, shadow)
    for table in OUTPUTS:
        assert_frame_equal(shown(place, table), results[1][table])


def test_an_output_that_is_renamed_over_a_store_with_rows_is_whole_after_a_backfill_of_everything(place, results):
    place.application = build_upserts(totals="renamed")
    run(place)
    assert shown(place, "renamed").is_empty()
    shadow = run_shadow(place, begun_whole(place, place.application), place.application)
    swap_everything(place.warehouse, place.application, shadow)
    assert_frame_equal(shown(place, "renamed"), results[0]["totals"])
