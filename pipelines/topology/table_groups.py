"""The nodes of tables grouped by another key; ``weir.pipelines.operators.changes`` adds and retracts their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.changes import CHANGE
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.topology.joins import bases
from weir.pipelines.topology.nodes import AggregateNode, ChildNode, RepartitionNode
from weir.state.types import StoreSpec


@dataclass(eq=False, kw_only=True)
class UpdatesSelectNode(ChildNode):
    """Turns a table's updates into rows for the tasks of other keys, for which it looks up the table's rows."""

    selector: Mapping[str, pl.Expr] | UserFunction

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for parent in self.parents for base in bases(parent))

    @property
    def store_names(self) -> tuple[str, ...]:
        return ()


@dataclass(eq=False, kw_only=True)
class ChangeSelectNode(UpdatesSelectNode):
    """Turns a table's updates into rows to add and to retract, under the groups' keys."""


@dataclass(eq=False, kw_only=True)
class UpdatesRepartitionNode(RepartitionNode):
    """Moves what ``UpdatesSelectNode`` makes of a table's updates."""


@dataclass(eq=False, kw_only=True)
class ChangeRepartitionNode(UpdatesRepartitionNode):
    """Moves rows to add and to retract to the tasks that own the groups."""

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({**super().schema, CHANGE: pl.Int8()})


@dataclass(eq=False, kw_only=True)
class ChangeAggregateNode(AggregateNode):
    """One state per group, of rows that are added and retracted."""
