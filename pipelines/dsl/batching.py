"""Adds what gathers the records of each key into batches."""

from __future__ import annotations

import types
from datetime import timedelta
from functools import partial

import polars as pl

from weir.pipelines.arguments import positive_ms, whole_number
from weir.pipelines.dsl.graph import Graph, Materialized, check_store, store_options, store_spec
from weir.pipelines.dsl.grouped import repartition
from weir.pipelines.errors import TopologyError
from weir.pipelines.processors.batching import OPEN, RESULT, Batching, BatchLimits, BatchShape, chunk_columns
from weir.pipelines.processors.column_store import ColumnStore
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import row_of
from weir.pipelines.topology.nodes import Node
from weir.pipelines.topology.processors import ProcessorNode
from weir.state.stores.specs import list_spec
from weir.state.stores.timers import timer_spec


def add_batch(
    graph: Graph,
    parent: Node,
    *,
    max_records: int | None,
    max_bytes: int | None,
    max_wait: timedelta | None,
    on_stop: str,
    name: str | Materialized | None,
    needs_repartition: bool,
) -> ProcessorNode:
    """Batches of what ``parent`` forwards, by key.

    Raises:
        TopologyError: There is no name, or it is taken; there is no limit, or one is out of range; ``on_stop`` is
            something else; or the open batches are to be in a store of the program's own.
    """
    node = graph.check_new("batch", check_store(name))
    options = store_options("open batches", name)
    limits = _limits(node, max_records, max_bytes, max_wait, on_stop)
    if needs_repartition:
        parent = repartition(graph, parent, node)
    taken = parent.record
    record = graph.record(node, taken.key, _batches(taken.value), is_windowed=taken.is_windowed)
    held = options.applied(store_spec(node, node, taken, OPEN))
    chunks = options.applied(list_spec(f"{node}-records", taken.key_columns, chunk_columns(taken.value.columns)))
    timers = options.applied(timer_spec(f"{node}-wall-clock-timers", taken.key_columns))
    shape = BatchShape(
        key=tuple(taken.key_columns),
        value=taken.value.columns,
        is_scalar=taken.value.is_scalar,
        open=held.name,
        chunks=chunks.name,
    )
    return graph.add(
        ProcessorNode(
            name=node,
            parent=parent,
            supplier=partial(Batching, shape, limits),
            declared=(ColumnStore(held), ColumnStore(chunks)),
            timers={Punctuation.WALL_CLOCK_TIME: timers},
            key_taken=taken.key,
            value_taken=taken.value,
            is_fixed_key=True,
            is_batch=True,
            timer_resolution_ms=1,
            forwards=True,
            drops_nulls=True,
            record=record,
        )
    )


def _limits(
    node: str, max_records: int | None, max_bytes: int | None, max_wait: timedelta | None, on_stop: str
) -> BatchLimits:
    if max_records is None and max_bytes is None and max_wait is None:
        raise TopologyError(
            f"batch(name={node!r}) has no limit, so no batch would ever leave; pass max_records=, max_bytes= or "
            "max_wait=, for example batch(max_records=500, max_wait=timedelta(seconds=30), "
            f"name={node!r})"
        )
    if on_stop not in ("keep", "flush"):
        raise TopologyError(
            f'batch(name={node!r}): on_stop is {on_stop!r}; pass "keep", so that open batches wait in the store for '
            'the next run, or "flush", so that they leave with the last commit'
        )
    return BatchLimits(
        max_records=None if max_records is None else whole_number(max_records, f"batch {node!r}: max_records", 1),
        max_bytes=None if max_bytes is None else whole_number(max_bytes, f"batch {node!r}: max_bytes", 1),
        max_wait_ms=None if max_wait is None else positive_ms(max_wait, f"batch {node!r}: max_wait"),
        flushes=on_stop == "flush",
    )


def _batches(value: RowType) -> RowType:
    """The type of a batch of values."""
    if value.is_scalar:
        ((name, dtype),) = value.columns.items()
        item = value.annotations[name]
    else:
        dtype = pl.Struct(dict(value.columns))
        item = value.python_type or row_of(value.columns, value.declared)
    return RowType(
        pl.Schema({"records": pl.List(dtype), **RESULT}), declared={"records": types.GenericAlias(list, (item,))}
    )
