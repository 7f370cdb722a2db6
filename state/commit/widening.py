"""Wider types that a stored column may get: every value of the old type is one of the new type.

The pairs are those of Delta's type widening that these columns can have
(https://docs.delta.io/latest/delta-type-widening.html). Types are given as polars prints them.
"""

from __future__ import annotations

import re

_WIDER = {
    "Int8": ("Int16", "Int32", "Int64", "Float64"),
    "Int16": ("Int32", "Int64", "Float64"),
    "Int32": ("Int64", "Float64"),
    "UInt8": ("UInt16", "UInt32", "Int16", "Int32", "Int64", "Float64"),
    "UInt16": ("UInt32", "Int32", "Int64", "Float64"),
    "UInt32": ("Int64", "Float64"),
    "Float32": ("Float64",),
}
_DECIMAL = re.compile(r"Decimal\(precision=(\d+), scale=(\d+)\)")


def is_wider(before: str, now: str) -> bool:
    """Whether ``now`` holds every value of ``before``, which is another type."""
    if now in _WIDER.get(before, ()):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(now)
    if old is None or new is None:
        return False
    (precision, scale), (new_precision, new_scale) = map(int, old.groups()), map(int, new.groups())
    return new_scale >= scale and new_precision - new_scale >= precision - scale and before != now
