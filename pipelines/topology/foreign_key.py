"""The nodes of a join of tables by foreign key, and the two edges between the tables' tasks (KIP-213).

The left table's sub-topology sends subscriptions to the right one's, which sends answers back: the only edges that lead
in a circle by design. What the nodes do is ``weir.pipelines.operators.foreign_key``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.foreign_key import SENDER
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.joiner import Joiner
from weir.pipelines.operators.table_table_join import JoinKind
from weir.pipelines.topology.joins import bases
from weir.pipelines.topology.nodes import ChildNode, Node, RecordType
from weir.pipelines.topology.table_groups import OrderedRepartitionNode, UpdatesSelectNode
from weir.state.types import StoreSpec


@dataclass(eq=False, kw_only=True)
class SubscriptionSendNode(UpdatesSelectNode):
    """Makes subscriptions of the left table's updates; its record has the right table's key."""

    selected: RecordType
    """The foreign key as the selector names it."""
    key: Mapping[str, str]
    """Of each key column of the left table its name in subscriptions."""
    kind: JoinKind

    @property
    def foreign_columns(self) -> list[str]:
        """The columns that the foreign key is made of; none of a function, into which nobody sees."""
        return (
            []
            if isinstance(self.selector, UserFunction)
            else [column for expression in self.selector.values() for column in expression.meta.root_names()]
        )


@dataclass(eq=False, kw_only=True)
class MessageRepartitionNode(OrderedRepartitionNode):
    """An edge to tasks that are there for a table: it does not decide how many those are."""

    is_explicit: bool = True

    @property
    def is_message(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class SubscriptionRepartitionNode(MessageRepartitionNode):
    """Takes subscriptions to the tasks that own their foreign keys; a null one to any."""


@dataclass(eq=False, kw_only=True)
class ResponseRepartitionNode(MessageRepartitionNode):
    """Takes answers back to the tasks that asked."""

    def partition_of(
        self, rows: pl.DataFrame, count: int, bytes_of: Callable[[pl.DataFrame], Sequence[bytes]]
    ) -> pl.Series:
        return rows.get_column(SENDER) % count


@dataclass(eq=False, kw_only=True)
class SubscriptionJoinNode(ChildNode):
    """Keeps subscriptions and answers them; its parents are their edge and the right table. Three processors in Kafka
    Streams."""

    store: StoreSpec
    send: SubscriptionSendNode
    """Where the subscriptions come from."""
    key: Mapping[str, str]
    joiner: Joiner
    receive_name: str
    subscription_name: str
    """Of the processor that answers who subscribes; ``name`` is that of the one that tells of the table's updates."""

    @property
    def is_join(self) -> bool:
        return True

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.store,)

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        selector = self.send.selector
        text = selector.name if isinstance(selector, UserFunction) else ", ".join(map(str, selector.values()))
        return {self.store.name: {"foreign key": text}}

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for base in bases(self.others[0]))

    def entrances(self, parent: Node) -> tuple[str, ...]:
        return (self.receive_name if parent is self.parent else self.name,)


@dataclass(eq=False, kw_only=True)
class ResponseJoinNode(ChildNode):
    """The joined table; its parents are the edge of the answers and the left table, which it compares them with. Two
    processors in Kafka Streams."""

    send: SubscriptionSendNode
    """Where the questions come from that are answered."""
    joiner: Joiner
    standing: StoreSpec | None
    resolver_name: str

    @property
    def looked_up(self) -> tuple[Node, ...]:
        return self.others

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.standing,) if self.standing else ()

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for base in bases(self.others[0]))

    def entrances(self, parent: Node) -> tuple[str, ...]:
        return (self.resolver_name,)
