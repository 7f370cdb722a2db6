"""What a backfill reads of global tables: their topics as they were when it began, kept in the shadow's folder
(docs/backfill.md, 20).

Brokers may drop records that newer ones of the same key have replaced, so the same offsets can give fewer rows later.
The kept records do not change: every worker, and a driver that reads on much later, has the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from io import BytesIO
from typing import Protocol

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.backfill.errors import NoCutError
from weir.pipelines.backfill.files import SliceRecords
from weir.pipelines.backfill.ranges import Ranges
from weir.pipelines.backfill.shadow import KEPT
from weir.pipelines.cluster import Cluster
from weir.pipelines.serdes.headers import HEADERS_TYPE
from weir.pipelines.serdes.source import FetchedRecords
from weir.pipelines.tasks.ahead import Reader
from weir.pipelines.tasks.global_table import READ_BYTES, records_of
from weir.state.storage.contract import Folder

_ENDING = ".arrow"


def table_ranges(application: Application, cluster: Cluster | None) -> Ranges:
    """The offsets from each partition's first record to where it ends now, of the topics of global tables; ``cluster``
    may be None for a program without any.

    Raises:
        NoCutError: A topic does not exist.
    """
    topics = [table.source.topic for table in application.topology.global_tables]
    if not topics or cluster is None:
        return {}
    counts = cluster.partition_counts(topics)
    if missing := [topic for topic in topics if topic not in counts]:
        raise NoCutError(application.id, f"there is no topic {missing[0]!r}; create it first")
    wanted = [(topic, partition) for topic in topics for partition in range(counts[topic])]
    begins, ends = cluster.beginning_offsets(wanted), cluster.end_offsets(wanted)
    ranges: Ranges = {}
    for topic, partition in wanted:
        begin = begins[topic, partition]
        ranges.setdefault(topic, {})[partition] = begin, max(begin, ends[topic, partition])
    return ranges


class TopicReader(Reader, Protocol):
    """Reads one topic partition, and is closed afterwards."""

    def close(self) -> None: ...


def keep(
    folder: Folder,
    ranges: Ranges,
    reader_of: Callable[[str, int], TopicReader],
    on_step: Callable[[str], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Copy the records of ``ranges`` into a shadow's ``folder``; False if it was stopped before the end.

    Raises:
        TimeoutError: The brokers return nothing for half a minute.
    """
    for topic, partitions in ranges.items():
        for partition, (begin, end) in partitions.items():
            at, reader = begin, reader_of(topic, partition)
            read = partial(_read, reader)
            with closing(reader):
                for raw, following in records_of(topic, partition, begin, end, read):
                    if is_stopped():
                        return False
                    if following > at:
                        content = BytesIO()
                        raw.frame.write_ipc(content, compression="zstd")
                        _folder(folder, topic, partition).put(f"{at}-{following}{_ENDING}", content.getvalue())
                        on_step("part kept")
                    at = following
    return True


def _read(reader: Reader, topic: str, partition: int, at: int, end: int) -> FetchedRecords:
    return reader.read(at, end, until_time_ms=None, max_bytes=READ_BYTES)


class KeptReader:
    """Reads what was kept of a topic partition as ``weir.infra.kafka.reader.PartitionReader`` reads the partition, a
    file at a time."""

    def __init__(self, folder: Folder, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self._folder = _folder(folder, topic, partition)
        names = [file.name.removesuffix(_ENDING).partition("-") for file in self._folder.list()]
        self._parts = sorted((int(begin), int(end)) for begin, _, end in names)

    def read(
        self, start: int, end: int, *, until_time_ms: int | None, max_bytes: int, is_strict: bool = False
    ) -> SliceRecords:
        """Records of ``[start, end)``, as far as one file has them.

        Raises:
            FileNotFoundError: None has the record at ``start``.
        """
        begin, following = next((part for part in self._parts if part[0] <= start < part[1]), (start, start))
        content = self._folder.get(f"{begin}-{following}{_ENDING}")
        rows = pl.read_ipc(content).filter(pl.col("offset").is_between(start, end, closed="left"))
        return SliceRecords(self.topic, self.partition, rows, min(following, end), None)

    def take_back(self, records: object, offset: int) -> None:
        """Reading takes nothing out of the files."""

    def headers(self, offsets: Sequence[int]) -> pl.DataFrame:
        """They are not kept."""
        return pl.DataFrame(schema={"offset": pl.Int64(), "headers": HEADERS_TYPE})

    def connect(self) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""


def _folder(shadow: Folder, topic: str, partition: int) -> Folder:
    return shadow / KEPT / f"{topic}-{partition}"
