"""JSON with a schema declared by a frozen dataclass.

Unknown fields are skipped without being decoded, a missing field is null for ``X | None`` and bad input
otherwise, an integer is accepted where a float is declared and nothing else is coerced, and JSON ``null`` is
a tombstone. A batch is decoded in one call when it can be proven that no value runs into its neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pipelines.serdes.row_type import RowType
from pipelines.serdes.serde import DecodedColumns, decode_one_by_one
from pipelines.serdes.structs import StructSerde, check_integers, columns_of


class Json(StructSerde):
    """``Json(Flight)``: the fields of the dataclass ``Flight``, or of an Arrow or polars schema, as columns."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema, msgspec.json.Encoder())
        self._lines: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._struct)
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._struct | None)

    def decode(self, items: Sequence[bytes | None], row_type: RowType) -> DecodedColumns:
        absent: list[int] = []
        objects = self._decode_together(items)
        if objects is None:
            absent = [index for index, item in enumerate(items) if item is None or item == b"null"]
            objects = self._decode_around(items, absent) if absent else None
        if objects is not None:
            try:
                return DecodedColumns(columns_of(row_type, objects, absent), absent)
            except (OverflowError, TypeError):
                pass  # an integer beyond 64 bits: found exactly below
        objects, absent, bad = decode_one_by_one(items, self._decode_one)
        return DecodedColumns(columns_of(row_type, objects, [*absent, *bad]), absent, bad)

    def _decode_together(self, items: Sequence[bytes | None]) -> list[Any] | None:
        """All objects by one call, or None where a value is absent, bad, or might run into its neighbour.

        As many line ends as there are gaps, each between two braces, leave every value a line of its own.
        """
        try:
            joined = b"\n".join(items)  # type: ignore[arg-type]
        except TypeError:
            return None
        gaps = len(items) - 1
        if not (joined.startswith(b"{") and joined.endswith(b"}")
                and joined.count(b"\n") == gaps and joined.count(b"}\n{") == gaps):
            return None
        try:
            objects = self._lines.decode_lines(joined)
        except ValueError:
            return None
        return objects if len(objects) == len(items) else None

    def _decode_around(self, items: Sequence[bytes | None], absent: list[int]) -> list[Any] | None:
        """As ``_decode_together``, with None for the absent values."""
        gone = set(absent)
        present = self._decode_together([item for index, item in enumerate(items) if index not in gone])
        if present is None:
            return None
        objects = iter(present)
        return [None if index in gone else next(objects) for index in range(len(items))]

    def _decode_one(self, item: bytes) -> Any:
        value = self._one.decode(item)
        if value is not None:
            check_integers(self._row_type, value)
        return value
