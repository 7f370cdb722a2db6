"""Headers of single records of a topic partition that is read without them: dead letters have them, too.

They are read once more, by a reader of its own with little memory, in runs of records that are near each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import polars as pl
from confluent_kafka import KafkaException

from weir.infra.kafka.columns import record_schema
from weir.infra.kafka.raw_records import OffsetGoneError, RawRecords

log = logging.getLogger(__name__)

LITTLE_MEMORY: Mapping[str, object] = {
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 512,
    "fetch.max.bytes": 1_000_000,
    "max.partition.fetch.bytes": 500_000,
}
"""Properties of the reader."""
RUN_RECORDS = 1_000
"""Records that are no farther apart are read together, and so many are read at least: more may be asked for soon."""
KEPT_S = 30.0
"""How long the reader stays open after it was used, once its task has nothing to do."""
_READ_BYTES = 8 << 20
_COLUMNS = ("offset", "headers")


class Reader(Protocol):
    """A ``PartitionReader`` with headers."""

    topic: str
    partition: int

    def read(self, start: int, end: int, *, max_bytes: int) -> RawRecords: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class RecordHeaders:
    """The headers; not to be used by several threads."""

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open_reader = open_reader
        self._reader: Reader | None = None
        self._used_s = 0.0
        self._start = self._end = 0
        """What was read last, as far as it is kept."""
        self._kept = record_schema(with_headers=True).to_frame().select(_COLUMNS)

    def of(self, offsets: Sequence[int]) -> pl.DataFrame:
        """The columns ``offset`` and ``headers`` of the records at ``offsets``, which ascend; what is gone is left out,
        and so is what does not come now, with a warning."""
        found = [self._kept.clear()]
        try:
            for run in _runs(offsets):
                if not (self._start <= run[0] and run[-1] < self._end):
                    self._read(run)
                found.append(self._kept.filter(self._kept.get_column("offset").is_in(run)))
        except (KafkaException, TimeoutError) as error:
            log.warning("dead letters get no headers: %s", error)
        return pl.concat(found)

    def close_unused(self) -> None:
        """Close the reader if it was not used for ``KEPT_S``."""
        if self._reader is not None and time.monotonic() - self._used_s > KEPT_S:
            self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def _read(self, run: Sequence[int]) -> None:
        if self._reader is None:
            self._reader = self._open_reader()
        self._kept, self._start, self._end = self._kept.clear(), run[0], run[0]
        try:
            self._kept = pl.concat([self._kept, *self._parts(self._reader, run)])
        except BaseException:
            self._end = self._start  # nothing is kept
            raise
        finally:
            self._reader.stop()
            self._used_s = time.monotonic()

    def _parts(self, reader: Reader, run: Sequence[int]) -> Iterator[pl.DataFrame]:
        while self._end <= run[-1]:
            try:
                raw = reader.read(self._end, max(run[0] + RUN_RECORDS, run[-1] + 1), max_bytes=_READ_BYTES)
            except OffsetGoneError:
                self._end = next((offset for offset in run if offset > self._end), run[-1] + 1)
                continue
            if raw.next_offset == self._end:
                raise TimeoutError(f"{reader.topic}-{reader.partition}: nothing comes from offset {self._end} on")
            self._end = raw.next_offset
            yield raw.frame.select(_COLUMNS)


def _runs(offsets: Sequence[int]) -> list[list[int]]:
    """``offsets`` without the gaps that are not worth reading."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and offset - runs[-1][-1] <= RUN_RECORDS:
            runs[-1].append(offset)
        else:
            runs.append([offset])
    return runs
