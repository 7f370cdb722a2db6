"""The order in which a task takes the records of several inputs, and how far it may go while some are unfinished."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.tasks.turns import takeable, turns

TIMES = st.lists(st.integers(0, 9), max_size=8)


def frame(times):
    return pl.DataFrame({"_ts": times}, schema={"_ts": pl.Int64})


def picked(queues):
    """Names and positions in order: always the oldest of the next in line, and of the first queue at equal times."""
    order, positions = [], dict.fromkeys(queues, 0)
    while waiting := [name for name, times in queues.items() if positions[name] < len(times)]:
        name = min(waiting, key=lambda name: queues[name][positions[name]])
        order.append((name, positions[name]))
        positions[name] += 1
    return order


@given(TIMES, TIMES, TIMES)
def test_the_next_record_is_the_oldest_of_those_next_in_their_inputs(a, b, c):
    queues = {"a": a, "b": b, "c": c}
    order = picked(queues)
    for name, places in zip(queues, turns([frame(times) for times in queues.values()]), strict=True):
        assert places.tolist() == [order.index((name, position)) for position in range(len(queues[name]))]


@pytest.mark.slow
@given(TIMES, TIMES, TIMES, st.sets(st.sampled_from("abc")))
def test_nothing_is_taken_that_an_unfinished_input_may_still_precede(a, b, c, unfinished):
    queues = {"a": a, "b": b, "c": c}
    found = takeable({name: frame(times) for name, times in queues.items() if times}, "abc", unfinished)
    stop = next(
        (
            index
            for index, (name, position) in enumerate([*picked(queues)])
            if any(
                other in unfinished and all(place != other for place, _ in picked(queues)[index:]) for other in "abc"
            )
        ),
        None,
    )
    taken = picked(queues)[:stop]
    for name, times in queues.items():
        if times:
            assert found[name] == sum(one == name for one, _ in taken)


@pytest.mark.parametrize(
    ("unfinished", "taken"),
    [((), {"a": 3, "b": 2}), (("a",), {"a": 3, "b": 2}), (("b",), {"a": 2, "b": 2}), (("c",), {"a": 0, "b": 0})],
)
def test_rows_wait_for_inputs_that_have_more_on_the_brokers(unfinished, taken):
    assert takeable({"a": frame([1, 4, 9]), "b": frame([2, 5])}, "abc", unfinished) == taken
