"""The nodes of a join of tables by foreign key, and the two edges between the tables' tasks (KIP-213).

The left table's sub-topology sends subscriptions to the right table's, which sends answers back: the only edges that
form a circle by design. What the nodes do is in ``weir.pipelines.operators.foreign_key``.
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
from weir.pipelines.topology.nodes import ChildNode, Node, RecordType, renamed
from weir.pipelines.topology.table_groups import UpdatesRepartitionNode, UpdatesSelectNode
from weir.state.types import StoreSpec


@dataclass(eq=False, kw_only=True)
class SubscriptionSendNode(UpdatesSelectNode):
    """Turns the left table's updates into subscriptions; its record has the right table's key."""

    selected: RecordType
    """The foreign key as the selector names it."""
    key: Mapping[str, str]
    """The name that each key column of the left table has in subscriptions."""
    kind: JoinKind

    @property
    def foreign_columns(self) -> list[str]:
        """The columns that the foreign key is made of; none if a function makes it, which is opaque."""
        return (
            []
            if isinstance(self.selector, UserFunction)
            else [column for expression in self.selector.values() for column in expression.meta.root_names()]
        )


@dataclass(eq=False, kw_only=True)
class MessageRepartitionNode(UpdatesRepartitionNode):
    """An edge to tasks that exist for a table: it does not decide how many there are."""

    is_explicit: bool = True

    @property
    def is_message(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class SubscriptionRepartitionNode(MessageRepartitionNode):
    """Takes subscriptions to the tasks that own their foreign keys; one with a null key goes to any task."""


@dataclass(eq=False, kw_only=True)
class ResponseRepartitionNode(MessageRepartitionNode):
    """Takes answers back to the tasks that asked."""

    def partition_of(
        self, rows: pl.DataFrame, count: int, bytes_of: Callable[[pl.DataFrame], Sequence[bytes]]
    ) -> pl.Series:
        return rows.get_column(SENDER) % count


@dataclass(eq=False, kw_only=True)
class SubscriptionJoinNode(ChildNode):
    """Keeps subscriptions and answers them; its parents are the subscriptions' edge and the right table.

    In Kafka Streams these are three processors.
    """

    store: StoreSpec
    send: SubscriptionSendNode
    """Where the subscriptions come from."""
    key: Mapping[str, str]
    joiner: Joiner
    receive_name: str
    subscription_name: str
    """The processor that answers new subscriptions; ``name`` is the one that reports the table's updates."""
    is_named: bool = False
    """Whether the program gave the join a name."""

    @property
    def is_join(self) -> bool:
        return True

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.store,)

    @property
    def made_up_names(self) -> tuple[str, ...]:
        return () if self.is_named else (self.store.name,)

    def take_names(self, names: Mapping[str, str]) -> None:
        if not self.is_named:
            self.store = renamed(self.store, names)

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        selector = self.send.selector
        text = selector.name if isinstance(selector, UserFunction) else ", ".join(map(str, selector.values()))
        return {self.store.name: {"foreign key": text}}

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for base in bases(self.others[0]))


@dataclass(eq=False, kw_only=True)
class ResponseJoinNode(ChildNode):
    """The joined table; its parents are the answers' edge and the left table, with which it compares the answers.

    In Kafka Streams these are two processors.
    """

    send: SubscriptionSendNode
    """Where the answered subscriptions came from."""
    joiner: Joiner
    standing: StoreSpec | None
    resolver_name: str
    is_named: bool = False
    """Whether the program gave the join a name."""

    @property
    def looked_up(self) -> tuple[Node, ...]:
        return self.others

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.standing,) if self.standing else ()

    @property
    def made_up_names(self) -> tuple[str, ...]:
        return () if self.is_named or self.standing is None else (self.standing.name,)

    def take_names(self, names: Mapping[str, str]) -> None:
        if not self.is_named and self.standing is not None:
            self.standing = renamed(self.standing, names)

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for base in bases(self.others[0]))
