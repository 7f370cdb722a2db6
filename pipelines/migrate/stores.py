"""What Kafka Streams keeps for each store of a topology: the format of its changelog, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from weir.pipelines.migrate.errors import MigrationError, NotMovedError
from weir.pipelines.migrate.formats import (
    ChangelogFormat,
    KeyValueFormat,
    SessionFormat,
    VersionedFormat,
    WindowFormat,
)
from weir.pipelines.migrate.join_formats import LEFT, JoinSideFormat, SubscriptionFormat, WaitingFormat
from weir.pipelines.migrate.serdes import EXACT, Part, StoreSerdes, sources_of, suggested_part
from weir.pipelines.migrate.suppression_format import SuppressionFormat, held_columns
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.stream_join import StreamSide
from weir.pipelines.operators.windows import TimeWindows
from weir.pipelines.topology import Node, SubTopology
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode
from weir.pipelines.topology.joins import JoinBufferNode, StreamJoinNode
from weir.pipelines.topology.nodes import AggregateNode, KeptTableNode, SuppressNode, TableNode, Windows
from weir.pipelines.topology.processors import ProcessorNode
from weir.state.stores.specs import GONE, HELD_HEADERS, SHOWN, WRITTEN
from weir.state.types import StoreKind, StoreSpec

DERIVED = (SubscriptionJoinNode, ResponseJoinNode)
"""Nodes whose stores Weir makes from those of the joined tables."""


def keepers(sub_topology: SubTopology) -> Mapping[str, tuple[Node, StoreSpec]]:
    """By store, the node that keeps it, and its spec."""
    return {store.name: (node, store) for node in sub_topology.nodes for store in node.stores}


def format_of(node: Node, store: StoreSpec, given: StoreSerdes | None) -> ChangelogFormat:
    """The format of the changelog of ``store``, which ``node`` keeps in Kafka Streams too; ``given`` are the serdes
    that the program does not suggest.

    Raises:
        NotMovedError: Kafka Streams keeps nothing that the store can be filled from.
        MigrationError: The serdes are unknown, or have other columns.
    """
    if not store.is_logged:
        raise NotMovedError(store.name, "it has no changelog (logging=False)")
    match node:
        case TableNode() | AggregateNode():
            return _keyed_format(node, store, given)
        case SuppressNode(restarts=True):
            raise NotMovedError(store.name, "Kafka Streams has no suppression whose updates restart the wait")
        case SuppressNode() if SHOWN in store.value:
            raise NotMovedError(store.name, "it is joined or grouped, for which Weir keeps what it has forwarded")
        case SuppressNode():
            return suppression_format(node, given)
        case StreamJoinNode() if store is node.held:
            return WaitingFormat(
                store=store,
                key=_key(store, node.parents[0], node.left.key, given),
                left=_side_value(node, 0, store, given),
                right=_side_value(node, 1, store, given),
            )
        case StreamJoinNode():
            index = 0 if store is node.left.store else 1
            return JoinSideFormat(
                store=store,
                key=_key(store, node.parents[0], node.left.key, given),
                value=_side_value(node, index, store, given),
                retention_ms=node.windows.retention_ms,
            )
        case JoinBufferNode():
            raise NotMovedError(
                store.name, "Kafka Streams numbers the records that wait for their table in a way of its own"
            )
        case ProcessorNode():
            raise NotMovedError(store.name, "what a processor keeps, and in which serdes, is up to its own code")
    raise NotMovedError(store.name, "Kafka Streams has no such store")


def suppression_format(node: SuppressNode, given: StoreSerdes | None) -> SuppressionFormat:
    """The format of a suppression's buffer, also of one that Weir evaluates with its aggregation."""
    store, windows = node.store, _windows_of(node)
    names = _before_bounds(store) if node.record.is_windowed else list(store.key)
    is_session = isinstance(windows, SessionWindows)
    if node.record.is_windowed and not is_session and not isinstance(windows, TimeWindows):
        raise NotMovedError(store.name, "only the keys of time and session windows can be read from their changelogs")
    value = held_columns(store)
    source = next(sources_of(node), None)
    return SuppressionFormat(
        store=store,
        key=_key(store, node, names, given),
        value=suggested_part(store.name, "value", node, value, given, value),
        topic="" if source is None else source.topic,
        window_size_ms=windows.size_ms if isinstance(windows, TimeWindows) and node.record.is_windowed else None,
        is_session=is_session and node.record.is_windowed,
    )


def subscription_format(node: SubscriptionJoinNode, given: Mapping[str, StoreSerdes]) -> SubscriptionFormat:
    """The format of the subscriptions of a join by foreign key, to be written.

    Raises:
        NotMovedError: The left rows' bytes, which Kafka Streams hashes, cannot be known.
    """
    left, right = node.send.parent, node.others[0]
    why = "Kafka Streams compares hashes of the left table's values, and "
    if not isinstance(left, TableNode) or isinstance(left, KeptTableNode) or left.store.kind is StoreKind.VERSIONED:
        raise NotMovedError(node.store.name, why + "those of a filtered, mapped or versioned table cannot be computed")
    value = suggested_part(
        left.store.name, "value", left, left.store.value, given.get(left.store.name), left.store.value
    )
    if not isinstance(value.serde, EXACT):
        raise NotMovedError(
            node.store.name,
            f"{why}{value.serde!r} may order or write its fields in another way; read the left table's topic again",
        )
    primary = pl.Schema({known: left.record.key.columns[name] for name, known in node.key.items()})
    given_key = given.get(left.store.name)
    return SubscriptionFormat(
        store=node.store,
        key=_key(node.store, right, list(right.record.key.columns), None),
        primary_key=suggested_part(node.store.name, "key", left, primary, given_key, left.record.key.columns),
        left_value=replace(value, columns=pl.Schema({LEFT + name: dtype for name, dtype in value.columns.items()})),
    )


def _keyed_format(node: TableNode | AggregateNode, store: StoreSpec, given: StoreSerdes | None) -> ChangelogFormat:
    windows = node.windows if isinstance(node, AggregateNode) else None
    if store is not node.store or not (windows is None or isinstance(windows, (TimeWindows, SessionWindows))):
        raise NotMovedError(store.name, "Weir keeps more for such windows than Kafka Streams does")
    if isinstance(node, KeptTableNode) and node.record.is_windowed:
        raise NotMovedError(store.name, "it keeps a filtered or mapped table of windows, whose keys are not moved")
    if WRITTEN in store.value:
        raise NotMovedError(store.name, "its rows expire by the wall clock, and Kafka Streams' stores do not expire")
    value_columns = pl.Schema({name: dtype for name, dtype in store.value.items() if name not in (GONE, HELD_HEADERS)})
    key = _key(store, node, _before_bounds(store), given)
    value = suggested_part(store.name, "value", node, value_columns, given, value_columns)
    shared: dict[str, Any] = {"store": store, "key": key, "value": value}
    shared["has_timestamps"] = given is not None and given.has_timestamps
    if isinstance(windows, TimeWindows):
        least_ms = windows.size_ms + windows.grace_ms
        return WindowFormat(**shared, size_ms=windows.size_ms, retention_ms=max(store.retention_ms or 0, least_ms))
    if isinstance(windows, SessionWindows):
        own = store.retention_ms is None or store.retention_ms == windows.kept_ms
        return SessionFormat(
            **shared,
            retention_ms=windows.least_retention_ms if own else store.retention_ms,  # type: ignore[arg-type]
        )
    if store.kind is StoreKind.VERSIONED:
        assert store.retention_ms is not None
        return VersionedFormat(**shared, history_ms=store.retention_ms)
    return KeyValueFormat(**shared)


def _side_value(node: StreamJoinNode, index: int, store: StoreSpec, given: StoreSerdes | None) -> Part:
    """The value of a record on one side, in the columns of pairs."""
    side: StreamSide = (node.left, node.right)[index]
    parent = node.parents[index]
    columns = pl.Schema({known: parent.record.value.columns[name] for name, known in side.names.items()})
    if any(known not in side.store.value for known in columns):
        raise MigrationError(
            f"store {store.name!r} keeps none of the value's columns that are key columns too; read everything again "
            "without a migration"
        )
    return suggested_part(store.name, "value", parent, columns, given, parent.record.value.columns)


def _key(store: StoreSpec, node: Node, names: Iterable[str], given: StoreSerdes | None) -> Part:
    """The key columns ``names`` of a store that is filled from ``node``."""
    columns = pl.Schema({name: store.key[name] for name in names})
    return suggested_part(store.name, "key", node, columns, given, columns)


def _before_bounds(store: StoreSpec) -> list[str]:
    """The key columns without the bounds of a window, or the time from which a version is valid."""
    extra = {StoreKind.WINDOW: 2, StoreKind.SESSION: 2, StoreKind.VERSIONED: 1}.get(store.kind, 0)
    if not extra and "window_start" in store.key and "window_end" in store.key:
        extra = 2
    return list(store.key)[: len(store.key) - extra]


def _windows_of(node: Node) -> Windows | None:
    """The windows of the aggregation that a table was made by."""
    while node.parents and not isinstance(node, AggregateNode):
        node = node.parents[0]
    return node.windows if isinstance(node, AggregateNode) else None


def still_open(node: Node, store: StoreSpec, rows: pl.DataFrame, clocks: Mapping[str, int]) -> pl.DataFrame:
    """The rows of windows that can still change; Kafka Streams also keeps closed ones, which it has forwarded."""
    clock = clocks.get(store.name)
    if clock is None or not isinstance(node, AggregateNode):
        return rows
    if isinstance(node.windows, TimeWindows):
        return rows.filter(pl.col("window_start").dt.timestamp("ms") >= node.windows.closed_before(clock))
    if isinstance(node.windows, SessionWindows):
        is_final = any(isinstance(child, SuppressNode) and child.fused_with is node for child in node.children)
        over_ms = clock - node.windows.least_retention_ms  # Kafka Streams forwards final results from then on
        end = pl.col("window_end").dt.timestamp("ms")
        return rows.filter(end > over_ms if is_final else end >= over_ms)
    return rows
