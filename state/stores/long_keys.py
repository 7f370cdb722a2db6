"""Keys longer than LMDB allows: the front of the key and a hash are used in their place (PROTOCOL 18).

A shortened key has exactly ``MAX_KEY_BYTES``; every other key is shorter. Order is preserved up to the hash: keys with
the same front are ordered by their hashes, so a range bound longer than the front is not exact. The whole keys are rows
of the reserved store ``_long_keys``, by hash; they roll back with the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from weir.state.engine.task_store import LONG_KEYS, MAX_KEY_BYTES
from weir.state.errors import RowFormatError

HASH_BYTES = 16

__all__ = ["HASH_BYTES", "LONG_KEYS", "has_long", "long_key_hashes", "shortened", "whole"]


def has_long(keys: Sequence[bytes]) -> bool:
    """Whether any of ``keys`` is shortened or must be."""
    return max(map(len, keys), default=0) >= MAX_KEY_BYTES


def shortened(store: str, keys: Sequence[bytes]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Keys as ``store`` holds them, and by hash the whole keys of those that were too long."""
    if not has_long(keys):
        return list(keys), {}
    held, whole_by_hash = list(keys), {}
    for index, key in enumerate(keys):
        if len(key) >= MAX_KEY_BYTES:
            digest = hashlib.blake2b(store.encode() + b"\x00" + key, digest_size=HASH_BYTES).digest()
            held[index] = key[: MAX_KEY_BYTES - HASH_BYTES] + digest
            whole_by_hash[digest] = key
    return held, whole_by_hash


def long_key_hashes(keys: Sequence[bytes]) -> list[bytes]:
    """The hashes in those of a store's keys that are shortened."""
    return [key[-HASH_BYTES:] for key in keys if len(key) == MAX_KEY_BYTES] if has_long(keys) else []


def whole(keys: Sequence[bytes], *lookups: Callable[[Sequence[bytes]], list[bytes | None]]) -> list[bytes]:
    """The whole keys for a store's keys; ``lookups`` are asked for hashes in turn until one knows them.

    Raises:
        RowFormatError: No lookup knows a key.
    """
    hashes = long_key_hashes(keys)
    known: dict[bytes, bytes] = {}
    for look_up in lookups if hashes else ():
        missing = [digest for digest in hashes if digest not in known]
        known |= {digest: key for digest, key in zip(missing, look_up(missing), strict=True) if key is not None}
    if not known.keys() >= set(hashes):
        raise RowFormatError(("key",), "a key is shortened, but its whole key is missing")
    return [known[key[-HASH_BYTES:]] if len(key) == MAX_KEY_BYTES else key for key in keys] if hashes else list(keys)
