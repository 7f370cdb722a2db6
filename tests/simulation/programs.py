"""The program and the topics of a seed, drawn from the strategies of ``tests.pipelines.order``."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st
from hypothesis.control import BuildContext
from hypothesis.errors import StopTest
from hypothesis.internal.conjecture.data import ConjectureData

from tests.pipelines.order.description import Data, Program
from tests.pipelines.order.programs import data_for, programs

MOST_STEPS = 14
"""Larger programs take long, and find no more."""


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Program, Data]:
    program = draw(programs(most_topics=2, most_partitions=2))
    return program, draw(data_for(program, most=40))


def case_of(seed: int) -> tuple[Program, Data]:
    """A program with topics for it; the same seed gives the same."""
    rng = Random(seed)
    while True:
        drawing = ConjectureData(prefix=(), random=rng)
        try:
            with BuildContext(drawing, is_final=False, wrapped_test=lambda: None):  # type: ignore[arg-type]
                program, data = drawing.draw(_cases())
        except StopTest:
            continue
        if len(program.steps) <= MOST_STEPS:
            return program, data
