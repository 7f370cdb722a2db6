"""Orders in Avro by user, written by another producer with its schema in a registry."""

from __future__ import annotations

from dataclasses import dataclass

from weir import Application, Avro, StreamsBuilder, String, Sum


@dataclass(frozen=True)
class Order:
    amount: int


TOPIC = "registry-orders"
_builder = StreamsBuilder()
_builder.stream(TOPIC, key=String("user"), value=Avro(Order)).group_by_key().agg(
    "totals", total=Sum("amount")
).to_delta("totals")
app = Application("registry-orders", _builder)
