"""Joins of tables by foreign key: the nodes on both sides, the edges between them, and their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from weir.pipelines.dsl.graph import Graph, Materialized, places_of, store_options, store_spec, takes_arguments
from weir.pipelines.dsl.joins import JoinFunction, joiner_of
from weir.pipelines.dsl.mapping import selected_key
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.foreign_key import ASKS, HASH, KEEPS, SENDER
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.table_table_join import JoinKind
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.topology.foreign_key import (
    ResponseJoinNode,
    ResponseRepartitionNode,
    SubscriptionJoinNode,
    SubscriptionRepartitionNode,
    SubscriptionSendNode,
)
from weir.pipelines.topology.joins import be_looked_up
from weir.pipelines.topology.lineage import STANDING_RESULTS, SUBSCRIPTIONS, operator_of, standing_results_of
from weir.pipelines.topology.nodes import Node, RecordType, RepartitionNames
from weir.state.types import StoreSpec

ForeignKey = str | pl.Expr | Callable[..., Any] | Mapping[str, str | pl.Expr]


def add_foreign_key_join(
    graph: Graph,
    left: Node,
    right: Node,
    function: JoinFunction | None,
    kind: JoinKind,
    foreign_key: ForeignKey,
    store: str | Materialized | None,
) -> Node:
    """Raises ``TopologyError`` when the foreign key is not the right table's key, or a table cannot be looked up."""
    options = None if store is None else store_options("subscriptions and standing results", store)

    def named(suffix: str, prefix: str) -> str:
        return graph.new_name(prefix) if options is None else f"{options.name}-{suffix}"

    def with_options(spec: StoreSpec) -> StoreSpec:
        return spec if options is None else options.applied(spec)

    def names(topic: str, what: str) -> RepartitionNames:
        sink, source = (named(f"{what}-{end}", f"KTABLE-{end.upper()}-") for end in ("sink", "source"))
        return RepartitionNames(topic=topic, sink=sink, source=source)

    subscriptions = named("subscription-registration", "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-") + "-topic"
    send_name = named("subscription-registration-processor", "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-")
    asking = names(subscriptions, "subscription-registration")
    store_name = named("subscription-store", f"{SUBSCRIPTIONS}-")
    receive_name, subscription_name, join_name = (
        named(suffix, "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-")
        for suffix in ("subscription-receive", "subscription-join-foreign", "foreign-join-subscription")
    )
    responses = named("subscription-response", "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-") + "-topic"
    answering = names(responses, "subscription-response")
    resolver_name = named("subscription-response-resolver", "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-")
    name = named("result", f"{STANDING_RESULTS}-")
    standing_name = f"{name}-store"
    if options is not None and operator_of(options.name) == SUBSCRIPTIONS:  # the name under which it was committed
        store_name, standing_name = options.name, standing_results_of(options.name)

    be_looked_up(left, right, lasting=True)
    selector, selected = _selected(name, left, right, foreign_key)
    joiner, record = joiner_of(graph, name, left, right, function, has_own_key=True)
    key = _names_beside(left.record.key_columns, right.record.key_columns)
    primary = {known: left.record.key_columns[column] for column, known in key.items()}
    asked = RecordType(
        key=right.record.key,
        value=RowType(pl.Schema({**primary, HASH: pl.Int64(), KEEPS: pl.Boolean(), ASKS: pl.Boolean()})),
    )
    kept = store_spec(
        join_name,
        store_name,
        RecordType(key=RowType(pl.Schema({**right.record.key_columns, **primary})), value=RowType(pl.Schema())),
        pl.Schema({HASH: pl.Int64(), SENDER: pl.Int32()}),
    )
    told = {joiner.right_names[column]: dtype for column, dtype in right.record.value.columns.items()}
    answered = RecordType(
        key=left.record.key,
        is_windowed=left.record.is_windowed,
        value=RowType(pl.Schema({**told, HASH: pl.Int64(), SENDER: pl.Int32()})),
    )

    send = graph.add(
        SubscriptionSendNode(
            name=send_name, parent=left, record=asked, selector=selector, selected=selected, key=key, kind=kind
        )
    )
    sent = graph.add(SubscriptionRepartitionNode(name=subscriptions, parent=send, record=asked, names=asking))
    join = graph.add(
        SubscriptionJoinNode(
            name=join_name,
            parent=sent,
            others=(right,),
            record=answered,
            store=with_options(kept),
            send=send,
            key=key,
            joiner=joiner,
            receive_name=receive_name,
            subscription_name=subscription_name,
            is_named=options is not None,
        )
    )
    back = graph.add(ResponseRepartitionNode(name=responses, parent=join, record=answered, names=answering))
    standing = None if kind == "left" else with_options(store_spec(name, standing_name, record, pl.Schema()))
    return graph.add(
        ResponseJoinNode(
            name=name,
            parent=back,
            others=(left,),
            record=record,
            send=send,
            joiner=joiner,
            standing=standing,
            resolver_name=resolver_name,
            is_named=options is not None,
        )
    )


def _selected(
    name: str, left: Node, right: Node, foreign_key: ForeignKey
) -> tuple[Mapping[str, pl.Expr] | UserFunction, RecordType]:
    """What makes the foreign key of a left row, and its type."""
    columns = dict(foreign_key) if isinstance(foreign_key, Mapping) else {}
    if callable(foreign_key) and takes_arguments(foreign_key, 1):
        foreign_key = _of_key_and_value(foreign_key)
    selector, key, _ = selected_key(name, left, [] if columns else [foreign_key], columns)
    wanted = right.record.key_columns
    if list(key.columns.values()) != list(wanted.values()):
        found, expected = (
            ", ".join(f"{column}: {dtype}" for column, dtype in schema.items()) for schema in (key.columns, wanted)
        )
        raise TopologyError(
            f"{name}: the foreign key is ({found}), but the other table's key is ({expected}); pass columns of those "
            'types in that order, several of them as foreign_key={"name": "column", ...}',
            places=places_of(left, right),
        )
    return selector, RecordType(key=key, value=left.record.value)


def _of_key_and_value(of_value: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(of_value)
    def foreign_key(key: Any, value: Any) -> Any:
        return of_value(value)

    return foreign_key


def _names_beside(columns: pl.Schema, taken: pl.Schema) -> dict[str, str]:
    """A name for each of ``columns`` that is not in ``taken``: its own, or its own with the suffix ``_left``."""
    names: dict[str, str] = {}
    for column in columns:
        name = column
        while name in (*taken, *names.values()) or (name != column and name in columns):
            name = f"{name}_left"
        names[column] = name
    return names
