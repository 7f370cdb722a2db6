"""Which record makes which rows leave a suppression's buffer: a walk over the records of a batch (KIP-328).

The walk sees only places, times and sizes; the rows themselves are columns in ``suppress``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from weir.pipelines.errors import BufferFullError


class Held(NamedTuple):
    """A row in the buffer; rows sort in the order in which they leave it."""

    place_ms: int
    ts_ms: int
    key: bytes
    size: int
    ref: int
    """Which of the caller's rows it is."""


@dataclass(frozen=True, kw_only=True)
class BufferLimits:
    """When a buffer is full, and what happens then."""

    records: int | None = None
    bytes: int | None = None
    is_strict: bool = True
    """Whether a full buffer stops the run; else its oldest rows are forwarded."""

    def __bool__(self) -> bool:
        return self.records is not None or self.bytes is not None


@dataclass
class Walk:
    """The buffer while record after record changes it."""

    name: str
    limits: BufferLimits
    restarts: bool
    """Whether a key's place is the greatest time of its updates since it entered the buffer, not the least."""
    count: int
    size: int
    held: dict[bytes, Held]
    """Rows of the keys in the batch."""
    others: Iterator[Held]
    """Rows of all other keys, in order; consumed as far as they leave."""
    left: list[tuple[int, int, int]] = field(default_factory=list)
    """For each row that left the buffer, the record that made it leave, the row, and its place."""
    others_left: list[Held] = field(default_factory=list)

    def run(
        self,
        keys: Sequence[bytes],
        places: Sequence[int],
        times: Sequence[int],
        sizes: Sequence[int],
        due: Sequence[int],
    ) -> None:
        """Put records in, one after another; rows with places up to ``due`` leave.

        Raises:
            BufferFullError: The buffer is strict and has passed a limit.
        """
        held, queue = self.held, sorted(row[:3] for row in self.held.values())
        place_of = max if self.restarts else min
        other = next(self.others, None)
        for turn, (key, place, ts, size, due_ms) in enumerate(zip(keys, places, times, sizes, due, strict=True)):
            before = held.get(key)
            if before is None:
                self.count, self.size = self.count + 1, self.size + size
            else:
                self.size, place = self.size + size - before.size, place_of(place, before.place_ms)
            held[key] = Held(place, ts, key, size, turn)
            if before is None or before[:2] != (place, ts):
                heappush(queue, (place, ts, key))
            while (
                (is_full := self._is_full())
                or (queue and queue[0][0] <= due_ms)
                or (other is not None and other.place_ms <= due_ms)
            ):
                if queue and (other is None or queue[0] < other[:3]):
                    oldest = held.get(queue[0][2])
                    if oldest is None or oldest[:3] != queue[0]:  # updated or gone since it was queued
                        heappop(queue)
                        continue
                    heappop(queue)
                    if is_full and self.limits.is_strict and oldest.place_ms > due_ms:
                        raise BufferFullError(self.name, self.limits.records, self.limits.bytes)
                    del held[oldest.key]
                else:
                    assert other is not None  # the buffer is not empty
                    oldest = other
                    if is_full and self.limits.is_strict and oldest.place_ms > due_ms:
                        raise BufferFullError(self.name, self.limits.records, self.limits.bytes)
                    self.others_left.append(oldest)
                    other = next(self.others, None)
                self.left.append((turn, oldest.ref, oldest.place_ms))
                self.count, self.size = self.count - 1, self.size - oldest.size

    def _is_full(self) -> bool:
        records, size = self.limits.records, self.limits.bytes
        return (records is not None and self.count > records) or (size is not None and self.size > size)
