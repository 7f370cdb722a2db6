"""The order in which a task takes rows, how far it goes, and what its rows carry on to the next tasks."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.tasks.order import (
    BEFORE_ALL,
    MERGE,
    ORIGIN,
    Arrivals,
    Mark,
    Part,
    Turns,
    last_key,
    origin,
    running,
    sent,
    with_keys,
)

KEYS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6)
SOURCES = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 1)), st.lists(KEYS, max_size=3), max_size=4)
"""By source (rank, partition), the keys of the rows of each of its parts."""


def part(name, source, keys, offsets=None, batch=""):
    rows = len(keys)
    frame = pl.DataFrame(
        {
            "who": [f"{source}-{name}-{index}" for index in range(rows)],
            "_offset": list(range(rows)) if offsets is None else offsets,
            MERGE: [key[0] for key in keys],
            ORIGIN: [key[1] for key in keys],
        },
        schema={"who": pl.String, "_offset": pl.Int64, MERGE: pl.Int64, ORIGIN: pl.Int64},
    )
    return Part(input=name, rank=source[0], partition=source[1], frame=frame, batch=batch)


def parts_of(sources):
    return [part(f"part{index}", source, keys) for source, parts in sources.items() for index, keys in enumerate(parts)]


def model(parts, marks=()):
    """Rows (key, source, name) in the order in which they are taken: always the least of those that are next in their
    sources, as long as no mark of another source comes before it. A key counts as the greatest of its source so far."""
    queues = defaultdict(list)
    for one in parts:
        for who, *key in one.frame.select("who", MERGE, ORIGIN).rows():
            queue = queues[one.rank, one.partition]
            queue.append((max(tuple(key), queue[-1][0] if queue else BEFORE_ALL), (one.rank, one.partition), who))
    taken = []
    while heads := [queue[0] for queue in queues.values() if queue]:
        ready = [
            head
            for head in heads
            if all(
                (*head[0], *head[1]) < (mark.merge_ms, mark.origin, *mark.source)
                for mark in marks
                if mark.source != head[1]
            )
        ]
        if not ready:
            break
        taken.append(min(ready))
        queues[taken[-1][1]].pop(0)
    return taken


def names(turns: Turns):
    """The rows of all inputs by turn."""
    found = {
        int(place): who
        for name, frame in turns.frames.items()
        for place, who in zip(turns.places[name], frame["who"], strict=True)
    }
    return [found[turn] for turn in range(len(turns))]


@given(SOURCES)
def test_rows_of_one_source_keep_their_order_and_sources_meet_by_key_then_rank_then_partition(sources):
    parts = parts_of(sources)
    turns = Arrivals(parts).turns
    expected = model(parts)
    assert names(turns) == [who for _, _, who in expected]
    assert list(zip(turns.merge_ms.tolist(), turns.origins.tolist(), strict=True)) == [key for key, _, _ in expected]


@given(SOURCES, st.lists(st.builds(Mark, *(st.integers(0, high) for high in (6, 6, 2, 1))), max_size=3))
def test_nothing_is_taken_that_a_source_with_more_may_still_precede(sources, marks):
    parts = parts_of(sources)
    arrivals = Arrivals(parts)
    arrivals.wait_for(marks)
    expected = [who for _, _, who in model(parts, marks)]
    assert sorted(names(arrivals.turns)) == sorted(expected)
    for one, taken in zip(arrivals.parts, arrivals.taken_of(), strict=True):
        assert set(one.frame["who"][:taken]) == set(one.frame["who"]) & set(expected), "the first rows of each part"


@given(SOURCES, st.integers(0, 20), st.integers(0, 20))
def test_a_part_of_the_turns_is_the_same_rows_and_the_rest_can_be_left(sources, start, length):
    parts = parts_of(sources)
    arrivals = Arrivals(parts)
    everything = names(arrivals.turns)
    assert names(arrivals.turns[start : start + length]) == everything[start : start + length]
    arrivals.take(length)
    assert names(arrivals.turns) == everything[:length]


def test_rows_that_one_task_sent_on_two_edges_meet_in_the_order_in_which_it_took_what_caused_them():
    one = part("one", (0, 0), [(5, 1), (5, 1), (7, 2)], offsets=[10, 11, 14], batch="1.4")
    other = part("other", (0, 0), [(5, 1), (6, 1)], offsets=[10, 12], batch="1.4")
    turns = Arrivals([one, other]).turns
    assert names(turns) == ["(0, 0)-one-0", "(0, 0)-other-0", "(0, 0)-one-1", "(0, 0)-other-1", "(0, 0)-one-2"]


@given(KEYS)
def test_the_keys_of_a_source_never_fall(keys):
    merge_ms, origins = running(*(np.array([key[index] for key in keys], np.int64) for index in (0, 1)))
    assert list(zip(merge_ms.tolist(), origins.tolist(), strict=True)) == [
        max(keys[: index + 1]) for index in range(len(keys))
    ]


def test_the_merge_time_is_the_greatest_time_of_the_partition_so_far():
    frame = pl.DataFrame({"_ts": [5, 9, 7], "_offset": [3, 4, 8]}, schema_overrides={"_ts": pl.Int64})
    assert with_keys(frame, 2, 1)[MERGE].to_list() == [5, 9, 9]
    assert with_keys(frame, 2, 1, 8)[MERGE].to_list() == [8, 9, 9]
    assert with_keys(frame, 2, 1)[ORIGIN].to_list() == [origin(2, 1, offset) for offset in (3, 4, 8)]


def test_origins_are_ordered_by_topic_then_partition_then_offset():
    in_order = [(0, 0, 0), (0, 0, 10**12), (0, 1, 0), (0, 4_000, 5), (1, 0, 0), (255, 4_095, 8 * 10**12)]
    numbers = [origin(*place) for place in in_order]
    assert numbers == sorted(numbers)
    assert numbers[-1] < 1 << 63


def test_what_a_task_sends_has_the_place_and_the_key_of_the_record_that_caused_it():
    turns = Turns(merge_ms=np.array([5, 5, 9]), origins=np.array([1, 2, 3]))
    rows = pl.DataFrame({"who": list("abcd"), "_partition": [9] * 4, "_offset": [12, 10, -1, 10]})
    found = sent(rows, turns, np.array([10, 11, 12]), partition=4, last=(9, 3))
    assert found.rows() == [
        ("b", 4, 10, 5, 1),
        ("d", 4, 10, 5, 1),
        ("a", 4, 12, 9, 3),
        ("c", 4, 12, 9, 3),
    ], "in the order of the causes; what no record caused comes with the last one"


def test_what_a_task_sends_without_a_record_has_the_key_of_the_last_one_and_without_any_comes_before_all():
    rows = pl.DataFrame({"who": ["a"], "_partition": [0], "_offset": [-1]})
    for clocks, key in (({"_last_merge": 7, "_last_origin": 3}, (7, 3)), ({}, BEFORE_ALL)):
        found = sent(rows, Turns(), np.empty(0, np.int64), partition=1, last=last_key(clocks))
        assert (found[MERGE][0], found[ORIGIN][0]) == key
