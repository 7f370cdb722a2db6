"""Fingerprints and stored names as earlier versions wrote them: their state must be found under the same names.

If one of these literals has to change, state committed by earlier versions no longer fits: say so in the changelog.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from polars import col

from weir import (
    BufferConfig,
    Count,
    EmitStrategy,
    JoinWindows,
    Json,
    Mean,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)
from weir.pipelines.examples import few_events, final_counts, flights, weather
from weir.pipelines.topology import Topology

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Sale:
    shop: str
    product: str
    cents: int


def longer(one: str, other: str) -> str:
    return max(one, other, key=len)


def added(key: str, sale: Sale, total: int) -> int:
    return total + sale.cents


def taken(key: str, sale: Sale, total: int) -> int:
    return total - sale.cents


def both(key: str, total: int, other: int) -> int:
    return total + other


def sales(builder: StreamsBuilder, topic: str = "sales"):
    return builder.stream(topic, key=String("sale"), value=Json(Sale))


def stateless(builder: StreamsBuilder) -> None:
    several = builder.stream(["a", "b"], key=String("id"), value=String("text"), idle_after=MINUTE)
    several.filter(col("text") != "").filter_not(col("text") == "-").peek(print).to_delta("texts")
    words = several.flat_map_values(word=col("text").str.split(" ")).map(key="word", value="id")
    branches = words.split("by-").branch(col("id") == "1", "one").default_branch("rest")
    branches["by-one"].merge(branches["by-rest"]).repartition("words", partitions=2).to_delta("words")


def aggregations(builder: StreamsBuilder) -> None:
    by_shop = sales(builder).group_by("shop")
    by_shop.count("counts").to_delta("counts")
    by_shop.aggregate("totals", int, added).to_delta("totals")
    hours = TimeWindows.of_size_and_grace(60 * MINUTE, MINUTE)
    by_shop.windowed_by(hours, late_to=lambda late: late.to_delta("late")).agg("hourly", mean=Mean("cents")).suppress(
        Suppressed.until_window_closes(BufferConfig.unbounded())
    ).to_delta("hourly")
    by_shop.windowed_by(UnlimitedWindows.of()).count("ever").suppress(
        Suppressed.until_time_limit(MINUTE, BufferConfig.max_records(5)).with_name("slow")
    ).to_delta("ever", emit="record")
    sessions = by_shop.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(MINUTE), retention=60 * MINUTE)
    sessions.aggregate("sessions", int, added, both).to_delta("sessions")
    sliding = SlidingWindows.of_time_difference_and_grace(MINUTE, MINUTE)
    by_shop.windowed_by(sliding).emit_strategy(EmitStrategy.on_window_close()).agg("near", n=Count()).to_delta("near")


def cogrouped(builder: StreamsBuilder) -> None:
    one, other = (sales(builder, topic).group_by_key() for topic in ("sales", "returns"))
    one.cogroup(sold=Count()).cogroup(other, returned=Sum("cents")).agg("beside").to_delta("beside")
    one.cogroup(added).cogroup(other, taken).windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).aggregate(
        "by_minute", int
    ).to_delta("by_minute")


def joins(builder: StreamsBuilder) -> None:
    stream, other = sales(builder), sales(builder, "returns")
    near = JoinWindows.of_time_difference_and_grace(MINUTE, MINUTE)
    stream.left_join(other.map_values(back="cents"), windows=near, store="pairs").to_delta("pairs")
    shops = builder.table("shops", key=String("id"), value=String("city"), store="shops", ttl=60 * MINUTE)
    rates = builder.table("rates", key=String("id"), value=String("rate"), store="rates", history_retention=9 * MINUTE)
    products = builder.global_table("products", key=String("id"), value=String("title"), store="products")
    stream.join(products, key="product").to_delta("titled")
    stream.select_key(shop_id="shop").join(rates, grace=MINUTE, store="waiting").to_delta("rated")
    cities = shops.to_stream().to_table("cities")
    stream.select_key(shop_id="shop").left_join(cities.filter(col("city") != ""), name="by_shop").to_delta("placed")
    cities.outer_join(rates.map_values(factor="rate")).to_delta("both")


def tables(builder: StreamsBuilder) -> None:
    newest = builder.table("sales", key=String("sale"), value=Json(Sale), store="newest")
    shops = builder.table("shops", key=String("id"), value=String("city"), store="shops")
    newest.left_join(shops, foreign_key="shop", store="named").to_delta("placed")
    newest.group_by(by="shop").agg("by_shop", cents=Sum("cents")).to_delta("by_shop")
    newest.group_by(by="product").aggregate("by_product", int, added, taken).to_delta("by_product")
    shops.group_by(place="city").reduce("ids", longer, longer).to_delta("ids")


def built(describe) -> Topology:
    builder = StreamsBuilder()
    describe(builder)
    return builder.build()


@pytest.mark.parametrize(
    ("topology", "fingerprint", "stored_names"),
    [
        pytest.param(
            flights.app.topology,
            "f86fb599ed33a4f9f99a20d5d1dd1df1",
            ["flights", "by_carrier-repartition"],
            id="flights",
        ),
        pytest.param(weather.app.topology, "cde9b8caca2646d206ac4dce725c4442", ["weather"], id="weather"),
        pytest.param(few_events.app.topology, "49d535945763c6db3fc2e6c04c8bfa08", ["events"], id="few_events"),
        pytest.param(
            final_counts.app.topology,
            "03e6a27bd53f8011792bdf77a1a7d4ea",
            ["words", "words_by_minute-repartition"],
            id="final_counts",
        ),
        pytest.param(
            built(stateless),
            "34933834b76587c0444353ef09ea038b",
            ["a", "words-repartition"],
            id="stateless",
        ),
        pytest.param(
            built(aggregations),
            "04c30f1579b98b058dfa39838960e6bd",
            [
                "sales",
                "counts-repartition",
                "totals-repartition",
                "hourly-repartition",
                "ever-repartition",
                "sessions-repartition",
                "near-repartition",
            ],
            id="aggregations",
        ),
        pytest.param(built(cogrouped), "fac5a8096eb739f3d5577744ca19be5a", ["sales"], id="cogrouped"),
        pytest.param(
            built(joins),
            "573f3c0f848f2b4b714cb5c02990ee4d",
            ["sales", "KSTREAM-KEY-SELECT-0000000017-repartition"],
            id="joins",
        ),
        pytest.param(
            built(tables),
            "3741ba4d0339ad7b0af6d5352dcfd5ea",
            [
                "sales",
                "shops",
                "by_shop-repartition",
                "by_product-repartition",
                "ids-repartition",
            ],
            id="tables",
        ),
    ],
)
def test_a_program_keeps_the_fingerprint_and_the_stored_names_under_which_its_state_was_written(
    topology, fingerprint, stored_names
):
    assert topology.fingerprint == fingerprint
    assert [sub_topology.stored_name for sub_topology in topology.sub_topologies] == stored_names
