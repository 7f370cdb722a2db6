"""Stores to reopen: ``python -m bench.reopen_side FOLDER TASKS ROWS fill|open``.

``fill`` makes the stores, with a committed state and an uncommitted epoch, prints ``ready`` and waits to be killed;
``open`` opens them as a worker does and prints one JSON object with the times in ms.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from weir.state.engine.task_store import Batch, TaskStore
from weir.state.types import StateId

COMMITTED, UNCOMMITTED = StateId(1, 1), StateId(1, 2)
BATCH_ROWS, EPOCH_ROWS = 100_000, 25_000


def main(arguments: Sequence[str]) -> None:
    folder, tasks, rows, what = arguments
    folders = [Path(folder, f"{task}", "one") for task in range(int(tasks))]
    if what == "fill":
        stores = [_filled(each, int(rows) // len(folders)) for each in folders]
        print("ready", flush=True)
        signal.pause()
        del stores
    began = time.perf_counter()
    stores = [TaskStore.open(each, each.parent.name, ["sums"]) for each in folders]
    opened = time.perf_counter()
    for store in stores:
        store.settle(generation=2, expected=COMMITTED, committed=COMMITTED)
    print(json.dumps({"all_ms": (opened - began) * 1000, "rollback_ms": (time.perf_counter() - opened) * 1000}))


def _filled(folder: Path, rows: int) -> TaskStore:
    store = TaskStore.create(folder, folder.parent.name, ["sums"])
    store.bulk_load({"sums": _batches(rows)}, state=COMMITTED, generation=1)
    with store.session() as session:
        keys = [b"u%09d" % number for number in range(0, rows, max(1, rows // EPOCH_ROWS))]
        session.put_many("sums", keys, [b"another value of 24 byte"] * len(keys))
        store.apply(
            session,
            state=UNCOMMITTED,
            expected=COMMITTED,
            generation=1,
            plan_hash="e",
            make_receipt=lambda uncommitted: b"receipt",
        )
    return store


def _batches(rows: int) -> Iterator[Batch]:
    for start in range(0, rows, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, rows))
        yield [b"u%09d" % number for number in numbers], [b"%024d" % number for number in numbers]


if __name__ == "__main__":
    main(sys.argv[1:])
