"""The meta record of a task's store: which state it holds, who settled it, and the last receipt.

It is one checksummed value, rewritten in every transaction that changes the store, so it is always as new as the rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from weir.state.types import StateId

META_KEY = b"meta"
"""Its key in the ``_meta`` database."""

_CHECKSUM_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Uncommitted:
    """What the store holds beyond its committed state (KIP-892)."""

    bytes: int = 0
    """Keys and values written since the last commit, repeats counted."""
    records: int = 0
    """Distinct keys written since the last commit: the entries of the undo log."""
    rollback_us: int = 0
    """About how long undoing them takes, in microseconds."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """The meta record."""

    stores: dict[str, int]
    """Store ids by name, fixed for the life of the instance: keys of the undo log begin with them."""
    generation: int = 0
    """The newest generation that has settled the store; older ones are refused."""
    current: StateId | None = None
    base: StateId | None = None
    """The state that a rollback returns to; equal to ``current`` when nothing is uncommitted."""
    plan_hash: str = ""
    receipt: bytes = b""
    uncommitted: Uncommitted = field(default_factory=Uncommitted)
    rows: dict[str, int] = field(default_factory=dict)
    committed_rows: dict[str, int] = field(default_factory=dict)
    backed: tuple[str, ...] = ()
    """The stores whose values are in stores of the user's (PROTOCOL 32)."""


_METAS = msgspec.msgpack.Decoder(Meta)


def encode_meta(meta: Meta) -> bytes:
    """Checksum, then the record."""
    payload = msgspec.msgpack.encode(meta)
    return _checksum(payload) + payload


def decode_meta(data: bytes | None) -> Meta | None:
    """The record, or None if it is absent or its checksum does not match."""
    if data is None or _checksum(data[_CHECKSUM_BYTES:]) != data[:_CHECKSUM_BYTES]:
        return None
    return _METAS.decode(data[_CHECKSUM_BYTES:])


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECKSUM_BYTES).digest()
