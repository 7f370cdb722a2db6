"""The changelogs of joins in Kafka Streams: the two sides of a join of streams, its records without a match, and the
subscriptions of a join by foreign key.

A side's key is the key, the record's timestamp (8 bytes) and a sequence number (4 bytes). A record without a match has
its timestamp, a byte that is 1 on the left side, and the key as its key; its value is the list of all such records:
the byte 1, their number, and each with its length, the side once more, and its value. A subscription's key is the
foreign key with its length before it, then the primary key; its value is the version (1), an instruction, the hash of
the left row's bytes (Murmur3, 128 bits), the primary key, and the partition that it came from.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.migrate.formats import (
    SEQUENCE_BYTES,
    TIME_BYTES,
    KeyedFormat,
    records,
    require_length,
    split_key,
    times_of,
    windowed_config,
)
from weir.pipelines.migrate.serdes import Part
from weir.pipelines.operators.foreign_key import SENDER
from weir.pipelines.serdes.shapes import TIME
from weir.state.types import StoreSpec

VARIABLE_LENGTHS = 1
"""How a list begins whose items have lengths of their own."""
ANSWER_IF_FOUND = 2
"""The instruction of a subscription to a row that may not exist."""
LEFT = "left:"
_MASK = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class JoinSideFormat(KeyedFormat):
    """One side of a join of streams. Records of one key and timestamp differ in their sequence numbers, which begin
    again with every start; ``_seq`` is the order of writing."""

    retention_ms: int

    @property
    def config(self) -> Mapping[str, str]:
        return windowed_config(self.retention_ms)

    def _key_columns(self, rows: pl.DataFrame, where: str) -> tuple[list[pl.Series], list[pl.Series]]:
        keys, (time,) = split_key(rows, (TIME_BYTES,), SEQUENCE_BYTES, where, "key of a join's store")
        columns = [time.alias("_at"), time.alias("_ts"), rows["offset"].alias("_seq")]
        return self.key.decode(keys, rows["offset"], where), columns

    def _key_bytes(self, rows: pl.DataFrame) -> list[bytes]:
        numbers = rows["_seq"].to_list()
        return [
            key + struct.pack(">qI", time, number & 0x7FFFFFFF)
            for key, time, number in zip(self.key.encode(rows), rows["_ts"].to_list(), numbers, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class WaitingFormat:
    """Records of a join of streams that wait for a match. ``_seq`` counts those of one key, time and side."""

    store: StoreSpec
    key: Part
    left: Part
    right: Part
    is_timed = False
    keeps_versions = False
    keeps_places = False
    headers: Sequence[tuple[str, bytes]] = ()

    @property
    def config(self) -> Mapping[str, str]:
        return {"cleanup.policy": "compact"}

    def decode(self, rows: pl.DataFrame, where: str) -> pl.DataFrame:
        require_length(rows["key"], TIME_BYTES + 1, rows, where, "key of a join's waiting records")
        lists = [
            _list_items(value, offset, where)
            for value, offset in zip(rows["value"].to_list(), rows["offset"].to_list(), strict=True)
        ]
        each = pl.DataFrame(
            {
                "key": rows["key"],
                "offset": rows["offset"],
                "item": pl.Series(lists, dtype=pl.List(pl.Binary())),
                "_seq": pl.Series([list(range(len(items))) for items in lists], dtype=pl.List(pl.Int64())),
            }
        ).explode("item", "_seq", empty_as_null=False)
        is_left = each.select(pl.col("key").bin.slice(TIME_BYTES, 1) == b"\x01").to_series()
        time = times_of(each["key"].bin.slice(0, TIME_BYTES))
        keys = self.key.decode(each["key"].bin.slice(TIME_BYTES + 1), each["offset"], where)
        found = pl.DataFrame(
            [
                *keys,
                time.cast(TIME).alias("_at"),
                is_left.alias("_is_left"),
                each["_seq"],
                time.alias("_ts"),
                each["offset"].alias("_order"),
            ]
        )
        for part, mine in ((self.left, is_left), (self.right, ~is_left)):
            items = each.filter(mine)["item"].bin.slice(1)
            values = pl.DataFrame(part.decode(items, each.filter(mine)["offset"], where))
            at = pl.select(pl.when(mine).then(mine.cum_sum() - 1)).to_series()
            found = found.hstack([values[name].gather(at) for name in values.columns])
        return found.select(*self.store.key, *self.store.value, "_ts", "_order")

    def encode(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.sort(*self.store.key)
        keys = [
            struct.pack(">q?", time, is_left) + key
            for time, is_left, key in zip(
                rows["_ts"].to_list(), rows["_is_left"].to_list(), self.key.encode(rows), strict=True
            )
        ]
        parts = {
            is_left: iter(part.encode(rows.filter(pl.col("_is_left") == is_left)))
            for is_left, part in ((True, self.left), (False, self.right))
        }
        lists: dict[bytes, list[bytes]] = {}
        times: dict[bytes, int] = {}
        for key, is_left, time in zip(keys, rows["_is_left"].to_list(), rows["_ts"].to_list(), strict=True):
            lists.setdefault(key, []).append(bytes([is_left]) + next(parts[is_left]))
            times[key] = time
        values = [
            struct.pack(">bi", VARIABLE_LENGTHS, len(items))
            + b"".join(struct.pack(">i", len(item)) + item for item in items)
            for items in lists.values()
        ]
        return records(list(lists), values, list(times.values()))


@dataclass(frozen=True, kw_only=True)
class SubscriptionFormat:
    """Subscriptions, to be written only: Weir makes its own from the two tables."""

    store: StoreSpec
    key: Part
    """The foreign key."""
    primary_key: Part
    left_value: Part
    """Writes the left rows, whose bytes are hashed: columns beside those of the store, with ``LEFT`` before their
    names."""
    is_timed = True
    keeps_versions = False
    keeps_places = False
    headers: Sequence[tuple[str, bytes]] = ()

    @property
    def config(self) -> Mapping[str, str]:
        return {"cleanup.policy": "compact"}

    def decode(self, rows: pl.DataFrame, where: str) -> pl.DataFrame:
        raise NotImplementedError

    def encode(self, rows: pl.DataFrame) -> pl.DataFrame:
        keys, values = [], []
        for foreign, primary, value, sender in zip(
            self.key.encode(rows),
            self.primary_key.encode(rows),
            self.left_value.encode(rows),
            rows[SENDER].to_list(),
            strict=True,
        ):
            keys.append(struct.pack(">i", len(foreign)) + foreign + primary)
            values.append(bytes([1, ANSWER_IF_FOUND]) + murmur3(value) + primary + struct.pack(">i", sender))
        return records(keys, values, rows["_ts"].to_list())


def murmur3(data: bytes, seed: int = 104_729) -> bytes:
    """Murmur3 x64 with 128 bits, and the seed of Kafka Streams."""
    first, second = seed, seed
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    whole = len(data) // 16 * 16
    for low, high in struct.iter_unpack("<QQ", data[:whole]):
        first ^= _rotated(low * c1 & _MASK, 31) * c2 & _MASK
        first = ((_rotated(first, 27) + second) * 5 + 0x52DCE729) & _MASK
        second ^= _rotated(high * c2 & _MASK, 33) * c1 & _MASK
        second = ((_rotated(second, 31) + first) * 5 + 0x38495AB5) & _MASK
    low, high = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    second ^= _rotated(high * c2 & _MASK, 33) * c1 & _MASK
    first ^= _rotated(low * c1 & _MASK, 31) * c2 & _MASK
    first, second = first ^ len(data), second ^ len(data)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    first, second = _mixed(first), _mixed(second)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    return struct.pack(">QQ", first, second)


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & _MASK


def _mixed(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33


def _list_items(value: bytes, offset: int, where: str) -> list[bytes]:
    """The items of a serialized list."""
    try:
        kind, count = struct.unpack_from(">bi", value)
        at, items = 5, []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", value, at)
            items.append(value[at + 4 : at + 4 + length])
            at += 4 + length
        if kind != VARIABLE_LENGTHS or at != len(value):
            raise ValueError("its lengths do not add up")
    except (struct.error, ValueError) as error:
        raise MigrationError(
            f"{where}, offset {offset}: this is not a list of a join's waiting records ({error}); check the store's "
            "name"
        ) from None
    return items
