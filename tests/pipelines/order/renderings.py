"""What the Weir programs of the suite compute of keys, values and times: expressions and functions, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
from polars import col

from tests.pipelines.order import description, functions
from weir import ApproxDistinct, ApproxQuantiles, Collect, Count, First, Last, Max, Mean, Min, Sum


@dataclass(frozen=True)
class Value:
    num: int
    word: str


def text(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.String())


def below_five(key: Any, value: Value) -> bool:
    return value.num < 5


def turned(value: Value) -> Value:
    return Value(9 - value.num, value.word[::-1])


PREDICATES: dict[str, pl.Expr | Callable[[Any, Value], bool]] = {
    "even": col("num") % 2 == 0,
    "not thirds": col("num") % 3 != 0,
    "not a": col("word") != "a",
    "below five": below_five,
}
MAPPERS: dict[str, Callable[[Value], Value] | dict[str, str | pl.Expr]] = {
    "more": dict(num=col("num") + 1, word="word"),
    "rest": dict(num=col("num") % 7, word="word"),
    "reworded": dict(num="num", word=pl.lit("w") + text(col("num") % 5)),
    "turned": turned,
}
KEYS: dict[str, pl.Expr] = {
    "word": col("word"),
    "number": pl.lit("n") + text(col("num") % 4),
    "both": col("word") + text(col("num") % 3),
    "as in topics": pl.lit("k") + text(col("num") % 4),
}
FOLDS = {
    "sum and last": dict(num=Sum("num"), word=Last("word")),
    "first and greatest": dict(num=First("num"), word=Max("word")),
    "count and greatest": dict(num=Count(), word=Max("word")),
    "distinct and greatest": dict(num=ApproxDistinct("num"), word=Max("word")),
    "mean and first words": dict(num=Mean("num"), word=Collect("word", 3)),
    "median and least": dict(num=ApproxQuantiles("num", at=(0.5,)), word=Min("word")),
}
SHOWN: dict[str, dict[str, str | pl.Expr]] = {
    "mean and first words": dict(num=col("num").cast(pl.Int64), word=col("word").list.join("")),
    "median and least": dict(num=col("num").list.first().cast(pl.Int64), word="word"),
}
"""What is made of the results of those folds whose columns are not those of a value."""
OF_BOTH: dict[str, pl.Expr] = dict(num=col("num").fill_null(0), word=col("word").fill_null(""))
"""The same, of a cogroup by columns: one of its streams may have nothing of a key."""


def _of(call: Callable[..., description.Value], *values: Value | None) -> Value:
    return Value(*call(*(value and description.Value(value.num, value.word) for value in values)))


def chain(key: Any, value: Value, state: Value) -> Value:
    return _of(functions.chained, state, value)


def chain_otherwise(key: Any, value: Value, state: Value) -> Value:
    return _of(functions.chained_otherwise, state, value)


def unchain(key: Any, value: Value, state: Value) -> Value:
    return _of(functions.unchained, state, value)


def join_chains(key: Any, one: Value, other: Value) -> Value:
    return _of(functions.chains_joined, one, other)


def join(one: Value | None, other: Value | None) -> Value:
    return _of(functions.joined, one, other)


def nothing() -> Value:
    return Value(0, "")


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def folded(batch: Any) -> Value:
    """The chain of a batch."""
    found = nothing()
    for each in batch.records:
        found = chain(None, Value(each.num, each.word), found)
    return found


TIME_IN = 1_000 + 7 * (col("num") % 10) + col("word").str.len_chars()
TIME_OF = 1_000 + col("num")
"""Of a record that was held back by the wall clock, in ms."""
EACH: dict[str, pl.Expr] = {name: col("record").struct.field(name) for name in ("num", "word")}
"""The columns of a record of a batch."""


def reduce(state: Value, value: Value) -> Value:
    return _of(functions.chained, state, value)


def unreduce(state: Value, value: Value) -> Value:
    return _of(functions.unchained, state, value)


def both_ways(key: Any, value: Value) -> Iterator[tuple[str, Value]]:
    name = key if isinstance(key, str) else key.key  # that of an expression is an object
    yield value.word, value
    yield name, Value(value.num + 1, name)


def odd_one(key: str, value: Value) -> tuple[str, Value] | None:
    return (f"k{value.num % 5}", value) if value.num % 2 == 1 else None


def halved(value: Value) -> list[Value]:
    return [value, Value(value.num // 2, "h")]


COUNTED: dict[str, str | pl.Expr] = dict(num=pl.int_ranges(0, col("num") % 3), word="word")


def later(key: str, value: Value, time: datetime) -> datetime:
    return time + ms(value.num % 10 * 3)


def earlier(key: str, value: Value, time: datetime) -> datetime:
    return time - ms(value.num % 4 * 5)


TIMES: dict[str, pl.Expr | Callable[..., datetime]] = {
    "later": later,
    "earlier": earlier,
    "its own": 900 + col("num"),
}


def without_deletions(value: Value) -> Value | None:
    return None if value.num % 4 == 3 else Value(value.num, value.word)
