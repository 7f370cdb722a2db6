"""Mappers that only streams have: to a new key, to a new key and value, or to any number of records."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from weir.pipelines.dsl.graph import (
    Graph,
    named_expressions,
    return_annotation,
    returned_type,
    unchanged_columns,
    user_function,
)
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.mapping import PairExpressions
from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.pipelines.serdes.shapes import without_none
from weir.pipelines.topology.nodes import FlatMapValuesNode, MapNode, Node, SelectKeyNode

_SEVERAL = (list, Iterable, Iterator, Sequence)


def add_select_key(graph: Graph, parent: Node, selector: Sequence[Any], columns: Mapping[str, Any]) -> Node:
    name = graph.new_name("KSTREAM-KEY-SELECT-")
    expressions, key, shared = selected_key(name, parent, selector, columns)
    return graph.add(
        SelectKeyNode(
            name=name,
            parent=parent,
            selector=expressions,
            record=graph.record(name, key, parent.record.value, shared=shared),
        )
    )


def selected_key(
    name: str, parent: Node, selector: Sequence[Any], columns: Mapping[str, Any]
) -> tuple[dict[str, pl.Expr] | UserFunction, RowType, list[str]]:
    """What makes the key that node ``name`` asks for, its type, and its columns that the value has too."""
    if len(selector) == 1 and not columns and not isinstance(selector[0], (str, pl.Expr)):
        function = user_function(selector[0], name, "key", "value")
        return function, returned_type(function, "key"), []
    expressions, key = _key_expressions(name, parent, selector, columns)
    return expressions, key, unchanged_columns(expressions)


def add_map(graph: Graph, parent: Node, mapper: Any, key: Any, value: Any) -> Node:
    name = graph.new_name("KSTREAM-MAP-")
    if (mapper is None) == (key is None and value is None) or (key is None) != (value is None):
        raise TopologyError(
            f"{name}: map takes either one function, or key= and value= with columns; pass one of the two"
        )
    if mapper is not None:
        return _add_pairs(graph, parent, name, mapper, is_flat=False)
    for part, given in (("key", key), ("value", value)):
        if not isinstance(given, (str, Mapping)):
            raise TopologyError(
                f"{name}: {part} is {given!r}; pass a column's name or a dictionary of columns, for example "
                f'{part}={{"name": col("column")}}'
            )
    keys, key_type = _key_expressions(name, parent, *_selection(key))
    values, value_type = named_expressions(name, parent.record, *_selection(value))
    shared = set(unchanged_columns(keys)) & set(unchanged_columns(values))
    return graph.add(
        MapNode(
            name=name,
            parent=parent,
            mapper=PairExpressions(keys, values),
            is_flat=False,
            record=graph.record(name, key_type, value_type, shared=tuple(shared)),
        )
    )


def add_flat_map(graph: Graph, parent: Node, mapper: Any) -> Node:
    return _add_pairs(graph, parent, graph.new_name("KSTREAM-FLATMAP-"), mapper, is_flat=True)


def add_flat_map_values(graph: Graph, parent: Node, mapper: Any, columns: Mapping[str, Any]) -> Node:
    name = graph.new_name("KSTREAM-FLATMAPVALUES-")
    if (mapper is None) == (not columns):
        raise TopologyError(f"{name}: flat_map_values takes either one function or columns; pass one of the two")
    record, shared, exploded = parent.record, [], None
    if mapper is not None:
        function = user_function(mapper, name, "value")
        value = row_type_of(
            _element(function, return_annotation(function, "list[YourDataclass]"), "YourDataclass"), "value"
        )
        chosen: UserFunction | dict[str, pl.Expr] = function
    else:
        chosen, several = named_expressions(name, record, (), columns)
        lists = {column: dtype.inner for column, dtype in several.columns.items() if isinstance(dtype, pl.List)}
        if len(lists) != 1:
            raise TopologyError(
                f"{name}: {len(lists)} of the columns are lists; exactly one must be a list, and each of its elements "
                "becomes a record"
            )
        (exploded,) = lists
        declared = dict(several.declared)
        listed = declared.pop(exploded, None)
        if listed is not None and typing.get_origin(listed) in (list, tuple):
            declared[exploded] = without_none(typing.get_args(listed)[0])[0]
        value = RowType(pl.Schema({**several.columns, **lists}), declared=declared)
        shared = [column for column in unchanged_columns(chosen) if column != exploded]
    return graph.add(
        FlatMapValuesNode(
            name=name,
            parent=parent,
            mapper=chosen,
            exploded=exploded,
            record=graph.record(name, record.key, value, is_windowed=record.is_windowed, shared=shared),
        )
    )


def _add_pairs(graph: Graph, parent: Node, name: str, mapper: Any, *, is_flat: bool) -> Node:
    function = user_function(mapper, name, "key", "value")
    pair = "tuple[YourKey, YourValue]"
    annotation, _ = without_none(return_annotation(function, f"list[{pair}]" if is_flat else pair))
    if is_flat:
        annotation = _element(function, annotation, pair)
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is not tuple or len(parts) != 2 or parts[1] is Ellipsis:
        raise TopologyError(
            f"{name}: function {function.name} says it gives {annotation!r}; it must be a pair of key and value, {pair}"
        )
    record = graph.record(name, row_type_of(parts[0], "key"), row_type_of(parts[1], "value"))
    return graph.add(MapNode(name=name, parent=parent, record=record, mapper=function, is_flat=is_flat))


def _element(function: UserFunction, annotation: Any, element: str) -> Any:
    annotation, _ = without_none(annotation)
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) not in _SEVERAL or len(parts) != 1:
        raise TopologyError(
            f"{function.node}: function {function.name} says it returns {annotation!r}; it must return "
            f"any number of results, list[{element}] or Iterable[{element}]"
        )
    return parts[0]


def _selection(given: str | Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return ((given,), {}) if isinstance(given, str) else ((), given)


def _key_expressions(
    name: str, parent: Node, selector: Sequence[Any], columns: Mapping[str, Any]
) -> tuple[dict[str, pl.Expr], RowType]:
    """A single unchanged column makes a scalar key."""
    expressions, key = named_expressions(name, parent.record, selector, columns)
    if len(key.columns) == 1 and unchanged_columns(expressions):
        key = RowType(key.columns, is_scalar=True, declared=key.declared)
    return expressions, key
