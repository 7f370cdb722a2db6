"""A backfill recomputes outputs in the warehouse and publishes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.pipelines.backfill.inline import begun, begun_whole, run_on, run_shadow
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, StreamsBuilder, String
from weir.pipelines.backfill.everything import swap_everything
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.tables import read_table

FIRST_MS = 1_700_000_000_000
DAY = datetime.fromtimestamp(FIRST_MS / 1000, UTC).date()


@pytest.fixture
def place(tmp_path):
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=String("item"))
    orders.to_delta("all_orders")
    orders.to("copies")
    rows = [(b"ann", b"tea-%d" % number, FIRST_MS + number) for number in range(5)]
    place = Place(Application("shop", builder), Topics({("orders", 0): rows}), tmp_path)
    place.run()
    return place


def waiting(place: Place) -> list[str]:
    outbox = Outbox(place.warehouse / "shop", "copies", "shop")
    return [value.decode() for rows, _ in outbox.rows(Mark(), at_most=99, size_bytes=9999) for value in rows["value"]]


def test_days_are_swapped_in_without_the_sink(place):
    assert set(day_outputs(place.application.topology).left_out) == {"copies"}
    days = Days(first=DAY, end=DAY + timedelta(days=1))
    shadow = run_shadow(place, begun(place, days))
    prepare(shadow)
    swap_at_rest(place.warehouse, place.application, shadow.id)
    assert read_table(place.warehouse / "shop" / "all_orders").height == 5
    assert waiting(place) == [f"tea-{number}" for number in range(5)]


def test_everything_is_swapped_in_without_the_sink(place):
    shadow = run_on(place, run_shadow(place, begun_whole(place)))
    swap_everything(place.warehouse, place.application, shadow)
    assert read_table(place.warehouse / "shop" / "all_orders").height == 5
    assert waiting(place) == [f"tea-{number}" for number in range(5)]
    place.topics.rows["orders", 0].append((b"ann", b"jam", FIRST_MS + 9))
    place.run()
    assert waiting(place) == [*(f"tea-{number}" for number in range(5)), "jam"]
