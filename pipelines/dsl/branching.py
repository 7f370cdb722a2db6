"""Splitting a stream: each record goes into the first branch whose predicate it meets, or into the default branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import polars as pl

from weir.pipelines.dsl.graph import Graph, check_name
from weir.pipelines.dsl.stateless import checked_predicate
from weir.pipelines.errors import TopologyError
from weir.pipelines.topology.nodes import BranchNode, Node, SplitNode

StreamT = TypeVar("StreamT")


class Branches(Generic[StreamT]):
    """The branches of a split. They are ``KStream`` objects; ``streams`` defines that class and imports this module."""

    def __init__(self, graph: Graph, parent: Node, name: str | None, make: Callable[[Node], StreamT]) -> None:
        self._graph, self._make = graph, make
        number = graph.new_name("KSTREAM-BRANCH-")  # also counted for a split with a name, as in Kafka Streams
        self._name = number if name is None else check_name("split", name)
        self._node = graph.add(SplitNode(name=self._name, parent=parent, record=parent.record, predicates=[]))
        self._branches: dict[str, StreamT] = {}

    def branch(
        self,
        predicate: pl.Expr | Callable[[Any, Any], bool],
        name: str | None = None,
        *,
        then: Callable[[StreamT], StreamT | None] | None = None,
    ) -> Self:
        """Add a branch: the records for which the predicate is true and that no earlier branch has taken.

        ``then`` is called at once with the branch; the stream that it returns is kept under the branch's name, and if
        it returns None the name is left out.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("order"), value=Int64("cents"))
            >>> split = orders.split("by-size-").branch(col("cents") > 10_000, "large")
            >>> sorted(split.default_branch("small"))
            ['by-size-large', 'by-size-small']
        """
        self._node.predicates.append(checked_predicate(self._name, self._node, predicate))
        self._add(len(self._node.predicates) - 1, str(len(self._node.predicates)), name, then)
        return self

    def default_branch(
        self, name: str | None = None, *, then: Callable[[StreamT], StreamT | None] | None = None
    ) -> dict[str, StreamT]:
        """Add the branch of the records that no other branch has taken; ends the split and returns the branches.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("order"), value=Int64("cents"))
            >>> branches = orders.split("by-size-").branch(col("cents") > 10_000, "large").default_branch("small")
            >>> branches["by-size-small"].to_delta("small_orders")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("orders").pipe_key_value_list([("1", 20_000), ("2", 300)])
            >>> driver.create_output_table("small_orders").read_rows()
            [{'order': '2', 'cents': 300}]
        """
        self._add(None, "0", name, then)
        return self._branches

    def no_default_branch(self) -> dict[str, StreamT]:
        """End the split and return the branches; records that no branch has taken are dropped, uncounted.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("order"), value=Int64("cents"))
            >>> branches = orders.split("by-size-").branch(col("cents") > 10_000, "large").no_default_branch()
            >>> list(branches)
            ['by-size-large']
        """
        return self._branches

    def _add(
        self,
        index: int | None,
        number: str,
        name: str | None,
        then: Callable[[StreamT], StreamT | None] | None,
    ) -> None:
        child = self._name + (number if name is None else check_name("branch", name))
        if any(node.name == child for node in self._graph.nodes):
            raise TopologyError(f"there are two branches {child!r}; give each its own name")
        self._graph.new_name(child)  # Kafka Streams uses up a number here without showing it
        branch = self._make(
            self._graph.add(BranchNode(name=child, parent=self._node, record=self._node.record, index=index))
        )
        result = branch if then is None else then(branch)
        if result is not None:
            self._branches[child] = result
