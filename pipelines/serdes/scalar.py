"""Scalars in one column: text as UTF-8, raw bytes, and 64-bit integers in big-endian order as Kafka's Java serdes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from pipelines.serdes.row_type import RowType, row_type_of
from pipelines.serdes.serde import DecodedColumns, decode_one_by_one


class _Scalar:
    annotation: type

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})" if self.name else f"{type(self).__name__}()"

    def row_type(self, default_name: str) -> RowType:
        return row_type_of(self.annotation, self.name or default_name)


class String(_Scalar):
    """Text as UTF-8, in a column called ``name``."""

    annotation = str

    def encode(self, item: Any) -> bytes | None:
        return None if item is None else item.encode()

    def decode(self, items: Sequence[bytes | None], row_type: RowType) -> DecodedColumns:
        text, absent, bad = decode_text(items)
        return DecodedColumns([text.alias(next(iter(row_type.columns)))], absent, bad)


class Bytes(_Scalar):
    """Bytes as they are."""

    annotation = bytes

    def encode(self, item: Any) -> bytes | None:
        return item

    def decode(self, items: Sequence[bytes | None], row_type: RowType) -> DecodedColumns:
        column = pl.Series(next(iter(row_type.columns)), items, dtype=pl.Binary())
        return DecodedColumns([column], column.is_null().arg_true().to_list())


class Int64(_Scalar):
    """Eight bytes, big-endian, two's complement (Kafka's LongSerializer)."""

    annotation = int

    def encode(self, item: Any) -> bytes | None:
        return None if item is None else item.to_bytes(8, "big", signed=True)

    def decode(self, items: Sequence[bytes | None], row_type: RowType) -> DecodedColumns:
        absent = [index for index, item in enumerate(items) if item is None]
        bad = {index: f"expected 8 bytes, found {len(item)}" for index, item in enumerate(items)
               if item is not None and len(item) != 8}
        unread = {*absent, *bad}
        filled = b"".join(bytes(8) if index in unread else item for index, item in enumerate(items))  # type: ignore[misc]
        column = pl.Series(next(iter(row_type.columns)), np.frombuffer(filled, ">i8").astype("<i8"))
        if unread:
            column = column.scatter(sorted(unread), None)
        return DecodedColumns([column], absent, bad)


def decode_text(items: Sequence[bytes | None]) -> tuple[pl.Series, list[int], dict[int, str]]:
    """UTF-8 text, the rows without bytes, and the rows whose bytes are not UTF-8 with the reason."""
    try:
        text = pl.Series(items, dtype=pl.Binary()).cast(pl.String())
    except pl.exceptions.ComputeError:
        objects, absent, bad = decode_one_by_one(items, bytes.decode)
        return pl.Series(objects, dtype=pl.String()), absent, bad
    return text, text.is_null().arg_true().to_list(), {}
