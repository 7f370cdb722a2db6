"""The program and the topics of a seed, drawn from the strategies of ``tests.pipelines.order``."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.control import BuildContext
from hypothesis.errors import StopTest
from hypothesis.internal.conjecture.data import ConjectureData

from tests.pipelines.order.description import Aggregate, Data, Program
from tests.pipelines.order.programs import data_for, programs, takes_null_keys


class Size(NamedTuple):
    """What is drawn at most, and how many records at least."""

    topics: int
    partitions: int
    steps: int
    least: int
    records: int


SIZES = (*[Size(1, 1, 1, 3, 6)] * 3, *[Size(2, 2, 1, 3, 8)] * 3, Size(2, 2, 3, 10, 30), Size(2, 2, 5, 30, 40))
"""What a world costs grows with its stores, outputs and epochs. Most worlds are small, so that many are tried."""


@st.composite
def _cases(draw: st.DrawFn, size: Size) -> tuple[Program, Data]:
    program = draw(programs(most_topics=size.topics, most_partitions=size.partitions, most_steps=size.steps))
    return program, draw(data_for(program, least=size.least, most=size.records))


def _with_usual_stores(program: Program) -> Program:
    """Every aggregation has a changelog, since a world's retention removes what a store without one is computed from;
    and its rows on disk, since a world's disk has no links into memory."""
    usual = {"is_unlogged": False, "is_in_memory": False}
    steps = [replace(step, **usual) if isinstance(step, Aggregate) else step for step in program.steps]
    return replace(program, steps=tuple(steps))


def _without_some_keys(program: Program, data: Data, rng: Random) -> Data:
    """Some records of some topics have no key, where the model knows what becomes of them."""
    chance = {topic: rng.choice([0.0, 0.0, 0.2]) * takes_null_keys(program, topic) for topic, _ in program.topics}
    return {
        (topic, partition): [
            record._replace(key=None) if rng.random() < chance[topic] else record for record in records
        ]
        for (topic, partition), records in data.items()
    }


def case_of(seed: int) -> tuple[Program, Data]:
    """A program with topics for it; the same seed gives the same."""
    rng = Random(seed)
    size = rng.choice(SIZES)
    while True:
        drawing = ConjectureData(prefix=(), random=rng)
        try:
            with BuildContext(drawing, is_final=False, wrapped_test=lambda: None):  # type: ignore[arg-type]
                found: tuple[Program, Data] = drawing.draw(_cases(size))
        except StopTest:
            continue
        program, data = found
        return _with_usual_stores(program), _without_some_keys(program, data, rng)
