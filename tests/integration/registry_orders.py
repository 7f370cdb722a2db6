"""Orders in Avro by user, written by another producer with its schema in a registry, summed and copied to a topic."""

from __future__ import annotations

from dataclasses import dataclass

from weir import Application, Avro, StreamsBuilder, String, Sum


@dataclass(frozen=True)
class Order:
    amount: int


TOPIC, COPIES = "registry-orders", "registry-copies"
_builder = StreamsBuilder()
_orders = _builder.stream(TOPIC, key=String("user"), value=Avro(Order))
_orders.group_by_key().agg("totals", total=Sum("amount")).to_delta("totals")
_orders.to(COPIES, value=Avro(Order))
app = Application("registry-orders", _builder)
