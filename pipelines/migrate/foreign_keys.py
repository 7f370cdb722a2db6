"""The stores of joins by foreign key, made from the rows of the two tables: who subscribes to what, and which results
exist. They are what the join would have kept, had it seen each row once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from weir.pipelines.migrate.errors import NotMovedError
from weir.pipelines.migrate.migration import StoreRows
from weir.pipelines.migrate.outputs import rows_after
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.foreign_key import HASH, KEEPS, SENDER
from weir.pipelines.tasks.operator_factory import operator_of
from weir.pipelines.topology import Node, Topology
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode, SubscriptionSendNode
from weir.pipelines.topology.joins import bases
from weir.state.engine.memory import MemoryStore
from weir.state.types import TaskId

Held = Mapping[tuple[TaskId, str], pl.DataFrame]
"""The rows of stores, by task and store."""


def subscriptions(
    topology: Topology, counts: Mapping[int, int], node: SubscriptionJoinNode, held: Held
) -> Iterator[StoreRows]:
    """The subscriptions of each task of the right table, from the rows of the left one.

    Raises:
        NotMovedError: A table is made from several stores, or its own store was not moved.
    """
    messages = _messages(topology, node.store.name, node.send, held)
    edge = next(edge for edge in topology.edges if edge.node is node.parent)
    owners = edge.partition_of(messages, counts[edge.target])
    rows = messages.rename({"_partition": SENDER}).select(*node.store.key, *node.store.value, "_ts")
    for number in range(counts[edge.target]):
        yield StoreRows(task=TaskId(edge.target, number), store=node.store, rows=rows.filter(owners == number))


def standing_results(
    topology: Topology, counts: Mapping[int, int], node: ResponseJoinNode, held: Held
) -> Iterator[StoreRows]:
    """The keys of the left table that have a result, in each of its tasks; raises as ``subscriptions`` does."""
    assert node.standing is not None
    right = next(
        other for other in _nodes(topology) if isinstance(other, SubscriptionJoinNode) and other.send is node.send
    )
    messages = _messages(topology, node.standing.name, node.send, held)
    foreign = list(right.others[0].record.key_columns)
    there = _table_rows(topology, node.standing.name, right.others[0], held)
    met = messages.join(there.select(*foreign, pl.col("_ts").alias("_other")), on=foreign, how="inner")
    met = met.rename({known: name for name, known in right.key.items() if name != known})
    met = met.with_columns(pl.max_horizontal("_ts", "_other").alias("_ts"))
    index = next(each.index for each in topology.sub_topologies if node in each.nodes)
    for number in range(counts[index]):
        rows = met.filter(pl.col("_partition") == number).select(*node.standing.key, "_ts")
        yield StoreRows(task=TaskId(index, number), store=node.standing, rows=rows)


def _messages(topology: Topology, store: str, send: SubscriptionSendNode, held: Held) -> pl.DataFrame:
    """The subscriptions of all left rows that have a foreign key."""
    rows = _table_rows(topology, store, send.parent, held)
    operator = operator_of(send)
    assert operator is not None
    names = [base.store.name for base in bases(send.parent)]
    with MemoryStore("migration", names).session() as session:
        messages = operator.process(rows, Epoch(session=session, clocks={}, now_ms=0))
    return messages.filter(pl.col(KEEPS) & pl.col(HASH).is_not_null())


def _table_rows(topology: Topology, store: str, table: Node, held: Held) -> pl.DataFrame:
    """The rows of a table in all tasks."""
    found = bases(table)
    if len(found) != 1:
        raise NotMovedError(store, f"{table.name} is itself a join of tables, whose rows no store holds")
    base, parts = found[0], []
    for sub_topology in topology.sub_topologies:
        for (task, name), rows in held.items():
            if task.sub_topology == sub_topology.index and name == base.store.name and base in sub_topology.nodes:
                parts.append(rows_after(sub_topology, base.store, rows, task.partition)[table])
    if not parts:
        raise NotMovedError(store, f"it follows from store {base.store.name!r}, which was not moved")
    return pl.concat(parts).filter(~pl.col("_deleted"))


def _nodes(topology: Topology) -> Iterator[Node]:
    return (node for sub_topology in topology.sub_topologies for node in sub_topology.nodes)
