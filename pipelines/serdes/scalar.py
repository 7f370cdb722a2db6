"""Scalars in one column, as Kafka's Java serdes write them: text, raw bytes, numbers in big-endian order, UUIDs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.row_type import RowType, fits, row_type_of
from weir.pipelines.serdes.serde import DecodedColumns, absent_rows, decode_one_by_one
from weir.state.frames import FEW

_UUID = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"


class _Scalar:
    annotation: type

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            kind = type(self).__name__
            raise TopologyError(f'{kind} got the column name {name!r}; pass text, for example {kind}("name")')
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})" if self.name else f"{type(self).__name__}()"

    def row_type(self, default_name: str) -> RowType:
        return row_type_of(self.annotation, self.name or default_name)

    def encode(self, item: Any) -> bytes | None:
        """Raises ``TypeError`` for an object of another type, ``ValueError`` for one that cannot be written."""
        if item is None:
            return None
        if not self._takes(item):
            raise TypeError(f"{self!r} takes {self.annotation.__name__}, found {item!r} ({type(item).__name__})")
        return self._write(item)

    def _takes(self, item: Any) -> bool:
        return fits(self.annotation, item)

    def _write(self, item: Any) -> bytes:
        raise NotImplementedError


class String(_Scalar):
    """Text as UTF-8, in a column called ``name``.

    Examples:
        >>> String("user").encode("ann")
        b'ann'
    """

    annotation = str

    def _write(self, item: str) -> bytes:
        return item.encode()

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        text, absent, bad = decode_text(items)
        return DecodedColumns([text.alias(next(iter(row_type.columns)))], absent, bad)


class Bytes(_Scalar):
    """Bytes as they are."""

    annotation = bytes

    def _write(self, item: bytes) -> bytes:
        return item

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        return DecodedColumns([items.alias(next(iter(row_type.columns)))], absent_rows(items))


class _Number(_Scalar):
    """Numbers of one width, big-endian."""

    stored: np.dtype[Any]
    read: pl.DataType
    """The polars type of ``stored``."""
    dtype: pl.DataType = pl.Int64()

    def _write(self, item: Any) -> bytes:
        if self.stored.kind == "i" and not np.iinfo(self.stored).min <= item <= np.iinfo(self.stored).max:
            raise ValueError(f"{self!r} writes {self.stored.itemsize} bytes, which cannot hold {item}")
        return np.array(item, self.stored).tobytes()

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        width = self.stored.itemsize
        if len(items) <= FEW and all(item is not None and len(item) == width for item in items):
            read = np.frombuffer(b"".join(items), self.stored).astype(self.stored.newbyteorder("="))
            return DecodedColumns([pl.Series(next(iter(row_type.columns)), read).cast(self.dtype)], [])
        numbers, bad = items.bin.reinterpret(dtype=self.read, endianness="big"), dict[int, str]()
        if numbers.null_count() > items.null_count():
            sizes = items.bin.size()
            wrong = (sizes != width).fill_null(False)
            bad = {index: f"expected {width} bytes, found {sizes[index]}" for index in wrong.arg_true().to_list()}
        return DecodedColumns([numbers.cast(self.dtype).alias(next(iter(row_type.columns)))], absent_rows(items), bad)


class Int64(_Number):
    """Eight bytes, two's complement (Kafka's LongSerializer)."""

    annotation = int
    stored, read = np.dtype(">i8"), pl.Int64()


class Int32(_Number):
    """Four bytes, two's complement (Kafka's IntegerSerializer)."""

    annotation = int
    stored, read = np.dtype(">i4"), pl.Int32()


class Float64(_Number):
    """Eight bytes, IEEE 754 (Kafka's DoubleSerializer)."""

    annotation = float
    stored, read = np.dtype(">f8"), pl.Float64()
    dtype = pl.Float64()


class Float32(_Number):
    """Four bytes, IEEE 754 (Kafka's FloatSerializer)."""

    annotation = float
    stored, read = np.dtype(">f4"), pl.Float32()
    dtype = pl.Float64()


class Boolean(_Scalar):
    """One byte, 0 or 1 (Kafka's BooleanSerializer)."""

    annotation = bool

    def _write(self, item: Any) -> bytes:
        return bytes([bool(item)])

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        known = {None: None, b"\x00": False, b"\x01": True}
        column = pl.Series(next(iter(row_type.columns)), [known.get(item) for item in items], dtype=pl.Boolean())
        return DecodedColumns(
            [column],
            [index for index, item in enumerate(items) if item is None],
            {
                index: f"expected one byte, 0 or 1, found {item!r}"
                for index, item in enumerate(items)
                if item not in known
            },
        )


class Uuid(_Scalar):
    """A UUID as 36 characters of text (Kafka's UUIDSerializer); the column has the text, in lower case."""

    annotation = str

    def _takes(self, item: Any) -> bool:
        return isinstance(item, (UUID, str))

    def _write(self, item: UUID | str) -> bytes:
        try:
            return str(UUID(str(item))).encode()
        except ValueError:
            raise ValueError(f"{self!r} takes a UUID or its text, found {item!r}") from None

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        text, absent, bad = decode_text(items)
        wrong = (~text.str.contains(_UUID)).fill_null(False)
        if wrong.any():
            bad |= {index: f"expected a UUID, found {text[index]!r}" for index in wrong.arg_true().to_list()}
            text = text.set(wrong, None)
        return DecodedColumns([text.str.to_lowercase().alias(next(iter(row_type.columns)))], absent, bad)


def decode_text(items: pl.Series) -> tuple[pl.Series, list[int], dict[int, str]]:
    """UTF-8 text, the rows without bytes, and the rows whose bytes are not UTF-8 with the reason."""
    try:
        text = items.cast(pl.String())
    except pl.exceptions.ComputeError:
        objects, absent, bad = decode_one_by_one(items, bytes.decode)
        return pl.Series(objects, dtype=pl.String()), absent, bad
    return text, absent_rows(text), {}
