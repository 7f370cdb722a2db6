"""Decodes the raw records of a source topic into one typed frame, and names the records that could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl

from weir.pipelines.serdes.headers import HEADERS, HEADERS_TYPE, NO_HEADERS, headers_of
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import DecodedColumns, Serde, decoded
from weir.pipelines.serdes.timestamps import TimestampExtractor
from weir.state.frames import framed, repeated, with_series

RAW_SCHEMA = pl.Schema({"key": pl.Binary(), "value": pl.Binary(), "timestamp_ms": pl.Int64(), "offset": pl.Int64()})
"""Undecoded records of one topic partition; what a record lacks is null."""


class RawRecords(Protocol):
    """Records of one topic partition in offset order."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def frame(self) -> pl.DataFrame:
        """The records, with the columns of ``RAW_SCHEMA``; with their headers in ``headers``, if they were asked for
        and what is read can have any."""
        ...


class FetchedRecords(RawRecords, Protocol):
    """Records of one topic partition and where the next read starts."""

    @property
    def next_offset(self) -> int:
        """The offset after these records and after offsets without a record."""
        ...

    @property
    def next_time_ms(self) -> int | None:
        """The timestamp of the record there, if it is known."""
        ...


class DecodableSource(Protocol):
    """What decoding needs to know about a source; ``weir.pipelines.topology.nodes.SourceNode`` is one."""

    @property
    def key_serde(self) -> Serde: ...
    @property
    def value_serde(self) -> Serde: ...
    @property
    def key(self) -> RowType: ...
    @property
    def value(self) -> RowType: ...
    @property
    def timestamp(self) -> TimestampExtractor: ...
    @property
    def has_headers(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class BadRecord:
    """A record that could not be read or processed, and why.

    Of a row that came over a repartition the source record is not known: ``topic`` is then the repartition,
    ``partition`` the task's, ``offset`` the row's place among those of the epoch, and ``key`` and ``value`` are JSON.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    reason: str
    key: bytes | None = None
    value: bytes | None = None
    stage: str = "deserialization"
    """"deserialization", "processing", or "production" if a sink could not serialize what came of it."""
    operator: str | None = None
    """The node that failed; None for a record that could not be read."""
    trace: str | None = None
    """Python's traceback of the error; None for a record that could not be read, or that violates an expectation."""
    row: bytes | None = None
    """Of a row that came over a repartition, the row as an Arrow IPC file, from which it can be processed again."""
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    """None if they could not be read: the topic has lost the record, or no broker answers."""
    expectation: str | None = None
    """The expectation that it violates."""


@dataclass(frozen=True)
class Decoded:
    """A source's frame and what was left out of it."""

    frame: pl.DataFrame
    """Key columns, value columns, ``_ts`` Int64 ms, ``_partition`` Int32, ``_offset`` Int64, ``_deleted``
    Boolean; in offset order. A null key has all key columns null. The last is ``_headers``, if the source has them."""
    bad: list[BadRecord]
    """The records that could not be read, in offset order."""
    skipped: list[int] = field(default_factory=list)
    """Offsets of records that the source's timestamp extractor dropped."""


@dataclass(frozen=True)
class DecodedParts:
    """The keys and the values of records."""

    key: DecodedColumns
    value: DecodedColumns

    def first(self, rows: int) -> DecodedParts:
        """Those of the first ``rows`` records."""
        return DecodedParts(self.key.first(rows), self.value.first(rows))


def decode_parts(source: DecodableSource, raw: pl.DataFrame) -> DecodedParts:
    """Decode keys and values of the columns ``key`` and ``value``; raises what ``decoded`` raises."""
    return DecodedParts(
        decoded(source.key_serde, raw["key"], source.key), decoded(source.value_serde, raw["value"], source.value)
    )


def decode_source(
    source: DecodableSource,
    raw: RawRecords,
    *,
    partition_time_ms: int,
    now_ms: int,
    parts: DecodedParts | None = None,
) -> Decoded:
    """Decode ``raw`` by the source's serdes; bad records are left out of the frame, never raised.

    ``partition_time_ms`` and ``now_ms`` are passed to the timestamp extractor (``TimestampExtractor.extract``).
    ``parts`` are the keys and values of ``raw``, if they have been decoded.
    """
    rows = raw.frame.height
    parts = parts or decode_parts(source, raw.frame)
    key, value = parts.key, parts.value
    deleted = repeated("_deleted", False, rows, np.bool_)
    if value.absent:
        deleted = deleted.scatter(value.absent, True)
    frame = framed(
        [
            *key.columns,
            *value.columns,
            raw.frame["timestamp_ms"].alias("_ts"),
            repeated("_partition", raw.partition, rows, np.int32),
            raw.frame["offset"].alias("_offset"),
            deleted,
            *([_headers(raw.frame)] if source.has_headers else ()),
        ]
    )
    reasons = {index: f"value: {reason}" for index, reason in value.bad.items()}
    reasons |= {index: f"key: {reason}" for index, reason in key.bad.items()}
    event_times = source.timestamp.extract(frame, reasons.keys(), partition_time_ms, now_ms)
    frame = with_series(frame, event_times.times_ms.alias("_ts"))
    reasons |= event_times.bad
    if not (reasons or event_times.skipped):
        return Decoded(frame, [])
    bad = [_bad_record(raw, index, reasons[index]) for index in sorted(reasons)]
    keep = np.ones(rows, dtype=bool)
    keep[[*reasons, *event_times.skipped]] = False
    return Decoded(frame.filter(pl.Series(keep)), bad, raw.frame["offset"].gather(event_times.skipped).to_list())


def _bad_record(raw: RawRecords, index: int, reason: str) -> BadRecord:
    record = raw.frame.row(index, named=True)
    headers = headers_of(record.pop("headers")) if "headers" in record else None
    return BadRecord(topic=raw.topic, partition=raw.partition, reason=reason, headers=headers, **record)


def _headers(raw: pl.DataFrame) -> pl.Series:
    if "headers" in raw.columns:
        return raw.get_column("headers").alias(HEADERS)
    return NO_HEADERS.new_from_index(0, raw.height)


def source_schema(columns: pl.Schema, *, has_headers: bool = False) -> pl.Schema:
    """The schema in which sources and repartition edges deliver records with these columns."""
    return pl.Schema(
        {
            **columns,
            "_ts": pl.Int64(),
            "_partition": pl.Int32(),
            "_offset": pl.Int64(),
            "_deleted": pl.Boolean(),
            **({HEADERS: HEADERS_TYPE} if has_headers else {}),
        }
    )
