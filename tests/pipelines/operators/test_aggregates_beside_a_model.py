"""Aggregates that choose, join, rank, count and spread values beside plain Python over lists, whatever the batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.operators.one_topic import CUTS, run
from tests.pipelines.operators.programs import in_ms
from tests.pipelines.operators.window_models import Sessions, Sliding, Times
from weir import (
    BottomK,
    EmitStrategy,
    First,
    Json,
    Last,
    MaxBy,
    MinBy,
    SessionWindows,
    SlidingWindows,
    StdDev,
    StreamsBuilder,
    String,
    StringAgg,
    TimeWindows,
    TopK,
    ValueCounts,
    Variance,
)

NAN, FAR = float("nan"), 1e9
"""Around ``FAR``, a variance from sums of squares would be wrong in its first digit."""


@dataclass(frozen=True)
class Reading:
    amount: int | None
    share: float | None
    word: str | None


AGGREGATES = dict(
    joined=StringAgg("word", ", ", max_chars=7),
    earliest=First("word", by_time=True),
    latest=Last("word", by_time=True),
    cheapest=MinBy("word", by="share"),
    dearest=MaxBy("amount", by=col("amount") % 3),
    last_word=MaxBy("share", by="word"),
    top=TopK("share", 2),
    bottom=BottomK("word", 3),
    best=TopK("word", 3, by="amount"),
    worst=BottomK("word", 2, by="share"),
    words=ValueCounts("word", limit=2),
    spread=Variance("share"),
    width=StdDev("amount", ddof=0),
)
ORDERLESS = {name: AGGREGATES[name] for name in ("top", "bottom", "words", "spread", "width")}
"""Hopping windows of these alone have final results by slices."""
RECORDS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(100, 160),
        st.one_of(
            st.none(),
            st.builds(
                Reading,
                st.one_of(st.none(), st.integers(0, 9)),
                st.sampled_from([None, NAN, math.inf, 0.5, -2.0, FAR + 0.25, FAR + 0.5, FAR + 0.75]),
                st.sampled_from([None, "", "x", "yy", "é,"]),
            ),
        ),
    ),
    min_size=1,
    max_size=30,
)


def model(taken: Sequence[tuple[int, Reading | None]]) -> dict[str, Any]:
    """What the aggregates give for readings with their times, in the order in which they are taken."""
    readings = [(time, reading) for time, reading in taken if reading is not None]
    words = [(time, each.word) for time, each in readings if each.word is not None]
    shares = [each.share for _, each in readings if each.share is not None]
    amounts = [each.amount for _, each in readings if each.amount is not None]

    def ordered(of: str, by: str) -> list[tuple[Any, Any]]:
        """Value and what decides, of records that have both."""
        pairs = [(getattr(each, of), getattr(each, by)) for _, each in readings]
        return [pair for pair in pairs if None not in pair and pair[1] == pair[1]]

    rest = [(amount, amount % 3) for amount in amounts]
    return dict(
        joined=", ".join(word for _, word in words)[:7] if words else None,
        earliest=min(words, key=lambda each: each[0])[1] if words else None,
        latest=max(reversed(words), key=lambda each: each[0])[1] if words else None,
        cheapest=min(ordered("word", "share"), key=lambda each: each[1], default=[None])[0],
        dearest=max(rest, key=lambda each: each[1], default=[None])[0],
        last_word=max(ordered("share", "word"), key=lambda each: each[1], default=[None])[0],
        top=sorted((share for share in shares if share == share), reverse=True)[:2],
        bottom=sorted(word for _, word in words)[:3],
        best=[word for word, _ in sorted(ordered("word", "amount"), key=lambda each: -each[1])][:3],
        worst=[word for word, _ in sorted(ordered("word", "share"), key=lambda each: each[1])][:2],
        words=[dict(key=k, value=n) for k, n in sorted(Counter(word for _, word in words).items())][:2],
        spread=variance(shares, 1),
        width=None if (found := variance(amounts, 0)) is None else math.sqrt(found),
    )


def variance(numbers: Sequence[float], ddof: int) -> float | None:
    if len(numbers) <= ddof:
        return None
    if not all(map(math.isfinite, numbers)):
        return NAN
    exact = [Fraction(number) for number in numbers]
    mean = sum(exact) / len(exact)
    return float(sum((number - mean) ** 2 for number in exact) / (len(exact) - ddof))


def frame(records: Sequence[tuple[str, int, Reading | None]]) -> pl.DataFrame:
    values = [value or Reading(None, None, None) for _, _, value in records]
    columns = {
        "user": pl.Series([key for key, _, _ in records], dtype=pl.String),
        "amount": pl.Series([value.amount for value in values], dtype=pl.Int64),
        "share": pl.Series([value.share for value in values], dtype=pl.Float64),
        "word": pl.Series([value.word for value in values], dtype=pl.String),
        "_ts": pl.Series([time for _, time, _ in records], dtype=pl.Int64),
        "_partition": pl.repeat(3, len(records), dtype=pl.Int32, eager=True),
        "_offset": pl.int_range(len(records), eager=True),
        "_deleted": pl.Series([value is None for _, _, value in records], dtype=pl.Boolean),
    }
    return pl.DataFrame(columns)


def results(program, records, cuts) -> list[dict[str, Any]]:
    builder = StreamsBuilder()
    program(builder.stream("events", key=String("user"), value=Json(Reading)).group_by_key())
    rows, bounds = frame(records), [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    batches = [rows[start:end] for start, end in pairwise(bounds)]
    return run(builder.build().sub_topologies[0], batches)["facts"].get("out", [])


def is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-4, abs=1e-9, nan_ok=True)
    return found == expected


def require_same(found: Sequence[dict[str, Any]], expected: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
    """Rows beside what identifies them (a key, or a key with the bounds of its window) and the model's values."""
    for row, (bounds, values) in zip(found, expected, strict=True):
        names = ("window_start", "window_end") if len(bounds) > 1 else ()
        assert (row["user"], *(in_ms(row[name]) for name in names)) == bounds
        assert {name: row[name] for name in values if not is_same(row[name], values[name])} == {}


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


@pytest.mark.parametrize("is_every_update", [True, False])
@settings(max_examples=examples(25))
@given(records=RECORDS, cuts=CUTS)
def test_of_each_key(is_every_update, records, cuts):
    emit = "record" if is_every_update else "newest"
    found = results(lambda g: g.agg("s", **AGGREGATES).to_delta("out", emit=emit), records, cuts)
    taken: dict[str, list] = {}
    expected = []
    for key, time, reading in records:
        if reading is not None:
            taken.setdefault(key, []).append((time, reading))
            expected.append(((key,), model(taken[key])))
    newest = {bounds: values for bounds, values in expected}
    require_same(found, sorted(newest.items()))  # the harness leaves the newest row of each key, in order


WINDOWS = {
    "tumbling": (TimeWindows.of_size_and_grace(ms(10), ms(4)), lambda: Times(10, 10, 4)),
    "hopping": (TimeWindows.of_size_and_grace(ms(10), ms(4)).advance_by(ms(3)), lambda: Times(10, 3, 4)),
    "slices": (TimeWindows.of_size_and_grace(ms(10), ms(4)).advance_by(ms(3)), lambda: Times(10, 3, 4)),
    "sliding": (SlidingWindows.of_time_difference_and_grace(ms(8), ms(6)), lambda: Sliding(8, 6)),
    "sessions": (SessionWindows.of_inactivity_gap_and_grace(ms(4), ms(60)), lambda: Sessions(4, 60)),
}
JOINED = [("a", 110, Reading(3, 3.0, "x")), ("a", 105, Reading(3, 3.0, "yy")), ("a", 107, Reading(3, 3.0, ""))]
"""The last joins the sessions of the others, which are taken in the order of their ends."""


@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=examples(20))
@example(records=JOINED, cuts=set())
@given(records=RECORDS, cuts=CUTS)
def test_of_each_window(name, is_final, records, cuts):
    windows, make = WINDOWS[name]
    if name == "sliding":  # they drop null values
        records = [(key, time, reading or Reading(None, None, None)) for key, time, reading in records]
    aggregates = ORDERLESS if name == "slices" else AGGREGATES
    records = [*records, ("a", 1_000, None if name != "sliding" else Reading(None, None, None))]  # closes all others

    def program(grouped):
        windowed = grouped.windowed_by(windows)
        if is_final:
            windowed = windowed.emit_strategy(EmitStrategy.on_window_close())
        windowed.agg("s", **aggregates).to_stream().to_delta("out")

    windows_model, order, updates, final = make(), {}, [], []
    for number, (key, time, _) in enumerate(records):
        updated, _, closed = windows_model.take(1 << number, key, time)
        for at, start, end, bits, _ in updated:
            if bits is not None:
                order[at, start, end, bits] = (
                    [each.bit_length() - 1 for each in windows_model.sessions[key][-1]]
                    if name == "sessions"
                    else [each for each in range(number + 1) if bits >> each & 1]
                )
        updates += [update[:4] for update in updated if update[3] is not None]
        final += [update[:4] for update in closed]
    modelled = {each: model([records[number][1:] for number in order[each]]) for each in order}
    expected = [
        (each[:3], {column: modelled[each][column] for column in aggregates})
        for each in (final if is_final else updates)
    ]
    found = [row for row in results(program, records, cuts) if not row["_deleted"]]
    require_same(found, expected)
