"""JSON with a schema declared by a frozen dataclass.

Unknown fields are skipped without being decoded, a missing field is null for ``X | None`` and bad input
otherwise, an integer is accepted where a float is declared and nothing else is coerced, and JSON ``null`` is
a tombstone. Values are decoded many by a call when it can be proven that none runs into its neighbour.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import polars as pl

from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import DecodedColumns, decode_one_by_one
from weir.pipelines.serdes.structs import StructSerde, check_integers, columns_of

TOGETHER = 4_000
"""Values decoded by one call: they stay in the processor's cache. 66 ms for 150,000 of 400 bytes, all at once 138."""
FEW = 100
"""Values that are sooner decoded one by one: 5 us for one, where all that is together takes 380."""
_LINE_END = ord("\n")
_NULL = pl.Series([b"null"])


class Json(StructSerde):
    """``Json(Flight)``: the fields of the dataclass ``Flight``, or of an Arrow or polars schema, as columns."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema, msgspec.json.Encoder())
        self._lines: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._struct)
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._struct | None)

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        together = self._decode_together(items) if len(items) >= FEW else None
        if together is not None:
            objects, absent = together
            try:
                return DecodedColumns(columns_of(row_type, objects, absent), absent)
            except (OverflowError, TypeError):
                pass  # an integer beyond 64 bits: found exactly below
        objects, absent, bad = decode_one_by_one(items, self._decode_one)
        return DecodedColumns(columns_of(row_type, objects, [*absent, *bad]), absent, bad)

    def _decode_together(self, items: pl.Series) -> tuple[list[Any], list[int]] | None:
        """All objects and which are absent, or None where a value is bad or might run into its neighbour.

        As many line ends as there are gaps between values leave every value a line of its own, and so do braces around
        each of them an object of its own.
        """
        gone = items.is_null() | (items == _NULL).fill_null(False)
        absent = gone.arg_true().to_list()
        values = items.filter(~gone) if absent else items
        if not (values.bin.starts_with(b"{").all() and values.bin.ends_with(b"}").all()):
            return None
        objects: list[Any] = []
        try:
            texts = values.cast(pl.String())
            for start in range(0, len(texts), TOGETHER):
                part = texts[start : start + TOGETHER]
                lines = part.str.join("\n").item().encode()
                if np.count_nonzero(np.frombuffer(lines, np.uint8) == _LINE_END) != len(part) - 1:
                    return None
                objects += self._lines.decode_lines(lines)
        except (ValueError, pl.exceptions.ComputeError):
            return None
        if len(objects) != len(values):
            return None
        if absent:
            present = iter(objects)
            objects = [None if is_gone else next(present) for is_gone in gone.to_list()]
        return objects, absent

    def _decode_one(self, item: bytes) -> Any:
        value = self._one.decode(item)
        if value is not None:
            check_integers(self._row_type, value)
        return value
