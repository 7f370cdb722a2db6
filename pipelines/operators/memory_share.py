"""How much of their stores operators keep in memory from epoch to epoch: a process has a bound, which those that keep
rows share equally. The stores have the same rows."""

from __future__ import annotations

from weakref import WeakSet

MOST_ROWS, MOST_BYTES = 1 << 19, 1 << 26

_keeping = WeakSet[object]()


def may_keep(owner: object, rows: int, size_bytes: int = 0) -> bool:
    """Whether so much is no more than the share of ``owner``, which then counts among those that keep rows until this
    is false or it is collected."""
    shares = len(_keeping) + (owner not in _keeping)
    is_little = rows <= MOST_ROWS // shares and size_bytes <= MOST_BYTES // shares
    (_keeping.add if is_little else _keeping.discard)(owner)
    return is_little
