"""Nodes of processors, which a program writes itself, and the stores that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weir.pipelines.place import Place
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.stores import StoreDeclaration
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.topology.nodes import ChildNode, Node
from weir.state.types import StoreSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class SharedStore:
    """A store that a program declares on its own and connects to processors."""

    declaration: StoreDeclaration
    place: Place | None
    """The call of the program that declared it."""

    @property
    def name(self) -> str:
        return self.declaration.name


@dataclass(eq=False, kw_only=True)
class ProcessorNode(ChildNode):
    """A processor over the records of its parents, which have the same columns."""

    supplier: Callable[[], Any]
    """Makes an instance for a task."""
    declared: tuple[StoreDeclaration, ...]
    """The stores that it alone keeps."""
    timers: Mapping[Punctuation, StoreSpec]
    """The stores of its timers by their clock; none if it has no ``on_timer``."""
    key_taken: RowType
    """The key as the processor takes it; its columns are those of the parent's records."""
    value_taken: RowType
    is_fixed_key: bool
    is_batch: bool
    timer_resolution_ms: int
    forwards: bool
    """Whether it forwards records at all."""
    drops_nulls: bool = False
    """Whether null keys and null values are dropped and counted before it; of a batch processor."""
    shared: tuple[SharedStore, ...] = ()
    """The stores that are connected to it, perhaps with others."""

    @property
    def connected(self) -> tuple[StoreDeclaration, ...]:
        """All stores that it can open."""
        return (*self.declared, *(each.declaration for each in self.shared))

    @property
    def own_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that no other node keeps."""
        return (*(each.spec() for each in self.declared), *self.timers.values())

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (*self.own_stores, *(each.declaration.spec() for each in self.shared))

    @property
    def store_names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.connected)


def sharing(node: Node, nodes: Iterable[Node]) -> list[Node]:
    """``node``, and those of ``nodes`` that share a store with it."""
    shared = set(node.shared) if isinstance(node, ProcessorNode) else set[SharedStore]()
    return [
        node,
        *(
            each
            for each in nodes
            if each is not node and isinstance(each, ProcessorNode) and not shared.isdisjoint(each.shared)
        ),
    ]
