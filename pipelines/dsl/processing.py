"""Adds processors: what they take, give and keep, from what their classes say."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.dsl.graph import Graph, check_name
from weir.pipelines.dsl.merging import check_same_columns
from weir.pipelines.dsl.shared_stores import shared_store
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.functions import Windowed
from weir.pipelines.processors.processor import BatchProcessor, FixedKeyProcessor, Processor, Punctuation
from weir.pipelines.processors.stores import StoreDeclaration
from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.pipelines.topology.nodes import Node, RecordType
from weir.pipelines.topology.processors import ProcessorNode, SharedStore
from weir.state.stores.timers import timer_spec

KINDS = (Processor, FixedKeyProcessor, BatchProcessor)


def add_processor(
    graph: Graph,
    parents: Sequence[Node],
    supplier: Callable[[], Any],
    *,
    stores: Sequence[StoreDeclaration | str],
    name: str | None,
    is_fixed_key: bool | None = None,
) -> ProcessorNode:
    """A processor over the records of ``parents``; ``is_fixed_key`` is whether it has to be one that keeps keys.

    Raises:
        TopologyError: The supplier makes no processor of this kind, its types do not fit the records, the parents'
            records differ, or the name is taken.
    """
    if name is None:
        node = graph.new_name("KSTREAM-PROCESSVALUES-" if is_fixed_key else "KSTREAM-PROCESSOR-")
    else:
        node = graph.check_new("processor", name)
    parent, *others = parents
    for other in others:
        check_same_columns(f"the processor {node!r} takes", parent, other)
    made = _made(node, supplier, is_fixed_key)
    is_fixed_key = isinstance(made, FixedKeyProcessor)
    cls, record = type(made), parent.record
    types = _types(node, cls)
    key_in, value_in, key_out, value_out = types if len(types) == 4 else (types[0], types[1], types[0], types[2])
    key_taken = _key_taken(node, key_in, record)
    forwards = value_out is not type(None)
    value = row_type_of(value_out, "value") if forwards else RowType(pl.Schema())
    declared, shared = _stores(graph, node, made, stores)
    return graph.add(
        ProcessorNode(
            name=node,
            parent=parent,
            others=tuple(others),
            supplier=supplier,
            declared=declared,
            shared=shared,
            timers=_timers(node, name, cls, record.key_columns) if _overrides(cls, "on_timer", "on_timers") else {},
            key_taken=key_taken,
            value_taken=_taken(node, "value", value_in, record.value),
            is_fixed_key=is_fixed_key,
            is_batch=isinstance(made, BatchProcessor),
            timer_resolution_ms=_timer_resolution_ms(node, made),
            forwards=forwards,
            record=graph.record(
                node,
                record.key if is_fixed_key or not forwards else _given_key(node, key_out, record.key),
                value,
                is_windowed=record.is_windowed and is_fixed_key,
            ),
        )
    )


def _made(node: str, supplier: Any, is_fixed_key: bool | None) -> Any:
    if not callable(supplier):
        raise TopologyError(f"{node} got {supplier!r}; pass a class of processors, or a function that makes one")
    made = supplier()
    if isinstance(made, type) or not isinstance(made, KINDS):
        raise TopologyError(f"{node}: {supplier!r} makes {made!r}, which is no processor; subclass weir.Processor")
    if supplier() is made:
        raise TopologyError(f"{node}: {supplier!r} gives the same processor twice; make a new one at each call")
    called = "process_batch" if isinstance(made, BatchProcessor) else "process"
    if not _overrides(type(made), called):
        argument = "rows" if isinstance(made, BatchProcessor) else "record"
        raise TopologyError(f"{node}: {type(made).__name__} has no {called}; write def {called}(self, {argument})")
    if is_fixed_key is not None and isinstance(made, FixedKeyProcessor) is not is_fixed_key:
        right = "process_values" if isinstance(made, FixedKeyProcessor) else "process"
        raise TopologyError(f"{node}: {type(made).__name__} is for {right}; call that")
    return made


def _stores(
    graph: Graph, node: str, made: Any, stores: Sequence[StoreDeclaration | str]
) -> tuple[tuple[StoreDeclaration, ...], tuple[SharedStore, ...]]:
    """The stores that a processor keeps alone, checked, and those that it shares."""
    name, found, shared = type(made).__name__, list[StoreDeclaration](), dict[str, SharedStore]()
    for where, given in ((f"{name}.stores", made.stores), ("stores=", stores)):
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise TopologyError(f"{node}: {where} is {given!r}; list the stores, for example ({given!r},)")
        for each in given:
            if isinstance(each, str):
                shared[each] = shared_store(graph, node, each)
                continue
            if not callable(getattr(each, "opened", None)):
                raise TopologyError(
                    f"{node}: {where} has {each!r}, which is no store; declare one, for example "
                    'KeyValueStore("counts", key=str, value=int)'
                )
            check_name("store", each.name)
            each.spec()
            found.append(each)
    names = [*(each.name for each in found), *shared]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise TopologyError(f"{node}: {name} declares the store {twice[0]!r} twice; give each its own name")
    return tuple(found), tuple(shared.values())


def _types(node: str, cls: type) -> tuple[Any, ...]:
    """The types in the brackets of the class that a program's processor is made from."""
    for each in cls.__mro__:
        for base in getattr(each, "__orig_bases__", ()):
            if typing.get_origin(base) in KINDS:
                return typing.get_args(base)
    kind = next(each for each in KINDS if issubclass(cls, each))
    types = "str, Order, Invoice" if kind is FixedKeyProcessor else "str, Order, str, Invoice"
    raise TopologyError(
        f"{node}: {cls.__name__} does not say what it takes and gives; write class {cls.__name__}("
        f"{kind.__name__}[{types}]), with the types of key and value"
    )


def _key_taken(node: str, annotation: Any, record: RecordType) -> RowType:
    if annotation is Windowed and record.is_windowed:
        return record.key
    if record.is_windowed and annotation is not Any and not isinstance(annotation, TypeVar):
        raise TopologyError(
            f"{node} takes a key of {annotation!r}, but the records' keys are windowed; declare Windowed"
        )
    if annotation is Windowed:
        raise TopologyError(
            f"{node} takes windowed keys, but the key of the records is {', '.join(record.key.columns)}; declare its "
            "type"
        )
    return _taken(node, "key", annotation, record.key)


def _taken(node: str, what: str, annotation: Any, given: RowType) -> RowType:
    """How the processor takes a key or value; the columns are the stream's."""
    if annotation is Any or isinstance(annotation, TypeVar):
        return given
    scalar_name = next(iter(given.columns)) if given.is_scalar else what
    taken = row_type_of(annotation, scalar_name)
    if dict(taken.columns) != dict(given.columns):
        columns = ", ".join(f"{name} ({dtype})" for name, dtype in given.columns.items())
        wanted = ", ".join(f"{name} ({dtype})" for name, dtype in taken.columns.items())
        raise TopologyError(f"{node} takes a {what} of {wanted}, but the records have {columns}; declare the same")
    return taken


def _given_key(node: str, annotation: Any, before: RowType) -> RowType:
    """The key that a processor gives; a scalar of the type of the key before keeps its name."""
    if annotation is Windowed:
        raise TopologyError(
            f"{node} gives windowed keys, which only process_values keeps; declare the type of the key within, and the "
            "window's bounds as fields of the value"
        )
    given = row_type_of(annotation, "key")
    if given.is_scalar and before.is_scalar and list(given.columns.values()) == list(before.columns.values()):
        return before
    return given


def _overrides(cls: type, *methods: str) -> bool:
    return any(
        getattr(cls, name, None) is not getattr(kind, name, None)
        for kind in KINDS
        if issubclass(cls, kind)
        for name in methods
    )


def _timer_resolution_ms(node: str, made: Any) -> int:
    if not isinstance(made, BatchProcessor):
        return 1
    return positive_ms(made.timer_resolution, f"{node}: {type(made).__name__}.timer_resolution")


def _timers(node: str, name: str | None, cls: type, key: pl.Schema) -> dict[Punctuation, Any]:
    if name is None:
        raise TopologyError(
            f"{node}: {cls.__name__} has timers, which are kept under the processor's name; pass one, for example "
            f'process({cls.__name__}, name="{cls.__name__.lower()}")'
        )
    return {
        Punctuation.STREAM_TIME: timer_spec(f"{name}-timers", key),
        Punctuation.WALL_CLOCK_TIME: timer_spec(f"{name}-wall-clock-timers", key),
    }
