"""``python -m tests.guard [JOB ...]``: count what jobs take, and compare it with what is recorded.

The exit code is 1 if a count is above the recorded one, or so far below it that it has to be recorded. ``--record``
writes the counts down. ``--growth`` counts with ten times the keys, commits and tasks instead, which may be at most 1.3
times as much. ``--where COUNT`` prints the lines of code that do what a count counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.guard.allocations import Allocations
from tests.guard.jobs import JOBS
from tests.guard.measuring import (
    GROWS_AT_MOST,
    growth_with_commits,
    growth_with_keys,
    growth_with_tasks,
    measured,
    places,
)
from tests.guard.recorded import PYTHON, RECORDED, Recorded

ALWAYS = {"PYTHONHASHSEED": "0", "POLARS_MAX_THREADS": "1"}
"""Sets of texts are walked in an order that depends on the first; workers have one thread for polars, too."""
SIMPLE = "sum_per_key"
"""The job that is also counted with ten times the commits and tasks."""


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.guard", description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"all by default: {', '.join(JOBS)}")
    parser.add_argument("--counts", type=Path, default=RECORDED, help="the file of recorded counts")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--record", action="store_true", help="write the counts down")
    instead.add_argument("--growth", action="store_true", help="count with ten times the keys, commits and tasks")
    instead.add_argument("--where", metavar="COUNT", help="print the lines of code of a count")
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.jobs} - JOBS.keys()):
        parser.error(f"there is no job {unknown[0]!r}; choose from {', '.join(JOBS)}")
    jobs = given.jobs or list(JOBS)
    if given.growth:
        return _growth(jobs)
    if given.where:
        return _where(jobs, given.where)
    return _counts(jobs, given.counts, records=given.record)


def _counts(jobs: Sequence[str], path: Path, *, records: bool) -> int:
    recorded = Recorded.read(path)
    with tempfile.TemporaryDirectory() as folder:
        allocations = Allocations(Path(folder))
        found = {job: measured(JOBS[job], allocations) for job in jobs}
    lines = [line for job in jobs for line in recorded.differences(job, found[job])]
    print("\n".join(lines) or "All counts are as recorded.")
    if records:
        counts = {job: counts for job, counts in {**recorded.counts, **found}.items() if job in JOBS}
        path.write_text(replace(recorded, python=PYTHON, counts=counts).text())
        return 0
    if lines:
        print("If that is meant, `python -m tests.guard --record` writes down what the counts are now; say why there.")
    return bool(lines)


def _growth(jobs: Sequence[str]) -> int:
    found = {f"{job} with ten times the keys": growth_with_keys(JOBS[job]) for job in jobs}
    if SIMPLE in jobs:
        found[f"{SIMPLE} after ten times the commits"] = growth_with_commits(JOBS[SIMPLE])
        found[f"{SIMPLE} with ten times the tasks"] = growth_with_tasks(JOBS[SIMPLE])
    lines = [
        f"{what}: {name} is {times:.2f} times as much, which is more than {GROWS_AT_MOST}"
        for what, counts in found.items()
        for name, times in counts.items()
        if times > GROWS_AT_MOST
    ]
    most = max(times for counts in found.values() for times in counts.values())
    print("\n".join(lines) or f"No count is more than {most:.2f} times as much.")
    return bool(lines)


def _where(jobs: Sequence[str], name: str) -> int:
    for job in jobs:
        for phase, found in places(JOBS[job]).items():
            for place, count in found[name].most_common():
                print(f"{job}, {phase}: {count:6,} {place}")
    return 0


if __name__ == "__main__":
    if not ALWAYS.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "tests.guard", *sys.argv[1:]], {**os.environ, **ALWAYS})
    sys.exit(main(sys.argv[1:]))
