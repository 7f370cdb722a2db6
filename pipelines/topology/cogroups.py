"""The node of cogrouped streams, before the aggregation that folds them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.topology.nodes import AggregateNode, ChildNode


@dataclass(eq=False, kw_only=True)
class CogroupNode(ChildNode):
    """The records of several grouped streams side by side.

    In Kafka Streams each input has an aggregation of its own over the shared store, and their updates are merged; here
    a single aggregation follows this node, under the name of that merge.
    """

    columns: tuple[tuple[pl.Expr, ...], ...]
    """The columns to forward, for each input."""
    aggregate_names: tuple[str, ...]

    @property
    def is_join(self) -> bool:
        return True

    @property
    def aggregation(self) -> AggregateNode:
        """The only node that follows this one."""
        (child,) = self.children
        assert isinstance(child, AggregateNode)
        return child
