"""Sales by shop over two partitions: the small application that driver tests run, and its expected totals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import polars as pl

from tests.pipelines.spark.inline import Place
from weir import Application, Count, Json, StreamsBuilder, String, Sum
from weir.state.commit.tables import read_table


@dataclass(frozen=True)
class Sale:
    amount: int


@dataclass(frozen=True)
class Refund:
    amount: int


def application(on_error="fail", commit_interval=timedelta(milliseconds=1), store="sums", max_skew=None) -> Application:
    builder = StreamsBuilder()
    sales = builder.stream("sales", key=String("shop"), value=Json(Sale))
    sales.group_by_key().agg(store, total=Sum("amount"), sales=Count()).to_delta("totals")
    return Application("sales", builder, on_error=on_error, commit_interval=commit_interval, max_skew=max_skew)


def program(
    *, store="sums", refunds=False, positive_only=False, output="totals", total="total", by_amount=False, mode="append"
) -> Application:
    """``application()``, changed."""
    builder = StreamsBuilder()
    stream = builder.stream("sales", key=String("shop"), value=Json(Sale))
    if positive_only:
        stream = stream.filter(lambda key, value: value.amount >= 0)
    stream.group_by_key().agg(store, **{total: Sum("amount")}, sales=Count()).to_delta(output, mode=mode)
    if by_amount:
        stream.group_by("amount").agg("by_amount", sold=Count()).to_delta("by_amount")
    if refunds:
        builder.stream("refunds", key=String("shop"), value=Json(Refund)).group_by_key().agg(
            "refunds", total=Sum("amount")
        ).to_delta("refunds")
    return Application("sales", builder)


def sales(count: int, partition: int) -> list:
    return [
        (b"shop-%d" % (number % 5 * 2 + partition), json.dumps({"amount": number}).encode(), 1_000 + number * 10)
        for number in range(count)
    ]


def totals(place: Place) -> dict[str, tuple[int, int]]:
    rows = read_table(place.warehouse / "sales" / "totals")
    return {shop: (total, count) for shop, total, count in rows.select("shop", "total", "sales").iter_rows()}


def expected(place: Place) -> dict[str, tuple[int, int]]:
    rows = pl.DataFrame(
        [(key.decode(), json.loads(value)["amount"]) for rows in place.topics.rows.values() for key, value, _ in rows],
        schema=["shop", "amount"],
        orient="row",
    )
    summed = rows.group_by("shop").agg(pl.col("amount").sum(), pl.len())
    return {shop: (total, count) for shop, total, count in summed.iter_rows()}
