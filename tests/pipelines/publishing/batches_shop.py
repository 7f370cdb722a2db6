"""An application with an HTTP sink and one of its own, whose places are in the environment."""

from __future__ import annotations

import json
import os
from datetime import timedelta

from polars import col

from weir import Application, Batch, Int64, Sink, StreamsBuilder, String

ORDERS, URL, TOTALS = "SHOP_ORDERS", "SHOP_URL", "SHOP_TOTALS"
TOKEN = "SHOP_TOKEN"


class Lines(Sink):
    """Appends each batch, with its key, as a line of a file."""

    def open(self) -> None:
        self._file = open(os.environ[TOTALS], "a")  # noqa: SIM115 - closed in close()

    def send(self, batch: Batch) -> None:
        totals = batch.rows.select("user", "count").rows()
        self._file.write(json.dumps({"key": batch.idempotency_key, "totals": totals}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def build() -> Application:
    builder = StreamsBuilder()
    orders = builder.stream(os.environ.get(ORDERS, "orders"), key=String("user"), value=Int64("number"))
    url = os.environ.get(URL, "http://127.0.0.1:9/orders")
    headers = {"Authorization": f"env:{TOKEN}"}
    orders.filter(col("number") >= 0).to_http(url, name="checked", max_records=30, headers=headers)
    orders.group_by_key().count("totals").to_stream().to_sink(Lines(), name="totals", max_records=7)
    return Application("shop", builder, commit_interval=timedelta(milliseconds=100))


app = build()
