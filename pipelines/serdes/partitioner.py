"""Kafka's default partitioner: murmur2 over the key's bytes, so that a producer and Weir agree on a key's partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import polars as pl

from weir.state.frames import picked, with_series

_M = np.uint32(0x5BD1E995)
_SEED = 0x9747B28C
FEW = 1_000
"""Up to about this many keys are hashed faster than the distinct ones among them are found."""


def murmur2(keys: Sequence[bytes]) -> np.ndarray:
    """Kafka's murmur2 of each key as uint32; keys of one length are hashed together."""
    hashes = np.empty(len(keys), dtype=np.uint32)
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    for length in np.unique(lengths):
        where = np.flatnonzero(lengths == length)
        table = np.frombuffer(b"".join(keys[index] for index in where.tolist()), np.uint8).reshape(len(where), length)
        hashes[where] = _murmur2_of_length(table, int(length))
    return hashes


def _murmur2_of_length(table: np.ndarray, length: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        h = np.full(len(table), np.uint32(_SEED ^ length), dtype=np.uint32)
        whole = length // 4
        words = np.ascontiguousarray(table[:, : whole * 4]).view("<u4")
        for column in range(whole):
            k = words[:, column] * _M
            k ^= k >> np.uint32(24)
            h = h * _M ^ k * _M
        rest = table[:, whole * 4 :].astype(np.uint32)
        for byte in range(rest.shape[1]):
            h ^= rest[:, byte] << np.uint32(8 * byte)
        if rest.shape[1]:
            h = h * _M
        h ^= h >> np.uint32(13)
        h = h * _M
        return h ^ h >> np.uint32(15)


def key_bytes(keys: pl.DataFrame) -> list[bytes]:
    """Keys as a producer would write them: one string as UTF-8, one integer as eight big-endian bytes, bytes as they
    are, and anything else as a JSON array of the columns."""
    if keys.width == 1:
        column = keys.to_series()
        if column.dtype == pl.String():
            return column.cast(pl.Binary()).to_list()
        if column.dtype == pl.Binary():
            return column.to_list()
        if column.dtype == pl.Int64():
            packed = column.to_numpy().astype(">i8").tobytes()
            return [packed[at : at + 8] for at in range(0, len(packed), 8)]
    encode = msgspec.json.Encoder().encode
    return [encode(row) for row in keys.rows()]


def key_format(columns: pl.Schema) -> str:
    """The name of the serde that writes keys of these columns as ``key_bytes`` does."""
    names = {pl.String(): "String", pl.Binary(): "Bytes", pl.Int64(): "Int64"}
    return names.get(next(iter(columns.values())), "Json") if len(columns) == 1 else "Json"


def partition_of(
    frame: pl.DataFrame,
    key_columns: Sequence[str],
    count: int,
    bytes_of: Callable[[pl.DataFrame], Sequence[bytes]] = key_bytes,
) -> pl.Series:
    """The target partition of each row, Int32 in ``[0, count)``, by the key's bytes; of many rows only the distinct
    keys are hashed."""
    keys = picked(frame, key_columns)
    if keys.height <= FEW:
        return _targets(bytes_of(keys), count)
    distinct = keys.unique(maintain_order=True)
    distinct = with_series(distinct, _targets(bytes_of(distinct), count))
    joined = keys.join(distinct, on=list(key_columns), how="left", nulls_equal=True, maintain_order="left")
    return joined.get_column("_target")


def _targets(keys: Sequence[bytes], count: int) -> pl.Series:
    hashes = murmur2(keys) & np.uint32(0x7FFFFFFF)
    return pl.Series("_target", (hashes % count).astype(np.int32))
