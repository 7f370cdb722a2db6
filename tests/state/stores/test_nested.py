"""Columns from Python objects give the objects back, at any depth."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.state.stores.nested import column_of

LEAVES: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [
    (pl.Int64(), st.integers(-5, 5)),
    (pl.String(), st.text(max_size=3)),
    (pl.Binary(), st.binary(max_size=3)),
    (pl.Boolean(), st.booleans()),
]


def lists_of(inner: tuple[pl.DataType, st.SearchStrategy[Any]]) -> tuple[pl.DataType, st.SearchStrategy[Any]]:
    return pl.List(inner[0]), st.lists(inner[1] | st.none(), max_size=3)


def structs_of(
    fields: list[tuple[pl.DataType, st.SearchStrategy[Any]]],
) -> tuple[pl.DataType, st.SearchStrategy[Any]]:
    named = {f"f{place}": field for place, field in enumerate(fields)}
    return (
        pl.Struct({name: dtype for name, (dtype, _) in named.items()}),
        st.fixed_dictionaries({name: values | st.none() for name, (_, values) in named.items()}),
    )


TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: inner.map(lists_of) | st.lists(inner, min_size=1, max_size=3).map(structs_of),
    max_leaves=5,
)


@given(st.data())
def test_a_column_gives_its_objects_back(data: st.DataObject) -> None:
    dtype, values = data.draw(TYPES)
    objects = data.draw(st.lists(values | st.none(), max_size=6))

    column = column_of("x", objects, dtype)

    assert (column.name, column.dtype, column.to_list()) == ("x", dtype, objects)


def test_a_field_that_a_dictionary_lacks_is_null() -> None:
    dtype = pl.Struct({"a": pl.Int64(), "b": pl.String()})

    assert column_of("x", [{"a": 1}, {}], dtype).to_list() == [{"a": 1, "b": None}, {"a": None, "b": None}]


@pytest.mark.parametrize("value", [3, [3], [["a"]], [{"a": "b"}]])
def test_a_value_of_another_type_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError, pl.exceptions.PolarsError)):
        column_of("x", [["a"], value], pl.List(pl.String()))
