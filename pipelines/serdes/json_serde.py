"""JSON with a schema declared by a frozen dataclass.

Unknown fields are skipped without being decoded, a missing field is null for ``X | None`` and bad input
otherwise, an integer is accepted where a float is declared and nothing else is coerced, and JSON ``null`` is
a tombstone. One call decodes many values when it is certain that none runs into the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import polars as pl

from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import DecodedColumns, decode_one_by_one
from weir.pipelines.serdes.structs import StructSerde, check_numbers, columns_of

TOGETHER = 4_000
"""How many values one call decodes: few enough for the processor's cache. 150,000 values of 400 bytes take 66 ms, but
138 ms in a single call."""
FEW = 100
"""Fewer values than this are decoded one by one, in 5 us each: decoding together takes 380 us however few they are."""
_LINE_END = ord("\n")
_NULL = pl.Series([b"null"])


class Json(StructSerde):
    """``Json(Flight)``: the fields of the dataclass ``Flight``, or of an Arrow or polars schema, as columns.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Order:
        ...     item: str
        ...     cents: int | None
        >>> Json(Order).encode(Order("tea", 300))
        b'{"item":"tea","cents":300}'

    With ``within``, the value is that field of an object, and null if the field is null; others are skipped. Kafka
    Connect writes ``{"schema": ..., "payload": ...}``.

        >>> Json(Order, within="payload").encode(Order("tea", 300))
        b'{"payload":{"item":"tea","cents":300}}'
    """

    def __init__(self, schema: Any, *, within: str | None = None) -> None:
        super().__init__(schema, msgspec.json.Encoder())
        self._within = within
        kind = self._struct if within is None else msgspec.defstruct("Outer", [(within, self._struct | None)], gc=False)
        self._lines: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind | None)

    def __reduce__(self) -> tuple[Callable[..., Json], tuple[Any, str | None]]:
        return _json, (self._schema, self._within)

    def __repr__(self) -> str:
        return super().__repr__() if self._within is None else f"Json({self.cls.__name__}, within={self._within!r})"

    def encode(self, item: Any) -> bytes | None:
        return super().encode(item if item is None or self._within is None else {self._within: item})

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        together = self._decode_together(items) if len(items) >= FEW else None
        if together is not None:
            objects, absent = together
            try:
                return DecodedColumns(columns_of(row_type, objects, absent), absent)
            except (OverflowError, RecursionError, TypeError, ValueError):
                pass  # a number that does not fit; which one is found below
        objects, absent, bad = decode_one_by_one(items, self._decode_one)
        return DecodedColumns(columns_of(row_type, objects, [*absent, *bad]), absent, bad)

    def _decode_together(self, items: pl.Series) -> tuple[list[Any], list[int]] | None:
        """All objects and the rows that are absent; None when a value is bad or might run into the next.

        With exactly as many line ends as gaps between values, each value is a line of its own, and the braces around
        each make it one object.
        """
        is_null, values = items == _NULL, items
        gone, absent = list[bool](), list[int]()
        if items.null_count() or is_null.any():  # else none of these queries is needed
            are_gone = items.is_null() | is_null.fill_null(False)
            values, gone, absent = items.filter(~are_gone), are_gone.to_list(), are_gone.arg_true().to_list()
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
        except (ValueError, RecursionError, pl.exceptions.ComputeError):
            return None
        if len(objects) != len(values):
            return None
        if absent:
            present = iter(objects)
            objects = [None if is_gone else next(present) for is_gone in gone]
        if self._within is not None:
            objects = [None if outer is None else getattr(outer, self._within) for outer in objects]
            absent = [index for index, value in enumerate(objects) if value is None]
        return objects, absent

    def _decode_one(self, item: bytes) -> Any:
        value = self._one.decode(item)
        if value is not None and self._within is not None:
            value = getattr(value, self._within)
        if value is not None:
            check_numbers(self._row_type, value, "$." if self._within is None else f"$.{self._within}.")
        return value


def _json(schema: Any, within: str | None) -> Json:
    return Json(schema, within=within)
