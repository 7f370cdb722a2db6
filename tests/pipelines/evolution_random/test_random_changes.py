"""Programs change at random, and their state stays: compared with a model that keeps what the documentation promises.

A few chains of programs are tried each time; ``ORDER_EXAMPLES`` sets how many others instead.
"""

from __future__ import annotations

import os

import pytest

from tests.pipelines.evolution_random.running import Chain

EXAMPLES = int(os.environ.get("ORDER_EXAMPLES", "0"))
SEEDS = range(1_000, 1_000 + EXAMPLES) if EXAMPLES else range(6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_state_stays_under_programs_that_change_at_random(tmp_path, seed):
    chain = Chain(seed, tmp_path)
    try:
        chain.run()
    except BaseException as error:
        error.add_note("\n".join(chain.story))
        raise
