"""What ten times as much costs: ``python -m bench.growth [--small]`` prints one JSON object.

- ``keys``: an epoch of as many records, with its commit in the store, of a task that holds 5 million keys, beside one
  that holds 500,000. Sums per key; the keys of the records lie anywhere, which is the worst that can be, or among the
  newest 50,000, as where each key is busy for a while.
- ``history``: a commit to the log and two tables after 10,000 commits, checkpoints among them, beside one after 1,000.
- ``tasks``: what the driver does for a turn and a commit of 1,000 tasks, beside 100, for each task.

The small and the large take turns where both can be there; medians of processor time in ms, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from contextlib import ExitStack
from typing import Any

import polars as pl

from bench import commit_history, many_tasks
from bench.one_task import Task, task_of, turns_of
from weir import Int64, StreamsBuilder, String, Sum
from weir.pipelines.tasks.order import Turns

TIMES = 10
KEYS, COMMITS, TASKS = 500_000, 1_000, 100
SMALL_KEYS, SMALL_COMMITS, SMALL_TASKS = 5_000, 20, 10
EPOCH_RECORDS, ROUNDS, FILL_RECORDS, NEWEST = 10_000, 30, 100_000, 50_000
SLOTS = 50
OF_ALL_TASKS = ("turn_ms", "turn_ms_with_none", "commit_ms", "commit_with_a_file_of_each_ms")
"""What is compared for each task."""


def of_keys(keys: int, rounds: int) -> dict[str, Any]:
    """Epochs of a task with ``keys`` and of one with ten times as many, in turns."""
    with ExitStack() as stack:
        tasks = {count: stack.enter_context(task_of(_sums())) for count in (keys, TIMES * keys)}
        for count, task in tasks.items():
            for first in range(0, count, FILL_RECORDS):
                task.run(_turns(range(first, min(first + FILL_RECORDS, count))), 0)
        lots = random.Random(1)
        found = {}
        for where, newest in (("anywhere", TIMES * keys), ("among the newest", min(NEWEST, keys))):
            took: dict[int, list[float]] = {count: [] for count in tasks}
            for _ in range(rounds):
                for count, task in tasks.items():
                    among = range(max(0, count - newest), count)
                    took[count].append(_took_ms(task, _turns(lots.choices(among, k=EPOCH_RECORDS))))
            found[where] = compared(*map(statistics.median, took.values()))
    return {"keys": keys, "records of an epoch": EPOCH_RECORDS, **found}


def of_history(commits: int) -> dict[str, Any]:
    """Commits after so many, and after ten times as many."""
    found = commit_history.measure(TIMES * commits, commits)
    return {"commits": commits, "commit": compared(found["commit_young_ms"], found["commit_old_ms"])}


def of_tasks(tasks: int, epochs: int) -> dict[str, Any]:
    """What the driver does for each of so many tasks, and of ten times as many."""
    less, more = (many_tasks.measured(count, epochs, 1, SLOTS) for count in (tasks, TIMES * tasks))
    return {
        "tasks": tasks,
        **{f"{what}, each task": compared(less[what] / tasks, more[what] / TIMES / tasks) for what in OF_ALL_TASKS},
    }


def compared(less_ms: float, more_ms: float) -> dict[str, float]:
    """Both, and how many times the one the other is."""
    return {
        "ms": round(less_ms, 4),
        "ms with ten times as much": round(more_ms, 4),
        "ratio": round(more_ms / less_ms, 2),
    }


def _sums() -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream("in", key=String("user"), value=Int64("n")).group_by_key().agg("sums", n=Sum("n")).to_delta("out")
    return builder


def _took_ms(task: Task, turns: Turns) -> float:
    began_s = time.process_time()
    task.run(turns, 0)
    return 1e3 * (time.process_time() - began_s)


def _turns(numbers: range | list[int]) -> Turns:
    users = pl.Series(numbers, dtype=pl.Int64)
    return turns_of("user-" + users.cast(pl.String).str.zfill(9), n=users)


def main(*, small: bool) -> dict[str, Any]:
    """All three."""
    keys, commits, tasks = (SMALL_KEYS, SMALL_COMMITS, SMALL_TASKS) if small else (KEYS, COMMITS, TASKS)
    return {
        "keys": of_keys(keys, 3 if small else ROUNDS),
        "history": of_history(commits),
        "tasks": of_tasks(tasks, 3 if small else ROUNDS),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description="What ten times as much costs.")
    parser.add_argument("--small", action="store_true", help="a hundredth, to see that it works")
    print(json.dumps(main(small=parser.parse_args().small), indent=2))
