"""Typed reads and writes of one store."""

from __future__ import annotations

import polars as pl
import pytest

from weir.state.engine.task_store import TaskStore
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec

SPEC = StoreSpec(
    name="s",
    key=pl.Schema({"user": pl.String(), "n": pl.Int64()}),
    value=pl.Schema({"count": pl.Int64(), "page": pl.String()}),
)


@pytest.fixture
def typed(tmp_path):
    store = TaskStore.create(tmp_path / "i", "0_0", ["s"])
    with store.session() as session:
        yield TypedStore(SPEC, session)
    store.close()


def write(typed: TypedStore, *rows: tuple) -> None:
    frame = pl.DataFrame(list(rows), schema=["user", "n", "count", "page", "_ts"], orient="row")
    typed.write(typed.encode(frame), frame)


def test_rows_are_aligned_with_the_keys_asked_for(typed):
    write(typed, ("a", 1, 10, "x", 5), ("b", 2, 20, None, 6))
    keys = typed.encode(pl.DataFrame({"user": ["b", "c", "a", "b"], "n": [2, 2, 1, 2]}))
    assert typed.fetch(keys).rows() == [
        (20, None, 6, True),
        (None, None, None, False),
        (10, "x", 5, True),
        (20, None, 6, True),
    ]
    assert typed.fetch([]).columns == ["count", "page", "_ts", "_found"]


def test_a_scan_returns_a_range_in_key_order(typed):
    write(typed, ("b", 2, 20, "y", 6), ("a", 7, 11, "x", 5), ("a", -1, 10, "x", 5))
    keys, rows = typed.scan()
    assert typed.decode(keys).rows() == [("a", -1), ("a", 7), ("b", 2)]
    assert rows["count"].to_list() == [10, 11, 20]
    assert typed.scan(lower=keys[1], upper=keys[2])[1]["count"].to_list() == [11]


def test_one_row_is_found_by_its_key_columns(typed):
    write(typed, ("a", 1, 10, "x", 5))
    assert typed.get(user="a", n=1) == {"count": 10, "page": "x", "_ts": 5}
    typed.delete(typed.encode(pl.DataFrame({"user": ["a"], "n": [1]})))
    assert typed.get(user="a", n=1) is None
    assert typed.count() == 0
