"""A sum per key over tens of millions of keys, whose state is on disk: ``python -m bench.many_keys [--keys N]``.

Each key comes once, in no order; Weir alone, two slots, commits each second, no snapshots. Each line stands for
``--step`` keys that are committed: seconds since the start, the rate since the line before, and the peak since then of
the memory of all processes (RssAnon), which is bounded if it does not grow. The last has how many keys were committed
and the size of Weir's folder. A run ends after ``--seconds`` at the latest.

``--make`` only makes the events, which take about as long as a run. They stay below ``--dir`` for later runs over as
many keys; remove that folder in the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl

from bench import cluster
from bench.events import SMALL_BYTES, event_frame, make_events
from bench.memory import tree_memory
from bench.processes import ROOT, BenchError
from weir.infra.process import end_with_parent
from weir.state.commit.log import newest_commit
from weir.state.storage.places import folder_at

TOPIC, APPLICATION = "events_many", "sum_per_key_events_many"
LOOK_S = 0.2


def main(keys: int, step: int, most_s: float, home: Path, *, only_make: bool) -> None:
    events = home / f"many-keys-{keys}"
    events.mkdir(parents=True, exist_ok=True)
    with cluster.embedded(events) as client:
        if _made(client) != keys:
            make_events(client, TOPIC, keys, SMALL_BYTES, partial(_frame, keys, step))
        if only_make:
            return
        with tempfile.TemporaryDirectory(dir=home, prefix="many-keys-") as name:
            folder, reached = Path(name), 0.0
            for each in _steps(client, folder, keys, step, most_s):
                print(json.dumps(each), flush=True)
                reached = each["keys"]
            on_disk = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
            print(json.dumps({"keys": reached, "of": keys, "disk_mb": on_disk >> 20}))


def _made(client: Path) -> int:
    """How many events are there."""
    admin = cluster.admin(client)
    partitions = admin.partition_counts([TOPIC]).get(TOPIC, 0)
    return sum(admin.end_offsets([(TOPIC, partition) for partition in range(partitions)]).values())


def _frame(keys: int, step: int, start: int, stop: int, event_bytes: int) -> pl.DataFrame:
    """``event_frame``, which says each ``step`` events how far it is."""
    if start % step == 0:
        print(f"making events: {start:,} of {keys:,}", file=sys.stderr, flush=True)
    return event_frame(start, stop, event_bytes, keys)


def _steps(client: Path, folder: Path, keys: int, step: int, most_s: float) -> Iterator[dict[str, int | float]]:
    """Run the application for ``most_s`` at most; yields what each step took, and at last what it has reached.

    Raises:
        BenchError: It ended before it had all keys.
    """
    warehouse = folder_at(folder / "warehouse")
    command = [sys.executable, "-m", "bench.weir_side", "bench.apps:sum_per_key_many", str(folder), str(client)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, preexec_fn=end_with_parent())
    began_s, before_s, before, peak = time.monotonic(), 0.0, 0, 0
    try:
        while before < keys and before_s < most_s:
            is_over = process.poll() is not None
            peak = max(peak, tree_memory(process.pid))
            commit = newest_commit(warehouse, APPLICATION)
            read = sum(task.totals.get("records_in", 0) for task in commit.tasks.values()) if commit else 0
            now_s = time.monotonic() - began_s
            if read >= min(keys, before + step) or now_s >= most_s:
                yield {
                    "keys": read,
                    "seconds": round(now_s, 1),
                    "keys_a_second": round((read - before) / (now_s - before_s)),
                    "peak_mb": peak >> 20,
                }
                before_s, before, peak = now_s, read, 0
            elif is_over:
                raise BenchError(f"Weir ended with code {process.returncode} after {read:,} of {keys:,} keys")
            time.sleep(LOOK_S)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=50_000_000)
    parser.add_argument("--step", type=int, default=5_000_000, help="how many keys a line stands for")
    parser.add_argument("--seconds", type=float, default=270.0, help="the longest that a run takes")
    parser.add_argument("--make", action="store_true", help="make the events and leave them there for runs to come")
    parser.add_argument("--dir", type=Path, default=Path(".weir"), help="the folder for its files")
    given = parser.parse_args()
    main(given.keys, given.step, given.seconds, given.dir.absolute(), only_make=given.make)
