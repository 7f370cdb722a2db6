"""What a comparison shows of a changed program whose stores have the same names, columns and windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from polars import col

from weir import Int64, Json, StreamsBuilder, String
from weir.pipelines.topology.changes import SettingChange, TopologyChange, compare
from weir.pipelines.topology.topology import Topology
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.types import StateId

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Order:
    customer: str | None
    payer: str | None


def committed(topology: Topology, count: int = 1) -> CommitRecord:
    """A commit of the topology, with ``count`` tasks per sub-topology."""
    state = StateId(1, 7)
    return CommitRecord(
        kind="commit",
        generation=1,
        epoch=7,
        at_ms=0,
        fingerprint=topology.fingerprint,
        topology=topology.committed_form,
        tasks={
            f"{sub_topology.stored_name}_{partition}": TaskCommit(state=state, instance="i")
            for sub_topology in topology.sub_topologies
            for partition in range(count)
        },
    )


def change(before: Topology, now: Topology) -> TopologyChange:
    return compare(committed(before), now, dict.fromkeys(range(len(now.sub_topologies)), 1))


def by_foreign_key(foreign_key) -> Topology:
    """Orders with the customer that they name, in the store ``named``."""
    builder = StreamsBuilder()
    orders = builder.table("orders", key=String("id"), value=Json(Order), store="orders")
    customers = builder.table("customers", key=String("id"), value=Int64("tier"), store="customers")
    orders.join(customers, foreign_key=foreign_key, store="named").to_stream().to_delta("out")
    return builder.build()


def held(grace: timedelta = MINUTE, history: timedelta = 10 * MINUTE) -> StreamsBuilder:
    """Sales that wait for late rates."""
    builder = StreamsBuilder()
    rates = builder.table(
        "rates", key=String("currency"), value=Int64("rate"), store="rates", history_retention=history
    )
    builder.stream("sales", key=String("currency"), value=Int64("amount")).join(
        rates, grace=grace, store="waiting"
    ).to_delta("out")
    return builder


def kept(ttl: timedelta) -> Topology:
    builder = StreamsBuilder()
    builder.table("rates", key=String("currency"), value=Int64("rate"), store="rates", ttl=ttl).to_delta("out")
    return builder.build()


def payer(order: Order) -> str | None:
    return order.payer


def customer(order: Order) -> str | None:
    return order.customer


def test_a_foreign_key_of_other_columns_empties_the_stores_of_both_tables():
    found = change(by_foreign_key("customer"), by_foreign_key("payer"))
    assert set(found.rebuilt) == {"orders", "customers", "named-subscription-store", "named-result-store"}
    assert (found.kept, found.loses_state, found.is_other_topology) == ((), True, True)
    assert change(by_foreign_key("customer"), by_foreign_key(col("customer"))).settings == ()


@pytest.mark.parametrize(
    ("before", "now", "texts"),
    [(col("customer"), col("customer").str.to_uppercase(), str), (customer, payer, lambda function: function.__name__)],
)
def test_a_changed_foreign_key_of_the_same_columns_or_of_a_function_is_shown(before, now, texts):
    found = change(by_foreign_key(before), by_foreign_key(now))
    assert found.settings == (
        SettingChange(store="named-subscription-store", setting="foreign key", before=texts(before), now=texts(now)),
    )
    assert not found.loses_state


def test_a_changed_grace_and_a_changed_history_are_shown_and_the_state_is_kept():
    assert change(held().build(), held().build()).settings == ()
    found = change(held().build(), held(grace=2 * MINUTE, history=timedelta(days=1)).build())
    assert sorted((each.store, each.setting, each.before, each.now) for each in found.settings) == [
        ("rates", "retention", "0:10:00", "1 day, 0:00:00"),
        ("waiting", "grace", "0:01:00", "0:02:00"),
    ]
    assert set(found.kept) == {"rates", "waiting"}


def test_a_commit_written_before_settings_were_kept_shows_none():
    before = committed(held().build())
    older = replace(before, topology=replace(before.topology, settings=None))
    assert compare(older, held(grace=2 * MINUTE).build(), {0: 1}).settings == ()


def test_a_changed_ttl_is_shown():
    found = change(kept(timedelta(hours=1)), kept(timedelta(hours=2)))
    assert [(each.before, each.now) for each in found.settings] == [("1:00:00", "2:00:00")]
    assert found.kept == ("rates",)
