"""The nodes of tables grouped by another key; their rows come in and go by ``weir.pipelines.operators.changes``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.changes import CHANGE
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.topology.joins import bases
from weir.pipelines.topology.nodes import AggregateNode, ChildNode, Node, RepartitionNode
from weir.state.types import StoreSpec


@dataclass(eq=False, kw_only=True)
class UpdatesSelectNode(ChildNode):
    """Makes rows for the tasks of other keys of a table's updates, for which it looks into the table."""

    selector: Mapping[str, pl.Expr] | UserFunction

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for parent in self.parents for base in bases(parent))

    @property
    def store_names(self) -> tuple[str, ...]:
        return ()


@dataclass(eq=False, kw_only=True)
class ChangeSelectNode(UpdatesSelectNode):
    """Makes rows that come and go, under the groups' keys, of a table's updates."""


@dataclass(eq=False, kw_only=True)
class OrderedRepartitionNode(RepartitionNode):
    """An edge whose rows stay in the order in which each task sent them."""

    @property
    def keeps_order(self) -> bool:
        return True

    def entrances(self, parent: Node) -> tuple[str, ...]:
        return (f"{self.name}-sink",)


@dataclass(eq=False, kw_only=True)
class ChangeRepartitionNode(OrderedRepartitionNode):
    """Moves them to the tasks that own the groups."""

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({**super().schema, CHANGE: pl.Int8()})


@dataclass(eq=False, kw_only=True)
class ChangeAggregateNode(AggregateNode):
    """One state a group of rows that come and go."""
