"""Reads an instance under read_committed as fast as it can until its standard input closes.

Prints each state it sees once per change: the number of rows, and their distinct values.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from weir.state.engine.views import open_reader
from weir.state.types import IsolationLevel

if __name__ == "__main__":
    folder, reads, before = Path(sys.argv[1]), 0, None
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        with open_reader(folder, IsolationLevel.READ_COMMITTED) as reader:
            rows = list(reader.scan("s"))
            seen = (len(rows), sorted({value.decode() for _, value in rows}), reader.count("s"))
        reads += 1
        if seen != before:
            print(*seen[:1], seen[2], ",".join(seen[1]))
            before = seen
    print("reads", reads)
