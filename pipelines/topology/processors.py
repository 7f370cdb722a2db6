"""Nodes of processors, which a program writes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.stores import StoreDeclaration
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.topology.nodes import ChildNode
from weir.state.types import StoreSpec


@dataclass(eq=False, kw_only=True)
class ProcessorNode(ChildNode):
    """A processor over the records of its parent."""

    supplier: Callable[[], Any]
    """Makes an instance for a task."""
    declared: tuple[StoreDeclaration, ...]
    """The stores that it keeps."""
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

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (*(each.spec() for each in self.declared), *self.timers.values())

    @property
    def store_names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.declared)
