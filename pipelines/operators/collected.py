"""Aggregates that keep what arrived first, in order: ``Collect`` as a list, ``StringAgg`` joined to one text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from weir.pipelines.arguments import what_it_is, whole_number
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import STORED, Accumulator, Aggregate


@dataclass(frozen=True, eq=False)
class Collect(Aggregate):
    """The first ``limit`` values in order of arrival, as a list; nulls are ignored.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> clicks.group_by_key().agg("paths", path=Collect("page", 2)).to_delta("paths")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("clicks").pipe_records([("ann", "a", 1), ("ann", "b", 2), ("ann", "c", 3)])
    ...     driver.create_output_table("paths").read_rows()[-1]
    {'user': 'ann', 'path': ['a', 'b']}
    """

    limit: int

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(not dtype.is_nested() or dtype == pl.Struct, name, dtype, "single values or structs")
        whole_number(self.limit, f"the limit of {name}", 1)
        kept = pl.List(dtype)
        nothing = pl.lit([], dtype=kept)

        def scan(lists: pl.Series) -> pl.Series:
            held: list[Any] = []
            states = []
            for items in lists.to_list():
                held = (held + (items or []))[: self.limit]
                states.append(held)
            return pl.Series(states, dtype=kept)

        return Accumulator(
            name=name,
            state=pl.Schema({name: kept}),
            output=kept,
            finish=pl.col(name),
            partial=[value.drop_nulls().head(self.limit).alias(name)],
            lift=[pl.when(value.is_null()).then(nothing).otherwise(pl.concat_list(value)).alias(name)],
            scan=[pl.col(name).map_batches(scan, return_dtype=kept)],
            merge=[pl.concat_list(pl.col(name + STORED).fill_null(nothing), name).list.head(self.limit).alias(name)],
            is_ordered=True,
        )


@dataclass(frozen=True, eq=False)
class StringAgg(Aggregate):
    """The texts in order of arrival, joined with ``separator``, as SQL's ``STRING_AGG`` and ``LISTAGG`` do.

    The text is cut at ``max_chars``; what arrives after that is left out. Nulls are ignored, and nothing gives null.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> clicks.group_by_key().agg("paths", path=StringAgg("page", " > ", max_chars=1000)).to_delta("paths")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("clicks").pipe_records([("ann", "a", 1), ("ann", "b", 2), ("ann", "c", 3)])
    ...     driver.create_output_table("paths").read_rows()[-1]
    {'user': 'ann', 'path': 'a > b > c'}
    """

    separator: str
    max_chars: int

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(dtype == pl.String(), name, dtype, "text: make it with .cast(pl.String)", "joins")
        if not isinstance(self.separator, str):
            raise TopologyError(f'the separator of {name} is {what_it_is(self.separator)}; pass a text, such as ", "')
        limit = whole_number(self.max_chars, f"max_chars of {name}", 1)
        separator, kept, stored = pl.lit(self.separator), pl.col(name), pl.col(name + STORED)

        def pack(values: pl.Series) -> pl.Series:
            joined = values.list.join(self.separator).str.head(limit)
            return joined.set(values.list.len() == 0, None)

        length = (kept.str.len_chars().cast(pl.Int64) + len(self.separator)).fill_null(0).cum_sum()
        upto = pl.min_horizontal(length - len(self.separator), pl.lit(limit))
        return Accumulator(
            name=name,
            state=pl.Schema({name: pl.String()}),
            output=pl.String(),
            finish=kept,
            partial=[value.drop_nulls().alias(name)],
            pack=pack,
            lift=[value.str.head(limit).alias(name)],
            scan=[
                pl.when(kept.forward_fill().is_not_null())
                .then(kept.drop_nulls().str.join(self.separator).str.head(upto))
                .alias(name)
            ],
            merge=[pl.coalesce((stored + separator + kept).str.head(limit), stored, kept).alias(name)],
            is_ordered=True,
        )
