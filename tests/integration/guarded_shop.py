"""An application all of whose neighbours want a password: it reads Avro, whose schemas are in a registry, and gives its
records to a table of the settings' database and to a server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from weir import Application, Avro, StreamsBuilder, String

TOPIC, URL, TOKEN = "guarded-orders", "SHOP_URL", "SHOP_TOKEN"


@dataclass(frozen=True)
class Order:
    amount: int


builder = StreamsBuilder()
orders = builder.stream(TOPIC, key=String("user"), value=Avro(Order))
orders.to_sql("sold")
orders.to_http(
    os.environ.get(URL, "http://localhost/orders"),
    name="told",
    headers={"Authorization": f"env:{TOKEN}"},
    max_records=10,
)
app = Application("guarded_shop", builder, commit_interval=timedelta(milliseconds=100))
