"""Aggregates that keep the several greatest or least values, in order: ``TopK`` and ``BottomK``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from weir.pipelines.arguments import whole_number
from weir.pipelines.operators.aggregates import STORED, Accumulator, Aggregate, expression_of, number_or_null
from weir.pipelines.operators.lists import ITEM, ROW, items_of, lists_of


@dataclass(frozen=True, eq=False)
class _Ranked(Aggregate):
    k: int
    by: str | pl.Expr | None = None
    _greatest: ClassVar[bool]

    def inputs(self) -> dict[str, pl.Expr]:
        return super().inputs() | ({} if self.by is None else {"by": expression_of(self.by)})

    def bind(self, name: str, schema: pl.Schema) -> Accumulator:
        k = whole_number(self.k, f"k of {name}", 1)
        value, dtype = self._bound("of", name, schema)
        if self.by is None:
            self._needs(not dtype.is_nested(), name, dtype, "values that have an order")
            return self._keeping(name, number_or_null(value, dtype), dtype, k)
        self._needs(not dtype.is_nested() or dtype == pl.Struct, name, dtype, "single values or structs")
        by, by_dtype = self._bound("by", name, schema)
        self._needs(not by_dtype.is_nested(), name, by_dtype, "values that have an order", "compares")
        both = pl.struct(number_or_null(by, by_dtype).alias("by"), value.alias("of"))
        has_both = pl.all_horizontal(both.struct.field("by", "of").is_not_null())
        return self._keeping(name, pl.when(has_both).then(both), pl.Struct({"by": by_dtype, "of": dtype}), k)

    def _keeping(self, name: str, item: pl.Expr, dtype: pl.DataType, k: int) -> Accumulator:
        """The accumulator of items, which are the values, or structs of what decides and the value."""
        kept = pl.List(dtype)
        is_pair = self.by is not None
        output = pl.List(dtype.to_schema()["of"]) if isinstance(dtype, pl.Struct) else kept

        def best(lists: Sequence[pl.Series]) -> pl.Series:
            items = items_of(lists)
            order = pl.col(ITEM).struct.field("by") if is_pair else pl.col(ITEM)
            ranked = items.sort(pl.col(ROW), order, descending=[False, self._greatest], maintain_order=True)
            return lists_of(ranked, len(lists[0]), k)

        def scan(lists: pl.Series) -> pl.Series:
            held: list[Any] = []
            states = []
            for items in lists.to_list():
                held = sorted(
                    held + (items or []), key=(lambda each: each["by"]) if is_pair else None, reverse=self._greatest
                )[:k]
                states.append(held)
            return pl.Series(states, dtype=kept)

        def merged(pairs: pl.Series) -> pl.Series:
            return best([pairs.struct.field(name + STORED), pairs.struct.field(name)])

        def values(lists: pl.Series) -> pl.Series:
            return lists.list.eval(pl.element().struct.field("of"))

        return Accumulator(
            name=name,
            state=pl.Schema({name: kept}),
            output=output,
            finish=pl.col(name).map_batches(values, return_dtype=output) if is_pair else pl.col(name),
            partial=[item.drop_nulls().alias(name)],
            pack=lambda lists: best([lists]),
            lift=[pl.when(item.is_null()).then(pl.lit([], dtype=kept)).otherwise(pl.concat_list(item)).alias(name)],
            scan=[pl.col(name).map_batches(scan, return_dtype=kept)],
            merge=[pl.struct(name, name + STORED).map_batches(merged, return_dtype=kept).alias(name)],
            is_ordered=is_pair,
        )


@dataclass(frozen=True, eq=False)
class TopK(_Ranked):
    """The ``k`` greatest values as a list, the greatest first, or the values of the records with the greatest ``by``.

    Of records with equal ``by``, those that arrived first come first. Records with a null in either are ignored, and
    so is NaN; nothing gives an empty list.

    >>> @dataclass(frozen=True)
    ... class Order:
    ...     item: str
    ...     cents: int
    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=String("user"), value=Json(Order))
    >>> ends = dict(dearest=TopK("item", 2, by="cents"), least=BottomK("cents", 2))
    >>> orders.group_by_key().agg("ends", **ends).to_delta("ends")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     topic = driver.create_input_topic("orders")
    ...     for item, cents in (("cup", 120), ("tea", 80), ("pot", 900)):
    ...         topic.pipe_input("ann", Order(item, cents), timestamp_ms=1)
    ...     driver.create_output_table("ends").read_rows()[-1]
    {'user': 'ann', 'dearest': ['pot', 'cup'], 'least': [80, 120]}
    """

    _greatest = True


@dataclass(frozen=True, eq=False)
class BottomK(_Ranked):
    """The ``k`` least values as a list, the least first; else as ``TopK``, which has an example."""

    _greatest = False
