"""Splitting a stream: each record goes into the first branch whose predicate it meets, or into the default branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import polars as pl

from weir.pipelines.dsl.graph import Graph, check_name
from weir.pipelines.dsl.stateless import checked_predicate
from weir.pipelines.errors import TopologyError
from weir.pipelines.topology.nodes import BranchNode, Node, SplitNode

if TYPE_CHECKING:
    from weir.pipelines.dsl.stream import KStream

Chain = Callable[["KStream"], "KStream | None"]


class BranchedKStream:
    """What ``KStream.split`` returns: add branches, then end with ``default_branch`` or ``no_default_branch``.

    Both give the branches by name: the split's name and the branch's; a branch without a name has its number,
    from 1, the default branch 0.
    """

    def __init__(self, graph: Graph, parent: Node, name: str | None, make: Callable[[Node], KStream]) -> None:
        self._graph, self._make = graph, make
        number = graph.new_name("KSTREAM-BRANCH-")  # a name of its own takes one too, as Kafka Streams counts
        self._name = number if name is None else check_name("split", name)
        self._node = graph.add(SplitNode(name=self._name, parent=parent, record=parent.record, predicates=[]))
        self._branches: dict[str, KStream] = {}

    def branch(
        self, predicate: pl.Expr | Callable[[Any, Any], bool], name: str | None = None, *, then: Chain | None = None
    ) -> BranchedKStream:
        """The records for which the predicate is true and that no earlier branch has taken.

        ``then`` is called with the branch at once; the stream that it returns stands under the branch's name, and if
        it returns None the name is left out.
        """
        self._node.predicates.append(checked_predicate(self._name, self._node, predicate))
        self._add(len(self._node.predicates) - 1, str(len(self._node.predicates)), name, then)
        return self

    def default_branch(self, name: str | None = None, *, then: Chain | None = None) -> dict[str, KStream]:
        """The records that no branch has taken; ends the split."""
        self._add(None, "0", name, then)
        return self._branches

    def no_default_branch(self) -> dict[str, KStream]:
        """Records that no branch has taken go no further and are not counted; ends the split."""
        return self._branches

    def _add(self, index: int | None, number: str, name: str | None, then: Chain | None) -> None:
        child = self._name + (number if name is None else check_name("branch", name))
        if any(node.name == child for node in self._graph.nodes):
            raise TopologyError(f"there are two branches {child!r}; give each its own name")
        self._graph.new_name(child)  # Kafka Streams takes a number here and does not show it
        branch = self._make(
            self._graph.add(BranchNode(name=child, parent=self._node, record=self._node.record, index=index))
        )
        result = branch if then is None else then(branch)
        if result is not None:
            self._branches[child] = result
