"""msgpack with a schema, under the rules of JSON: a map with text keys, unknown fields skipped, nil a tombstone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pipelines.serdes.row_type import RowType, row_type_of, schema_class
from pipelines.serdes.serde import DecodedColumns, decode_one_by_one
from pipelines.serdes.structs import check_integers, columns_of, struct_of


class Msgpack:
    """``Msgpack(Flight)``: the fields of the dataclass ``Flight``, or of an Arrow or polars schema, as columns.

    Times are msgpack's own (extension -1) or text in the form of RFC 3339.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self.cls = schema_class(schema)
        self._row_type = row_type_of(self.cls, "")
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(struct_of(self.cls) | None)
        self._encode = msgspec.msgpack.Encoder().encode

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return Msgpack, (self._schema,)

    def __repr__(self) -> str:
        return f"Msgpack({self.cls.__name__})"

    def row_type(self, default_name: str) -> RowType:
        return self._row_type

    def encode(self, item: Any) -> bytes | None:
        return None if item is None else self._encode(item)

    def decode(self, items: Sequence[bytes | None], row_type: RowType) -> DecodedColumns:
        decode = self._decoder.decode
        try:
            objects = [None if item is None else decode(item) for item in items]
            absent = [index for index, item in enumerate(objects) if item is None]
            return DecodedColumns(columns_of(row_type, objects, absent), absent)
        except (ValueError, OverflowError, TypeError):
            objects, absent, bad = decode_one_by_one(items, self._decode_one)
        return DecodedColumns(columns_of(row_type, objects, [*absent, *bad]), absent, bad)

    def _decode_one(self, item: bytes) -> Any:
        value = self._decoder.decode(item)
        if value is not None:
            check_integers(self._row_type, value)
        return value
