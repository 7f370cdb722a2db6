"""Which windows each record reaches and which it is late for, against models that take record by record.

The input is cut into epochs at random, which must make no difference.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.operators.one_topic import FINAL, batches, build, run
from tests.pipelines.operators.programs import in_ms
from tests.pipelines.operators.window_models import Sessions, Sliding, Times
from weir import KStream, SessionWindows, SlidingWindows, Sum, TimeWindows


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


GRACES = st.sampled_from([0, 0, 1, 3, 8, 60])
KINDS = {
    "tumbling": st.builds(
        lambda size, grace: (TimeWindows.of_size_and_grace(ms(size), ms(grace)), Times(size, size, grace)),
        st.sampled_from([1, 3, 8]),
        GRACES,
    ),
    "hopping": st.builds(
        lambda size, advance, grace: (
            TimeWindows.of_size_and_grace(ms(size), ms(grace)).advance_by(ms(min(size, advance))),
            Times(size, min(size, advance), grace),
        ),
        st.sampled_from([3, 5, 8]),
        st.sampled_from([1, 2, 3, 8]),
        GRACES,
    ),
    "sliding": st.builds(
        lambda difference, grace: (
            SlidingWindows.of_time_difference_and_grace(ms(difference), ms(grace)),
            Sliding(difference, grace),
        ),
        st.sampled_from([1, 2, 3, 8]),
        GRACES,
    ),
    "sessions": st.builds(
        lambda gap, grace: (SessionWindows.of_inactivity_gap_and_grace(ms(gap), ms(grace)), Sessions(gap, grace)),
        st.sampled_from([1, 2, 3, 8]),
        GRACES,
    ),
}
RECORDS = st.lists(st.tuples(st.sampled_from(["a", "a", "a", "b", None]), st.integers(0, 25)), min_size=1, max_size=24)
CUTS = st.sets(st.integers(1, 23), max_size=6)
WAYS = ("every", "newest", "final", "held")


def program(windows):
    def build_all(stream: KStream) -> None:
        for way in WAYS:
            table = (
                stream.group_by_key()
                .windowed_by(windows, late_to=lambda late, way=way: late.to_delta(f"{way}_late"))
                .agg(way, bits=Sum("amount"))
            )
            match way:
                case "every":
                    table.to_stream().to_delta("every_out")
                case "newest":
                    table.to_delta("newest_out")
                case "final":
                    table.suppress(FINAL).to_delta("final_out")
                case "held":  # a suppression with a store of its own
                    table.filter(col("bits") > 0).suppress(FINAL).to_delta("held_out")

    return build_all


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(80))
@given(data=st.data())
def test_each_record_reaches_and_misses_the_windows_that_a_model_says_whatever_the_epochs(kind, data):
    """Every update, the newest rows of the table, and final results; the late records of each."""
    (windows, model), records, cuts = data.draw(KINDS[kind]), data.draw(RECORDS), data.draw(CUTS)
    updates, late, final = defaultdict(list), [], []
    for number, (key, time) in enumerate(records):
        if key is not None:
            of_record = model.take(1 << number, key, time)
            for user, start, end, bits, at in of_record[0]:
                updates[user, start, end].append((bits, at))
            late += [(*bounds, 1 << number, time) for bounds in of_record[1]]
            final += of_record[2]
    rows = [(key, time, (1 << number, "x")) for number, (key, time) in enumerate(records)]
    found = run(build(program(windows)), batches(rows, cuts))["facts"]

    def read(table: str, column: str) -> list[tuple]:
        return [
            (
                row["user"],
                in_ms(row["window_start"]),
                in_ms(row["window_end"]),
                None if row["_deleted"] else row[column],
                in_ms(row["_ts"]),
            )
            for row in found.get(table, [])
        ]

    for way in WAYS:
        assert sorted(read(f"{way}_late", "amount")) == sorted(late)
    every = defaultdict(list)
    for *window, bits, at in read("every_out", "bits"):
        every[tuple(window)].append((bits, at))
    assert every == updates
    newest = {window: each[-1] for window, each in updates.items() if each[-1][0] is not None}
    assert {tuple(row[:3]): tuple(row[3:]) for row in read("newest_out", "bits") if row[3] is not None} == newest
    assert read("final_out", "bits") == read("held_out", "bits") == final
