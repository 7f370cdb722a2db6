"""Evaluation over columns makes no difference: any cut of the input into batches gives what single records give."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from polars import col

from tests.examples import examples
from tests.pipelines.operators.one_topic import (
    ALL,
    CUTS,
    FINAL,
    RECORDS,
    Event,
    Totals,
    batched_and_single,
    build,
    fold,
    larger,
)
from weir import (
    KStream,
    TimeWindows,
)

TUMBLING = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=4))
HOPPING = TUMBLING.advance_by(timedelta(milliseconds=3))


def key_of(key: str | None, value: Event | None) -> str | None:
    return value.word if value else None


def swapped(key: str | None, value: Event | None) -> tuple[str | None, int | None]:
    return (value.word, value.amount) if value else (key, None)


def several(key: str | None, value: Event | None) -> list[tuple[str, Event | None]]:
    return [(letter, value) for letter in (key or "") * ((value.amount or 0) % 3 if value else 1)]


def repeated(value: Event | None) -> Iterator[int | None]:
    yield from range(value.amount % 4 if value and value.amount else 0) if value else [None]


def is_odd(key: str | None, value: Event | None) -> bool:
    return value is not None and bool((value.amount or 0) % 2)


def branches(stream: KStream) -> None:
    for name, branch in stream.split("s").branch(col("amount") > 20).branch(is_odd).default_branch().items():
        branch.group_by_key().count(name).to_stream().to_delta(name)


PROGRAMS: dict[str, Callable[[KStream], None]] = {
    "agg to table": lambda s: s.group_by_key().agg("s", **ALL).to_delta("out"),
    "agg to every update": lambda s: (
        s.group_by_key().agg("s", **ALL).to_stream().filter(col("total") % 2 == 0).to_delta("out")
    ),
    "count, filtered table": lambda s: s.group_by_key().count("s").filter(col("count") % 2 == 1).to_delta("out"),
    "count to a moved stream": lambda s: (
        s.group_by_key().count("s").to_stream().group_by(size=col("count")).count("t").to_delta("out")
    ),
    "reduce": lambda s: s.group_by_key().reduce("s", larger).to_stream().to_delta("out"),
    "aggregate": lambda s: s.group_by_key().aggregate("s", lambda: Totals(0, ""), fold).to_stream().to_delta("out"),
    "aggregate to table": lambda s: s.group_by_key().aggregate("s", lambda: Totals(0, ""), fold).to_delta("out"),
    "tumbling": lambda s: s.group_by_key().windowed_by(TUMBLING).agg("s", **ALL).to_stream().to_delta("out"),
    "hopping": lambda s: (
        s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).to_stream().filter(col("n") > 1).to_delta("out")
    ),
    "hopping to table": lambda s: s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).to_delta("out"),
    "hopping aggregate": lambda s: (
        s.group_by_key().windowed_by(HOPPING).aggregate("s", lambda: Totals(0, ""), fold).to_stream().to_delta("out")
    ),
    "final": lambda s: s.group_by_key().windowed_by(TUMBLING).agg("s", **ALL).suppress(FINAL).to_delta("out"),
    "final hopping": lambda s: s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).suppress(FINAL).to_delta("out"),
    "final aggregate": lambda s: (
        s.group_by_key()
        .windowed_by(HOPPING)
        .aggregate("s", lambda: Totals(0, ""), fold)
        .suppress(FINAL)
        .to_delta("out")
    ),
    "final reduce": lambda s: (
        s.group_by_key().windowed_by(TUMBLING).reduce("s", larger).suppress(FINAL).to_delta("out")
    ),
    "final of a filtered table": lambda s: (
        s.group_by_key().windowed_by(HOPPING).agg("s", **ALL).filter(col("n") < 3).suppress(FINAL).to_delta("out")
    ),
    "final to a moved stream": lambda s: (
        s.group_by_key()
        .windowed_by(TUMBLING)
        .count("s")
        .suppress(FINAL)
        .to_stream()
        .group_by(size=col("count"))
        .count("t")
        .to_delta("out")
    ),
    "filtered before": lambda s: (
        s.filter(col("amount") > 5).group_by_key().windowed_by(TUMBLING).agg("s", **ALL).to_stream().to_delta("out")
    ),
    "to_table": lambda s: s.to_table("s").filter(col("amount") > 20).to_stream().to_delta("out"),
    "filter_not": lambda s: s.filter_not(is_odd).filter_not(col("amount") > 20).to_delta("out"),
    "filter_not of a table": lambda s: s.to_table("s").filter_not(is_odd).to_stream().to_delta("out"),
    "map": lambda s: (
        s.map(swapped).map(key={"value": "value"}, value={"key": col("key"), "n": col("value")}).to_delta("out")
    ),
    "flat_map": lambda s: s.flat_map(several).to_delta("out"),
    "flat_map_values": lambda s: (
        s.flat_map_values(repeated).flat_map_values(half=pl.int_ranges(0, col("value") % 3)).to_delta("out")
    ),
    "branches": branches,
    "new key": lambda s: s.select_key(key_of).map_values(twice=col("amount") * 2).to_delta("out"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=examples(12))
@given(records=RECORDS, cuts=CUTS)
def test_any_cut_into_batches_gives_what_single_records_give(name, records, cuts):
    batched, single = batched_and_single(build(PROGRAMS[name]), records, cuts)
    assert batched == single
