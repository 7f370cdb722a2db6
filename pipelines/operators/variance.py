"""Variance and standard deviation, from a count, a mean and a sum of squared distances from it.

Groups are merged by the formula of Chan, Golub and LeVeque, which only adds squares: no digits cancel out, however far
the values are from zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from weir.pipelines.arguments import whole_number
from weir.pipelines.operators.aggregates import STORED, Accumulator, Aggregate


@dataclass(frozen=True, eq=False)
class Variance(Aggregate):
    """The variance as a float: squared distances from the mean, summed and divided by the count less ``ddof``.

    With ``ddof=1``, the default, it is that of a sample, with 0 that of the whole. Nulls are ignored; of ``ddof``
    values or fewer it is null. How records are divided into epochs may change the last digits, as of a sum of floats.

    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents"))
    >>> spread = dict(variance=Variance("cents"), deviation=StdDev("cents", ddof=0))
    >>> orders.group_by_key().agg("spread", **spread).to_delta("spread")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("orders").pipe_records([("ann", 80, 1), ("ann", 120, 2)])
    ...     driver.create_output_table("spread").read_rows()[-1]
    {'user': 'ann', 'variance': 800.0, 'deviation': 20.0}
    """

    ddof: int = 1

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(dtype.is_numeric() or dtype == pl.Boolean(), name, dtype, "numbers or booleans")
        ddof = whole_number(self.ddof, f"ddof of {name}", 0)
        value = value.cast(pl.Float64)
        count, mean, squares = (f"{name}__{part}" for part in ("n", "mean", "squares"))
        state = pl.Schema({count: pl.Int64(), mean: pl.Float64(), squares: pl.Float64()})
        counts, means = pl.col(count).fill_null(0), pl.col(mean)
        base = means.filter(counts > 0).first()
        running_count = counts.cum_sum()
        has_any = running_count > 0
        distances = ((means - base) * counts).fill_null(0).cum_sum()
        running_mean = pl.when(has_any).then(base + distances / running_count)
        added = (means - running_mean.shift(1)).pow(2) * running_count.shift(1) / running_count * counts
        stored_count = pl.col(count + STORED).fill_null(0)
        both = counts + stored_count
        distance = means - pl.col(mean + STORED)
        return Accumulator(
            name=name,
            state=state,
            output=pl.Float64(),
            finish=pl.when(pl.col(count) > ddof).then(pl.col(squares) / (pl.col(count) - ddof)).alias(name),
            partial=[
                value.count().cast(pl.Int64).alias(count),
                value.mean().alias(mean),
                (value.var(ddof=0) * value.count()).alias(squares),
            ],
            lift=[
                value.is_not_null().cast(pl.Int64).alias(count),
                value.alias(mean),
                (value - value).alias(squares),
            ],
            scan=[
                running_count.alias(count),
                running_mean.alias(mean),
                pl.when(has_any).then((pl.col(squares).fill_null(0) + added.fill_null(0)).cum_sum()).alias(squares),
            ],
            merge=[
                both.alias(count),
                pl.coalesce(pl.col(mean + STORED) + distance * (counts / both), means, mean + STORED).alias(mean),
                pl.coalesce(
                    pl.col(squares) + pl.col(squares + STORED) + distance.pow(2) * (counts * (stored_count / both)),
                    squares,
                    squares + STORED,
                ).alias(squares),
            ],
            is_ordered=False,
        )


@dataclass(frozen=True, eq=False)
class StdDev(Variance):
    """The standard deviation, the square root of the variance. For an example see ``Variance``."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        squared = super().accumulate(name, value, dtype)
        return replace(squared, finish=squared.finish.sqrt())
