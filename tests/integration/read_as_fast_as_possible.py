"""Reads a store under both isolation levels for some seconds; prints how many reads and how many states it saw.

Exits with 1 when a committed total went back: the application only adds, so that would be a read of what was undone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from weir.state.engine.views import open_reader
from weir.state.types import IsolationLevel


def events(value: bytes) -> int:
    """The count in a row of the store ``sums``: its last fixed-width column."""
    return int.from_bytes(value[-8:], "little", signed=True)


def read(folder: Path, isolation: IsolationLevel) -> tuple[int, bytes]:
    """All events counted, and the positions that belong to them."""
    with open_reader(folder, isolation) as reader:
        (positions,) = reader.get_many("_task", [b"positions"])
        return sum(events(value) for _, value in reader.scan("sums")), positions or b"\x80"


if __name__ == "__main__":
    folder, reads, states, newest = Path(sys.argv[1]), 0, set(), 0
    until = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until:
        for isolation in IsolationLevel:
            total, positions = read(folder, isolation)
            offsets = msgspec.msgpack.decode(positions, type=dict[str, dict[int, int]])
            if total != sum(sum(partitions.values()) for partitions in offsets.values()):
                print(f"{isolation} read {total} events at the positions {offsets}: torn")
                sys.exit(1)
            if isolation is IsolationLevel.READ_COMMITTED:
                if total < newest:
                    print(f"committed events went back from {newest} to {total}")
                    sys.exit(1)
                newest = total
                states.add(total)
            reads += 1
    print(reads, len(states))
