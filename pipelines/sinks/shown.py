"""Keys of refused rows, as people read them."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from weir.pipelines.serdes.values import as_datetimes
from weir.state.printable import is_printable, printable

AT_MOST = 80
"""Characters of one value."""


def shown_columns(row: pl.DataFrame, names: Iterable[str]) -> str:
    """``user='ann', window_start=2026-01-01 09:00:00+00:00``: columns of the only row."""
    return ", ".join(f"{name}={shown(as_datetimes(row.get_column(name)).item())}" for name in names)


def shown(value: object) -> str:
    """``'ann'``, ``0xff00``, ``null``; a long text is cut."""
    text = "null" if value is None else _of_bytes(value) if isinstance(value, bytes) else _of_object(value)
    return text if len(text) <= AT_MOST else f"{text[:AT_MOST]}..."


def _of_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return f"'{text}'" if all(map(is_printable, text)) else "0x" + value.hex()


def _of_object(value: object) -> str:
    return f"'{printable(value)}'" if isinstance(value, str) else printable(str(value))
