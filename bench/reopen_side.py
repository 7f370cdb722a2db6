"""Stores to reopen: ``python -m bench.reopen_side FOLDER TASKS ROWS fill|open CHANGED ORDER``.

``fill`` makes the stores, with a committed state and epochs that are not and have changed ``CHANGED`` of each store's
rows, prints ``ready`` and waits to be killed; ``open`` opens them as a worker does and prints one JSON object with the
times in ms. ``ORDER`` is ``spread`` for rows at equal distances, ``random``, or ``adjacent``.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from weir.state.engine.task_store import Batch, TaskStore
from weir.state.types import StateId

COMMITTED = StateId(1, 1)
BATCH_ROWS, EPOCH_ROWS = 100_000, 25_000


def main(arguments: Sequence[str]) -> None:
    folder, tasks, rows, what, changed, order = arguments
    folders = [Path(folder, f"{task}", "one") for task in range(int(tasks))]
    if what == "fill":
        stores = [_filled(each, int(rows) // len(folders), int(changed), order) for each in folders]
        print("ready", flush=True)
        signal.pause()
        del stores
    began = time.perf_counter()
    stores = [TaskStore.open(each, each.parent.name, ["sums"]) for each in folders]
    opened = time.perf_counter()
    estimate_us = sum(store.uncommitted.rollback_us for store in stores)
    rolling, worked = time.perf_counter(), time.process_time()
    for store in stores:
        store.settle(generation=2, expected=COMMITTED, committed=COMMITTED)
    found = {
        "all_ms": (opened - began) * 1000,
        "estimate_ms": estimate_us / 1000,
        "rollback_ms": (time.perf_counter() - rolling) * 1000,
        "rollback_cpu_ms": (time.process_time() - worked) * 1000,
    }
    print(json.dumps(found))


def _filled(folder: Path, rows: int, changed: int, order: str) -> TaskStore:
    store = TaskStore.create(folder, folder.parent.name, ["sums"])
    store.bulk_load({"sums": _batches(rows)}, state=COMMITTED, generation=1)
    state, numbers = COMMITTED, _numbers(rows, changed, order)
    for start in range(0, changed, EPOCH_ROWS):
        before, state = state, StateId(1, state.epoch + 1)
        keys = [b"u%09d" % number for number in numbers[start : start + EPOCH_ROWS]]
        store.settle(generation=1, expected=before, committed=COMMITTED)  # lets the map grow
        with store.session() as session:
            session.put_many("sums", keys, [b"another value of 24 byte"] * len(keys))
            store.apply(
                session,
                state=state,
                expected=before,
                generation=1,
                plan_hash="e",
                make_receipt=lambda uncommitted: b"receipt",
            )
    return store


def _numbers(rows: int, changed: int, order: str) -> Sequence[int]:
    match order:
        case "spread":
            return range(0, rows, max(1, rows // changed))[:changed]
        case "random":
            return random.Random(1).sample(range(rows), changed)
        case _:
            return range(rows // 2, rows // 2 + changed)


def _batches(rows: int) -> Iterator[Batch]:
    for start in range(0, rows, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, rows))
        yield [b"u%09d" % number for number in numbers], [b"%024d" % number for number in numbers]


if __name__ == "__main__":
    main(sys.argv[1:])
