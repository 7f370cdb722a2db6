"""A store's typed rows over the bytes of a session or view: gather keys, fetch, compute on columns, write.

Bytes and their order belong to ``weir.state.stores.codec``, transactions to ``weir.state.engine``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from operator import is_not
from typing import Any, cast

import numpy as np
import polars as pl

from weir.state.engine.contract import StateSession, StateView
from weir.state.frames import in_order, inverse
from weir.state.stores.codec import KeyCodec, RowCodec, codec
from weir.state.stores.long_keys import LONG_KEYS, long_key_hashes, shortened, whole
from weir.state.types import StoreSpec


class TypedStore:
    """One store as columns. Rows are the value columns and ``_ts`` (Int64, ms)."""

    def __init__(self, spec: StoreSpec, view: StateView) -> None:
        self.spec = spec
        self.rows = codec(RowCodec, spec.value)
        self._codec = codec(KeyCodec, spec.key, spec.kind)
        self._view = view
        self._long: dict[bytes, bytes] = {}

    def encode(self, frame: pl.DataFrame) -> list[bytes]:
        """The store's keys for the key columns of ``frame``, in the order of its rows; shortened if too long."""
        return self.hold(self.whole_keys(frame))

    def encode_sorted(self, frame: pl.DataFrame) -> tuple[list[bytes], np.ndarray]:
        """``encode`` in the order in which the store is read and written fastest, its own, and the row of each key."""
        keys, order = self._codec.encode_sorted(frame)
        return self.hold(keys), order

    def whole_keys(self, frame: pl.DataFrame) -> list[bytes]:
        """The keys of ``frame`` at full length, to compute bounds from."""
        return self._codec.encode(frame)

    def prefixes(self, frame: pl.DataFrame) -> list[bytes]:
        """For each row of ``frame``, the prefix of all whole keys with its first columns (key-value stores only)."""
        return self._codec.prefixes(frame)

    def decode(self, keys: Sequence[bytes]) -> pl.DataFrame:
        """The key columns of keys as the store holds them, in order."""
        return self._codec.decode(self.whole(keys))

    def hold(self, keys: Sequence[bytes]) -> list[bytes]:
        """Whole keys as the store holds them; the whole forms of shortened ones are written with their rows."""
        held, long = shortened(self.spec.name, keys)
        self._long |= long
        return held

    def whole(self, keys: Sequence[bytes]) -> list[bytes]:
        """The inverse of ``hold``, for keys that are in the store."""
        return whole(keys, partial(self._view.get_many, LONG_KEYS))

    def window_upper(self, start_ms: int) -> bytes:
        """The exclusive upper bound of all keys with ``window_start < start_ms`` (window stores only)."""
        return self._codec.window_upper(start_ms)

    def fetch(self, keys: Sequence[bytes]) -> pl.DataFrame:
        """Rows aligned with ``keys``: value columns, ``_ts``, ``_found`` (Boolean); null where not found."""
        values = self._view.get_many(self.spec.name, keys)
        return self.rows.decode(values).hstack([pl.Series("_found", _are_found(values))])

    def fetch_sorted(self, frame: pl.DataFrame) -> tuple[list[bytes], np.ndarray, pl.DataFrame]:
        """The keys of ``frame`` in the order of the store, the row of each, and what ``fetch`` gives for each row."""
        keys, order = self.encode_sorted(frame)
        return keys, order, in_order(self.fetch(keys), inverse(order))

    def has(self, keys: Sequence[bytes]) -> np.ndarray:
        """Which of ``keys`` have a row."""
        return _are_found(self._view.get_many(self.spec.name, keys))

    def write(self, keys: Sequence[bytes], rows: pl.DataFrame) -> None:
        """Put one row per key (value columns and ``_ts``), with keys from ``encode``; needs a session."""
        self.write_bytes(keys, self.rows.encode(rows))

    def write_bytes(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Like ``write``, for rows that are already packed."""
        self._session.put_many(self.spec.name, keys, values)
        if self._long:
            hashes = [digest for digest in long_key_hashes(keys) if digest in self._long]
            self._session.put_many(LONG_KEYS, hashes, [self._long[digest] for digest in hashes])

    def delete(self, keys: Sequence[bytes]) -> None:
        """Delete rows; absent keys are harmless. Needs a session."""
        self._session.delete_many(self.spec.name, keys)
        if hashes := long_key_hashes(keys):
            self._session.delete_many(LONG_KEYS, hashes)

    def scan(self, lower: bytes = b"", upper: bytes | None = None) -> tuple[list[bytes], pl.DataFrame]:
        """Keys with ``lower <= key < upper`` in order, and their rows: value columns and ``_ts``."""
        pairs = list(self._view.scan(self.spec.name, lower, upper))
        return [key for key, _ in pairs], self.rows.decode([value for _, value in pairs])

    def get(self, **key: Any) -> dict[str, Any] | None:
        """The row of one key, given by its columns: value columns and ``_ts``; None if there is none."""
        frame = pl.DataFrame({name: [value] for name, value in key.items()}, schema=self.spec.key)
        row = self.fetch(self.encode(frame)).row(0, named=True)
        return row if row.pop("_found") else None

    def count(self) -> int:
        """Rows in the store."""
        return self._view.count(self.spec.name)

    @property
    def _session(self) -> StateSession:
        return cast(StateSession, self._view)


def _are_found(values: Sequence[bytes | None]) -> np.ndarray:
    if values.count(None) == len(values):
        return np.zeros(len(values), np.bool_)
    return np.fromiter(map(is_not, values, repeat(None)), np.bool_, len(values))
