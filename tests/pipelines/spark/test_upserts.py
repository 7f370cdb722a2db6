"""A run keeps tables of upserts up to date, whatever dies; what changing an output's mode over existing data does."""

from __future__ import annotations

import json
import pickle
import random
import re
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event

import polars as pl
import pytest

from tests.examples import combined
from tests.faults.dying import KilledError, dying_at
from tests.faults.hook import DRIVER_STEPS
from tests.pipelines.spark import countries_page as page
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Json, StreamsBuilder, String, Sum
from weir.infra.settings import Settings
from weir.pipelines.operations import tables
from weir.pipelines.operations.registry import register
from weir.pipelines.operations.reset import reset
from weir.pipelines.spark.afterwards import Afterwards
from weir.pipelines.spark.upserts import refreshing
from weir.pipelines.topology.topology import table_spec
from weir.state.changelog.upserts import Upserts
from weir.state.commit.audit import newest_commits, row_count
from weir.state.commit.tables import read_rows, read_table
from weir.state.errors import TableModeError

COUNTRIES = ("at", "be", "ch", "de", "es")
UPSERT_STEPS = ("upserts written", "upserts replaced", "upserts cleaned")


@dataclass(frozen=True)
class Order:
    cents: int


def program(table: str = "countries", **output) -> Application:
    """Sums per country; the orders of a country that closes are taken back by a null, which a table deletes."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("country"), value=Json(Order))
    orders.group_by_key().agg("sums", cents=Sum("cents"), orders=Count()).to_delta(table, **output)
    newest = builder.table("capitals", key=String("country"), value=String("capital"), store="capitals")
    newest.to_delta("capitals", mode="upsert", refresh=timedelta(milliseconds=1))
    return Application("shop", builder, commit_interval=timedelta(milliseconds=1))


class Shop(Place):
    """A place whose state is where the command line has it."""

    @property
    def state_folder(self) -> Path:
        return self.folder / "state" / "shop"


def upserting() -> Application:
    return program(mode="upsert", refresh=timedelta(milliseconds=1))


def place_of(folder: Path, application: Application) -> Place:
    topics = Topics({(topic, partition): [] for topic in ("orders", "capitals") for partition in range(2)})
    place = Shop(application, topics, folder, max_records=10)
    add(place, 120, seed=1)
    return place


def add(place: Place, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        country = rng.choice(COUNTRIES)
        partition, key = COUNTRIES.index(country) % 2, country.encode()
        cents = rng.randrange(1_000)
        place.topics.rows["orders", partition].append((key, json.dumps({"cents": cents}).encode(), number))
        capital = rng.choice([None, b"old", b"new"])
        place.topics.rows["capitals", partition].append((key, capital, number))


def wanted(place: Place) -> dict[str, dict]:
    """What the tables should show, from the topics alone."""
    sums: dict[str, tuple[int, int]] = {}
    capitals: dict[str, str] = {}
    for (topic, _), rows in place.topics.rows.items():
        for key, value, _ in rows:
            country = key.decode()
            if topic == "orders":
                cents, orders = sums.get(country, (0, 0))
                sums[country] = (cents + json.loads(value)["cents"], orders + 1)
            elif value is None:
                capitals.pop(country, None)
            else:
                capitals[country] = value.decode()
    return {"countries": sums, "capitals": {country: (capital,) for country, capital in capitals.items()}}


def shown(place: Place, *names: str) -> dict[str, dict]:
    found = {}
    for table in names or ("countries", "capitals"):
        rows = read_rows(place.warehouse / "shop" / table).drop("_ts").rows()
        found[table] = {country: tuple(values) for country, *values in rows}
        assert len(found[table]) == len(rows)
    return found


def run(place: Place) -> None:
    """A run until caught up, with what refreshes the tables in the background."""
    driver = place.driver()
    background = refreshing(place.application, place.warehouse / "shop")
    driver._coordinator._on_commit = lambda positions: [each(positions) for each in background]
    for each in background:
        each(None)
    driver.run(Event(), until_caught_up=True)
    for each in background:
        each.close()


def run_in_step(place: Place, on_step) -> None:
    """A run whose refreshes follow each commit at once, in the same thread, so that it can die in them."""
    driver = place.driver(on_step)
    opened = [
        Upserts(place.warehouse / "shop", table_spec(sink), "shop", on_step=on_step)
        for sink in place.application.topology.sinks
        if sink.refresh_ms is not None
    ]
    driver._coordinator._on_commit = lambda positions: [each.refresh() for each in opened]
    driver.run(Event(), until_caught_up=True)


def test_five_countries_are_five_rows_when_a_run_ends_and_after_the_next(tmp_path):
    place = place_of(tmp_path, upserting())
    run(place)
    assert len(shown(place)["countries"]) == 5
    assert shown(place) == wanted(place)
    add(place, 50, seed=2)
    run(place)
    assert shown(place) == wanted(place)


@pytest.mark.faults
@combined("step,occurrence", [*DRIVER_STEPS, *UPSERT_STEPS], [1, 3])
def test_a_driver_that_dies_at_a_step_leaves_the_table_right_after_the_next_run(
    tmp_path, step, occurrence, monkeypatch
):
    monkeypatch.setattr("weir.state.changelog.upserts.VACUUM_EVERY_S", 0.0)
    place = place_of(tmp_path, upserting())
    with pytest.raises(KilledError):
        run_in_step(place, dying_at(step, occurrence))
    run(place)
    assert shown(place) == wanted(place)


def test_a_start_shows_what_a_driver_that_died_had_committed(tmp_path):
    place = place_of(tmp_path, upserting())
    place.run()
    assert shown(place) == {"countries": {}, "capitals": {}}
    run(place)
    assert shown(place) == wanted(place)


def test_a_start_shows_that_too_if_the_program_no_longer_has_the_output(tmp_path):
    place = place_of(tmp_path, upserting())
    run(place)
    add(place, 50, seed=2)
    place.run()
    assert shown(place) != wanted(place)
    place.application = program("others")
    run(place)
    assert shown(place) == wanted(place)


def test_refreshes_rest_between_them_and_closing_does_the_last_one_at_once():
    done = []
    work = Afterwards("test", done.append, Exception, "failed", lambda took_s: 3600.0)
    work(1)
    while not done:
        time.sleep(0.001)
    work(2)
    work(3)
    time.sleep(0.05)
    assert done == [1]
    work.close()
    assert done == [1, 3]


def test_the_audit_counts_the_updates_that_commits_wrote(tmp_path):
    place = place_of(tmp_path, upserting())
    run(place)
    window = newest_commits(place.warehouse, "shop", 10_000)
    count = row_count(place.warehouse, "shop", "_updates/countries", window)
    assert count.is_right
    assert count.found == count.committed > 5


def test_show_and_the_listing_know_the_table_by_its_name(tmp_path, monkeypatch):
    place = place_of(tmp_path, upserting())
    run(place)
    monkeypatch.setattr(tables, "require", lambda settings, application: application)
    settings = Settings(dir=tmp_path)
    assert tables.output_tables(place.warehouse / "shop") == ["capitals", "countries"]
    rows = tables.newest_rows(settings, "shop", "countries")
    assert rows.columns == ["country", "cents", "orders"]
    assert {row[0]: row[1:] for row in rows.rows()} == wanted(place)["countries"]
    assert place.application.topology.committed_form.outputs == ("countries", "capitals")


@pytest.mark.parametrize(("before", "after"), [("append", "upsert"), ("upsert", "append")])
def test_another_mode_over_existing_data_is_refused_and_both_ways_out_work(tmp_path, before, after):
    place = place_of(tmp_path, program(mode=before))
    run(place)
    place.application = program(mode=after)
    with pytest.raises(TableModeError, match=f'written with mode="{before}"') as refused:
        run(place)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    (way_out,) = re.findall(r"to_delta\((.*?)\)", str(refused.value))
    name, mode = re.fullmatch(r'"(\w+)", mode="(\w+)"', way_out).groups()
    assert "`weir reset shop`" in str(refused.value)
    if after == "upsert":
        assert read_table(place.warehouse / "shop" / "countries").height == 5, "nothing was changed"

    other = Shop(program(name, mode=mode), place.topics, place.folder, max_records=10)
    place.topics.rows["orders", 0].append((b"at", b'{"cents": 1}', 1_000))
    run(other)
    rows = read_table(place.warehouse / "shop" / name)
    assert rows["country"].to_list() == ["at"], "it has what was updated since"
    assert rows.select("cents", "orders").row(0) == wanted(place)["countries"]["at"]

    settings = Settings(dir=tmp_path)
    register(settings, "shop", "tests:app")
    reset(settings, "shop")
    run(place)
    rows = read_table(place.warehouse / "shop" / "countries")
    assert {row["country"]: (row["cents"], row["orders"]) for row in rows.iter_rows(named=True)} == (
        wanted(place)["countries"]
    )


@pytest.mark.parametrize(
    ("code", "answer"),
    [(page.PANDAS, page.PANDAS_ANSWER), (page.POLARS, page.POLARS_ANSWER)],
    ids=["pandas", "polars"],
)
def test_the_queries_of_the_page_print_what_it_says(tmp_path, code, answer):
    topics = Topics({("orders", 0): []})
    for second, (country, cents) in enumerate(page.ORDERS):
        value = json.dumps({"cents": cents}).encode()
        topics.rows["orders", 0].append((country.encode(), value, page.FIRST_MS + 1_000 * second))
    place = Place(page.program(), topics, tmp_path)
    run(place)
    assert page.lines(page.printed(code, place.warehouse)) == page.lines(answer)


def test_a_table_that_was_deleted_is_made_anew_by_the_next_run(tmp_path):
    place = place_of(tmp_path, upserting())
    run(place)
    (place.warehouse / "shop" / "countries").rename(tmp_path / "aside")
    run(place)
    assert shown(place) == wanted(place)
    assert isinstance(pl.read_delta(str(place.warehouse / "shop" / "countries")), pl.DataFrame)
