"""``python -m tests.simulation``: live through worlds, and say which seeds break something.

Run by ``make simulate``; with ``--seed`` one world is replayed and its whole history printed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, takewhile
from multiprocessing import get_context
from statistics import median

from tests.simulation.running import Outcome, live_through, live_through_in_time

ALWAYS = {"PYTHONHASHSEED": "0", "POLARS_MAX_THREADS": "1", "TOKIO_WORKER_THREADS": "1"}
"""Sets of texts are walked in an order that depends on the first, and so does what a seed does; one thread each is what
polars has in workers, too, and processes share the cores."""
TELL_EVERY_S = 30.0
"""Between two lines about how far it is."""
AT_ONCE = 8
"""How many seeds each process gets at a time."""


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 if every seed held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one and print its history")
    parser.add_argument("--seconds", type=float, help="begin no more worlds after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--mutant", help="break the code under test so, and stop at the first seed that finds it")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        found = live_through(given.seed, mutant=given.mutant, tells=True)
        print("\n".join(found.history))
        print(found)
        return found.is_broken
    began_s, broken, times = time.monotonic(), list[Outcome](), list[float]()
    told_s = began_s
    for outcome in _outcomes(given.first, given.seeds, given.jobs, given.seconds, given.mutant):
        times.append(outcome.seconds)
        if outcome.is_broken:
            broken.append(outcome)
            print(f"{outcome}\n  make simulate SEED={outcome.seed}", flush=True)
            if given.mutant:
                break
        if time.monotonic() > told_s + TELL_EVERY_S:
            told_s = time.monotonic()
            print(f"{len(times):,} of {given.seeds:,} seeds, {len(broken)} broken", file=sys.stderr, flush=True)
    print(
        f"{len(times)} seeds in {time.monotonic() - began_s:.0f} s, median {1000 * median(times):.0f} ms; "
        f"{len(broken)} broken"
    )
    return bool(broken)


def _outcomes(first: int, count: int, jobs: int, seconds: float | None, mutant: str | None) -> Iterator[Outcome]:
    end_s = time.monotonic() + (math.inf if seconds is None else seconds)
    work = partial(live_through_in_time, mutant=mutant, until_s=end_s)
    seeds = iter(range(first, first + count))
    if jobs == 1:
        yield from takewhile(bool, map(work, seeds))
        return
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.simulation.running"])
    with ProcessPoolExecutor(jobs, context) as pool:
        while time.monotonic() < end_s and (some := list(islice(seeds, AT_ONCE * jobs))):
            yield from filter(None, pool.map(work, some))


if __name__ == "__main__":
    if not ALWAYS.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], {**os.environ, **ALWAYS})
    sys.exit(main(sys.argv[1:]))
