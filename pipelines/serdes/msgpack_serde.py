"""msgpack with a schema, under JSON's rules: a map with text keys, unknown fields skipped, nil a tombstone."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import DecodedColumns, decode_one_by_one
from weir.pipelines.serdes.structs import StructSerde, check_numbers, columns_of


class Msgpack(StructSerde):
    """``Msgpack(Flight)``: the fields of the dataclass ``Flight``, or of an Arrow or polars schema, as columns.

    Times are msgpack's own (extension -1) or text as in RFC 3339.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Order:
        ...     cents: int
        >>> Msgpack(Order).encode(Order(5))
        b'\\x81\\xa5cents\\x05'
    """

    def __init__(self, schema: Any) -> None:
        super().__init__(schema, msgspec.msgpack.Encoder())
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self._struct | None)

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        decode = self._decoder.decode
        try:
            objects = [None if item is None else decode(item) for item in items]
            absent = [index for index, item in enumerate(objects) if item is None]
            return DecodedColumns(columns_of(row_type, objects, absent), absent)
        except (ValueError, OverflowError, RecursionError, TypeError):
            objects, absent, bad = decode_one_by_one(items, self._decode_one)
        return DecodedColumns(columns_of(row_type, objects, [*absent, *bad]), absent, bad)

    def _decode_one(self, item: bytes) -> Any:
        value = self._decoder.decode(item)
        if value is not None:
            check_numbers(self._row_type, value)
        return value
