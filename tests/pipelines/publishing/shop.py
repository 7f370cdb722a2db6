"""An application with two sinks in Kafka and a topic of dead letters; topics and faults are in the environment."""

from __future__ import annotations

import os
from datetime import timedelta

from polars import col

from weir import Application, Count, Int64, StreamsBuilder, String, Sum

ORDERS, CHECKED, TOTALS, DEAD = "SHOP_ORDERS", "SHOP_CHECKED", "SHOP_TOTALS", "SHOP_DEAD"


def build() -> Application:
    builder = StreamsBuilder()
    orders = builder.stream(os.environ.get(ORDERS, "orders"), key=String("user"), value=Int64("cents"))
    orders.filter(col("cents") >= 0).to(os.environ.get(CHECKED, "checked"), name="checked")
    totals = orders.group_by_key().agg("totals", total=Sum("cents"), orders=Count())
    totals.to_stream().to(os.environ.get(TOTALS, "totals"), name="totals")
    return Application(
        "shop",
        builder,
        commit_interval=timedelta(milliseconds=100),
        on_error="dead_letter",
        dead_letter_topic=os.environ.get(DEAD, "dead"),
    )


app = build()
