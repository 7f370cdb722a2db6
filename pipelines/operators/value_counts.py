"""``ValueCounts``: how often each value occurs."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.arguments import whole_number
from weir.pipelines.operators.aggregates import STORED, Accumulator, Aggregate
from weir.pipelines.operators.lists import ITEM, ROW, items_of, lists_of

_KEPT = pl.List(pl.Struct({"key": pl.String(), "value": pl.Int64()}))


@dataclass(frozen=True, eq=False)
class ValueCounts(Aggregate):
    """How often each text occurs, as a dictionary in the order of the texts; nulls are ignored.

    Of more than ``limit`` different texts, only the first in that order are kept, with exact counts: so the result
    depends neither on the order of records nor on how they are divided into epochs.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> clicks.group_by_key().agg("pages", pages=ValueCounts("page", limit=100)).to_delta("pages")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("clicks").pipe_records([("ann", "b", 1), ("ann", "a", 2), ("ann", "b", 3)])
    ...     driver.create_output_table("pages").read_rows()[-1]
    {'user': 'ann', 'pages': [{'key': 'a', 'value': 1}, {'key': 'b', 'value': 2}]}
    """

    limit: int

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(dtype == pl.String(), name, dtype, "text: make it with .cast(pl.String)", "counts")
        limit = whole_number(self.limit, f"the limit of {name}", 1)

        def pack(texts: pl.Series) -> pl.Series:
            ones = items_of([texts]).group_by(ROW, ITEM).len("count")
            return _listed(ones.select(ROW, pl.col(ITEM).alias("key"), pl.col("count").alias("value")), len(texts))

        def merged(pairs: pl.Series) -> pl.Series:
            items = items_of([pairs.struct.field(name + STORED), pairs.struct.field(name)]).unnest(ITEM)
            return _listed(items.group_by(ROW, "key").agg(pl.col("value").sum()), pairs.len())

        def scan(lists: pl.Series) -> pl.Series:
            held: dict[str, int] = {}
            states = []
            for items in lists.to_list():
                for each in items or ():
                    held[each["key"]] = held.get(each["key"], 0) + each["value"]
                held = dict(sorted(held.items())[:limit])
                states.append([{"key": key, "value": count} for key, count in held.items()])
            return pl.Series(states, dtype=_KEPT)

        def _listed(counts: pl.DataFrame, height: int) -> pl.Series:
            items = counts.sort(ROW, "key").select(ROW, pl.struct("key", pl.col("value").cast(pl.Int64)).alias(ITEM))
            return lists_of(items, height, limit)

        one = pl.struct(value.alias("key"), pl.lit(1, pl.Int64).alias("value"))
        return Accumulator(
            name=name,
            state=pl.Schema({name: _KEPT}),
            output=_KEPT,
            finish=pl.col(name),
            partial=[value.drop_nulls().alias(name)],
            pack=pack,
            lift=[pl.when(value.is_null()).then(pl.lit([], dtype=_KEPT)).otherwise(pl.concat_list(one)).alias(name)],
            scan=[pl.col(name).map_batches(scan, return_dtype=_KEPT)],
            merge=[pl.struct(name, name + STORED).map_batches(merged, return_dtype=_KEPT).alias(name)],
            is_ordered=False,
        )
