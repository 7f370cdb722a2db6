"""Reads and decodes what a task will read next, on a thread of its own, while the task works on what it has read.

That helps where a core is free. Nothing depends on it: the next epoch reads as always, what was read ahead being there
already, and takes the columns from here only if they were made of the very bytes that it has read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from weir.pipelines.serdes.source import DecodedParts, FetchedRecords, RawRecords, decode_parts
from weir.pipelines.topology import SourceNode

log = logging.getLogger(__name__)

LEAST_RECORDS = 5_000
"""Nothing is read ahead after an epoch that read fewer of a topic partition: the task keeps up."""
MOST_BYTES = 64 << 20
"""Nothing more is read ahead while a slot holds so much that nobody has taken."""


class Reader(Protocol):
    """Reads one topic partition by offsets; implemented by ``weir.infra.kafka.reader.PartitionReader``."""

    def read(
        self, start: int, end: int, *, until_time_ms: int | None, max_bytes: int, is_strict: bool = False
    ) -> FetchedRecords: ...

    def take_back(self, records: Any, offset: int) -> None:
        """Keep the records of the last ``read`` from ``offset`` on for the next one, which starts there."""
        ...

    def headers(self, offsets: Sequence[int]) -> pl.DataFrame:
        """The columns ``offset`` and ``headers`` of these records, ascending, as far as they have any and can be read;
        may be called while another thread reads."""
        ...


@dataclass(frozen=True)
class Next:
    """What is read next of a topic partition, provided that as much comes again."""

    reader: Reader
    source: SourceNode
    start: int
    records: int
    max_bytes: int


@dataclass(frozen=True)
class _Found:
    """Raw records, and what they were decoded to."""

    raw: pl.DataFrame
    parts: DecodedParts


class ReadAhead:
    """The thread, and what it has found; not to be used by several threads. While it reads, nothing else may use the
    readers that it was given."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reads-ahead")
        self._reading: Future[None] | None = None
        self._found: dict[tuple[str, int], _Found] = {}

    def begin(self, what: Sequence[Next]) -> None:
        """Read and decode ``what`` while the caller does something else."""
        self.wait()
        held = sum(found.raw.estimated_size() for found in self._found.values())
        if held < MOST_BYTES and (worthwhile := [each for each in what if each.records >= LEAST_RECORDS]):
            self._reading = self._thread.submit(self._read, worthwhile)

    def wait(self) -> None:
        """Return once nothing is being read."""
        if self._reading is not None:
            self._reading.result()
            self._reading = None

    def take(self, source: SourceNode, raw: RawRecords) -> DecodedParts | None:
        """What ``raw`` was decoded to, if it is the beginning of what was read ahead."""
        found = self._found.pop((raw.topic, raw.partition), None)
        rows = raw.frame.height
        if found is None or found.raw.height < rows or not found.raw[:rows].equals(raw.frame):
            return None
        return found.parts.first(rows)

    def _read(self, what: Sequence[Next]) -> None:
        for each in what:
            try:
                raw = each.reader.read(
                    each.start, each.start + each.records, until_time_ms=None, max_bytes=each.max_bytes
                )
                each.reader.take_back(raw, each.start)
                if raw.frame.height:
                    self._found[raw.topic, raw.partition] = _Found(raw.frame, decode_parts(each.source, raw.frame))
            except Exception as error:  # whoever reads next meets it again, and knows what to do
                log.debug("nothing was read ahead of %s: %s", each.source.topic, error)
