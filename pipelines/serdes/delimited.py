"""Composite keys as text with a separator, for example ``UA-EWR``."""

from __future__ import annotations

from typing import Any

import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.pipelines.serdes.scalar import decode_text
from weir.pipelines.serdes.serde import DecodedColumns, fields_of
from weir.pipelines.serdes.shapes import field_types


class Delimited:
    """``Delimited(Route, sep="-")``: the fields of ``Route`` (strings and integers) in order, joined by ``sep``.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Route:
        ...     carrier: str
        ...     number: int
        >>> Delimited(Route, sep="-").encode(Route("UA", 12))
        b'UA-12'
    """

    def __init__(self, cls: type, sep: str) -> None:
        if not sep:
            raise TopologyError(f"Delimited({cls.__name__}) has an empty separator; give at least one character")
        for name, annotation in field_types(cls).items():
            if annotation not in (str, int):
                raise TopologyError(
                    f"{cls.__name__}.{name} is annotated {annotation!r}; a delimited part is "
                    "str or int, use Json for other types"
                )
        self.cls, self.sep = cls, sep
        self._row_type = row_type_of(cls, "")

    def __repr__(self) -> str:
        return f"Delimited({self.cls.__name__}, sep={self.sep!r})"

    def row_type(self, default_name: str) -> RowType:
        return self._row_type

    def encode(self, item: Any) -> bytes | None:
        if item is None:
            return None
        parts = [str(part) for part in fields_of(self, item, self._row_type.annotations).values()]
        text = self.sep.join(parts)
        if text.split(self.sep) != parts:
            raise ValueError(
                f"{item!r} has a part that contains the separator {self.sep!r}, or the beginning of one at its end, so "
                f"{text!r} could not be read back"
            )
        return text.encode()

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        text, absent, bad = decode_text(items)
        names = list(row_type.columns)
        wrong = (text.str.count_matches(self.sep, literal=True) != len(names) - 1).fill_null(False)
        if wrong.any():
            bad |= {
                index: f"expected {len(names)} parts separated by {self.sep!r}, found {text[index]!r}"
                for index in wrong.arg_true().to_list()
            }
            text = text.set(wrong, None)
        parts = text.str.split_exact(self.sep, len(names) - 1).struct.unnest()
        columns = []
        for name, part in zip(names, parts, strict=True):
            column = part.alias(name)
            if row_type.columns[name] == pl.Int64():
                column = column.cast(pl.Int64(), strict=False)
                unread = column.is_null() & part.is_not_null()
                bad |= {
                    index: f"part {name!r} is not a 64-bit integer: {part[index]!r}"
                    for index in unread.arg_true().to_list()
                }
            columns.append(column)
        return DecodedColumns(columns, absent, bad)
