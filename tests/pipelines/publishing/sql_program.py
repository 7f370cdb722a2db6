"""An application with a table that rows are appended to and one that is kept, whose topic, database and folder of
faults are in the environment."""

from __future__ import annotations

import os
from datetime import timedelta

from polars import col

from weir import Application, Count, Int64, StreamsBuilder, String, Sum

ORDERS, DATABASE = "SHOP_ORDERS", "SHOP_DATABASE"


def build() -> Application:
    builder = StreamsBuilder()
    orders = builder.stream(os.environ.get(ORDERS, "orders"), key=String("customer"), value=Int64("cents"))
    orders.filter(col("cents") >= 0).to_sql("checked", url=f"env:{DATABASE}")
    totals = orders.group_by_key().agg("totals", total=Sum("cents"), orders=Count())
    # A customer whose total is odd has no row: keys are deleted and come again.
    totals.filter(col("total") % 2 == 0).to_sql("customer_totals", url=f"env:{DATABASE}")
    return Application("shop", builder, commit_interval=timedelta(milliseconds=100))


app = build()
