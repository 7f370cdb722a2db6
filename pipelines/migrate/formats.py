"""How Kafka Streams lays out the keys and values of its stores in changelog topics.

All numbers are big-endian. A key-value store's key is the key's bytes; a window store's is the key, the window's start
(8 bytes) and a sequence number (4 bytes); a session store's is the key, the session's end and its start. The DSL's
timestamped stores write plain values, whose timestamps are the records'; other stores may put 8 bytes of timestamp
before the value, as all of them do on disk. A versioned store writes a record per version, valid from the record's
timestamp; a tombstone is a version, too. Joins and suppressions are in ``join_formats`` and ``suppression_format``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.migrate.serdes import Part
from weir.pipelines.serdes.headers import HEADERS_TYPE
from weir.state.stores.specs import GONE, HELD_HEADERS, VALID_FROM
from weir.state.types import StoreSpec

TIME_BYTES, SEQUENCE_BYTES = 8, 4
DAY_MS = 86_400_000
"""How much longer than its store Kafka Streams keeps a changelog (windowstore.changelog.additional.retention.ms)."""
RECORDS = pl.Schema({"key": pl.Binary(), "value": pl.Binary(), "timestamp_ms": pl.Int64()})
"""Records to be written: no value deletes the key, no timestamp is that of the writing."""


class ChangelogFormat(Protocol):
    """The records of one store's changelog."""

    @property
    def store(self) -> StoreSpec: ...

    @property
    def key(self) -> Part:
        """The part of a record's key that decides its partition."""
        ...

    @property
    def keeps_versions(self) -> bool:
        """Whether a record replaces only those of the same key and timestamp; else all earlier ones of its key."""
        ...

    @property
    def is_timed(self) -> bool:
        """Whether the store keeps the records' timestamps."""
        ...

    @property
    def keeps_places(self) -> bool:
        """Whether a restored record takes the place of its key's earlier one unless a deletion is between them."""
        ...

    @property
    def config(self) -> Mapping[str, str]:
        """The topic's settings, those that Kafka Streams creates it with."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The headers of each record."""
        ...

    def decode(self, rows: pl.DataFrame, where: str) -> pl.DataFrame:
        """Records with values (as ``RAW_SCHEMA``) as the store's columns, ``_ts`` (Int64, ms) and ``_order``, the order
        in which they were written; one record may hold several rows.

        Raises:
            MigrationError: A record is not in the format; ``where`` names the topic and partition.
        """
        ...

    def encode(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The store's rows (its columns and ``_ts``) as ``RECORDS``.

        Raises:
            MigrationError: The serdes cannot write a row.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class KeyedFormat:
    """What most formats share: key columns with times around them, value columns in one serde."""

    store: StoreSpec
    key: Part
    value: Part
    has_timestamps: bool = False
    keeps_versions = False
    keeps_places = False
    headers: Sequence[tuple[str, bytes]] = ()

    @property
    def is_timed(self) -> bool:
        return not self.has_timestamps  # else the values have them

    @property
    def config(self) -> Mapping[str, str]:
        return {"cleanup.policy": "compact"}

    def decode(self, rows: pl.DataFrame, where: str) -> pl.DataFrame:
        keys, times = self._key_columns(rows, where)
        values, written = self._values(rows, where)
        found = pl.DataFrame([*keys, *values, written.alias("_ts"), rows["offset"].alias("_order")])
        found = found.with_columns(pl.lit(None, HEADERS_TYPE).alias(HELD_HEADERS))
        return self._whole(found.with_columns(times)).cast(self.store.key)

    def encode(self, rows: pl.DataFrame) -> pl.DataFrame:
        values: list[bytes | None] = list(self.value.encode(rows))
        if self.has_timestamps:
            times = rows["_ts"].to_list()
            values = [struct.pack(">q", time) + (value or b"") for time, value in zip(times, values, strict=True)]
        return records(self._key_bytes(rows), values, rows["_ts"].to_list())

    def _key_columns(self, rows: pl.DataFrame, where: str) -> tuple[list[pl.Series], list[pl.Series]]:
        return self.key.decode(rows["key"], rows["offset"], where), []

    def _key_bytes(self, rows: pl.DataFrame) -> list[bytes]:
        return self.key.encode(rows)

    def _values(self, rows: pl.DataFrame, where: str) -> tuple[list[pl.Series], pl.Series]:
        values, times = rows["value"], rows["timestamp_ms"]
        if self.has_timestamps:
            require_length(values, TIME_BYTES, rows, where, "value after a timestamp")
            times, values = times_of(values.bin.slice(0, TIME_BYTES)), values.bin.slice(TIME_BYTES)
        return self.value.decode(values, rows["offset"], where), times

    def _whole(self, found: pl.DataFrame) -> pl.DataFrame:
        return found.select(*self.store.key, *self.store.value, "_ts", "_order")


@dataclass(frozen=True, kw_only=True)
class KeyValueFormat(KeyedFormat):
    """Tables, and aggregations without windows."""


@dataclass(frozen=True, kw_only=True)
class WindowFormat(KeyedFormat):
    """Aggregations over time windows of ``size_ms``."""

    size_ms: int
    retention_ms: int

    @property
    def config(self) -> Mapping[str, str]:
        return windowed_config(self.retention_ms)

    def _key_columns(self, rows: pl.DataFrame, where: str) -> tuple[list[pl.Series], list[pl.Series]]:
        keys, (start,) = split_key(rows, (TIME_BYTES,), SEQUENCE_BYTES, where, "key of a window store")
        bounds = [start.alias("window_start"), (start + self.size_ms).alias("window_end")]
        return self.key.decode(keys, rows["offset"], where), bounds

    def _key_bytes(self, rows: pl.DataFrame) -> list[bytes]:
        starts = rows["window_start"].dt.timestamp("ms").to_list()
        return [key + struct.pack(">qi", start, 0) for key, start in zip(self.key.encode(rows), starts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class SessionFormat(KeyedFormat):
    """Aggregations over sessions. A session store keeps no timestamps: a session's is its end."""

    retention_ms: int

    @property
    def is_timed(self) -> bool:
        return False

    @property
    def config(self) -> Mapping[str, str]:
        return windowed_config(self.retention_ms)

    def _key_columns(self, rows: pl.DataFrame, where: str) -> tuple[list[pl.Series], list[pl.Series]]:
        keys, (end, start) = split_key(rows, (TIME_BYTES, TIME_BYTES), 0, where, "key of a session store")
        bounds = [start.alias("window_start"), end.alias("window_end"), end.alias("_ts")]
        return self.key.decode(keys, rows["offset"], where), bounds

    def _key_bytes(self, rows: pl.DataFrame) -> list[bytes]:
        return session_keys(self.key.encode(rows), rows)


@dataclass(frozen=True, kw_only=True)
class VersionedFormat(KeyedFormat):
    """Versioned tables: every record counts, deletions too."""

    history_ms: int
    keeps_versions = True

    @property
    def config(self) -> Mapping[str, str]:
        return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(self.history_ms + DAY_MS)}

    def decode(self, rows: pl.DataFrame, where: str) -> pl.DataFrame:
        """The versions that the history holds once all records have been put, deletions among them."""
        gone = rows["value"].is_null()
        keys = self.key.decode(rows["key"], rows["offset"], where)
        kept = rows.filter(~gone)
        values = pl.DataFrame(self.value.decode(kept["value"], kept["offset"], where))
        at = pl.select(pl.when(~gone).then((~gone).cum_sum() - 1)).to_series()
        found = pl.DataFrame(
            [
                *keys,
                *(values[name].gather(at) for name in values.columns),
                rows["timestamp_ms"].alias(VALID_FROM),
                gone.alias(GONE),
                rows["timestamp_ms"].alias("_ts"),
                rows["offset"].alias("_order"),
            ]
        ).sort("_order")
        if found.is_empty():
            return self._whole(found).cast(self.store.key)
        is_in_time = found["_ts"] >= found["_ts"].cum_max() - self.history_ms
        by = [name for name in self.store.key if name != VALID_FROM]
        found = found.filter(is_in_time).unique([*by, VALID_FROM], keep="last", maintain_order=True)
        replaced = found.sort(*by, VALID_FROM).with_columns(pl.col("_ts").shift(-1).over(by).alias("_replaced"))
        oldest_ms = int(rows["timestamp_ms"].max()) - self.history_ms  # type: ignore[arg-type]
        live = replaced.filter(
            (pl.col("_replaced").is_null() | (pl.col("_replaced") >= oldest_ms))
            & ~(pl.col(GONE) & (pl.col("_ts") < oldest_ms))
        )
        return self._whole(live.sort("_order")).cast(self.store.key)

    def encode(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.sort(VALID_FROM)
        gone = rows[GONE].to_list()
        values = iter(self.value.encode(rows.filter(~pl.col(GONE))))
        return records(
            self.key.encode(rows),
            [None if is_gone else next(values) for is_gone in gone],
            rows[VALID_FROM].dt.timestamp("ms").to_list(),
        )


def records(keys: Sequence[bytes], values: Sequence[bytes | None], times: Sequence[int | None]) -> pl.DataFrame:
    """As ``RECORDS``."""
    return pl.DataFrame({"key": keys, "value": values, "timestamp_ms": times}, schema=RECORDS)


def windowed_config(retention_ms: int) -> Mapping[str, str]:
    """The settings of a window or session store's changelog."""
    return {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms + DAY_MS)}


def split_key(
    rows: pl.DataFrame, times: Sequence[int], rest: int, where: str, what: str
) -> tuple[pl.Series, list[pl.Series]]:
    """The keys of ``rows`` without the times after them, and these times (Int64); ``rest`` more bytes are dropped."""
    keys, length = rows["key"], sum(times) + rest
    require_length(keys, length, rows, where, what)
    tails, at, found = keys.bin.tail(length), 0, []
    for width in times:
        found.append(times_of(tails.bin.slice(at, width)))
        at += width
    return rows.select(pl.col("key").bin.head(pl.col("key").bin.size() - length)).to_series(), found


def session_keys(keys: Sequence[bytes], rows: pl.DataFrame) -> list[bytes]:
    """Keys with the end and start of the sessions of ``rows`` after them."""
    ends, starts = (rows[name].dt.timestamp("ms").to_list() for name in ("window_end", "window_start"))
    return [key + struct.pack(">qq", end, start) for key, end, start in zip(keys, ends, starts, strict=True)]


def times_of(eight_bytes: pl.Series) -> pl.Series:
    return eight_bytes.bin.reinterpret(dtype=pl.Int64(), endianness="big")


def require_length(items: pl.Series, wanted: int, rows: pl.DataFrame, where: str, what: str) -> None:
    """Raises ``MigrationError`` for the first of ``items`` with fewer bytes than ``wanted``."""
    short = (items.bin.size() < wanted).arg_true()
    if len(short):
        raise MigrationError(
            f"{where}, offset {rows['offset'][short[0]]}: {items[short[0]]!r} is too short for a "
            f"{what}; check the store's kind and serdes"
        )
