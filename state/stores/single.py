"""One row at a time as bytes: the same bytes as ``weir.state.stores.codec`` produces, without building columns.

Numbers, strings, booleans and UTC times are packed in plain Python; other types go through a polars series of one.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import msgspec
import polars as pl

from weir.state.errors import RowFormatError
from weir.state.stores.codec import (
    DECIMAL_SIGN,
    END,
    ESCAPED,
    NULL,
    PRESENT,
    TIME_BYTES,
    TIMES_AROUND,
    is_fixed,
    is_text,
    numpy_type,
    packed_dtype,
    time_bytes,
    unscaled,
    width,
)
from weir.state.types import StoreKind

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SIGN = 1 << 63
_WIDE = Context(prec=60)
_FORMATS = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f4": "f",
    "f8": "d",
}


class SingleKeyCodec:
    """The values of key columns, in order, to bytes and back; the times around the key are separate, in ms."""

    def __init__(self, schema: pl.Schema, kind: StoreKind) -> None:
        before, after = TIMES_AROUND[kind]
        times = len(before) + len(after)
        columns = list(schema.items())
        self.columns = pl.Schema(columns[:-times] if times else columns)
        self._left, self._right = TIME_BYTES * len(before), TIME_BYTES * len(after)
        self._is_escaped = bool(times) or len(self.columns) > 1
        last = len(self.columns) - 1
        self._parts = [
            (dtype, is_text(dtype), bool(times) or index < last, to_logical(dtype))
            for index, dtype in enumerate(self.columns.dtypes())
        ]
        self._packs = [
            _text_pack(dtype, END if has_end else b"", self._is_escaped) if is_of_text else _number_pack(dtype)
            for dtype, is_of_text, has_end, _ in self._parts
        ]

    def body(self, values: Sequence[Any]) -> bytes:
        """The components between the times.

        Raises:
            TypeError: A value does not have its column's type.
        """
        return b"".join([pack(value) for value, pack in zip(values, self._packs, strict=True)])

    def prefix(self, values: Sequence[Any]) -> bytes:
        """The prefix of all bodies whose first columns are ``values``; the last, if text, may be a prefix itself."""
        parts = [pack(value) for value, pack in zip(values, self._packs, strict=False)]
        _, last_is_text, has_end, *_ = self._parts[len(parts) - 1]
        if parts and last_is_text and has_end:
            parts[-1] = parts[-1][: -len(END)]
        return b"".join(parts)

    def decode(self, key: bytes) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """The values of the key columns, and the times in the order of the bytes."""
        body = key[self._left : len(key) - self._right]
        around = key[: self._left] + key[len(key) - self._right :]
        times = tuple(_time(around[at : at + TIME_BYTES]) for at in range(0, len(around), TIME_BYTES))
        values, position = [], 0
        for dtype, is_of_text, has_end, logical in self._parts:
            if is_of_text:
                end = _end_of(body, position) if has_end else len(body)
                text = body[position + 1 : end].replace(ESCAPED, END) if self._is_escaped else body[position + 1 : end]
                physical: Any = text if dtype == pl.Binary else text.decode()
                following = end + 1
            else:
                following = position + 1 + width(dtype)
                physical = _number(body[position + 1 : following], dtype)
            values.append(None if body[position : position + 1] == NULL else logical(physical))
            position = following
        return tuple(values), times


class SingleRowCodec:
    """The values of one row by column name, and its ``_ts`` in ms, to bytes and back."""

    def __init__(self, schema: pl.Schema) -> None:
        self.schema = schema
        self._convert = {name: (to_physical(dtype), to_logical(dtype)) for name, dtype in schema.items()}
        self._struct: struct.Struct | None = None
        if all(is_fixed(dtype) for dtype in schema.values()):
            self._bitmap = (len(schema) + 8) // 8
            formats = "".join(_FORMATS[numpy_type(dtype).str[1:]] for dtype in schema.values())
            self._struct = struct.Struct(f"<{self._bitmap}sq{formats}")
            self._all_present = bytes(self._bitmap)
            self._blanks = [0, *(False if dtype == pl.Boolean else 0 for dtype in schema.values())]

    def encode(self, row: Mapping[str, Any], ts: int | None) -> bytes:
        """Raises ``TypeError`` if the row has other columns, or a value does not have its column's type."""
        if row.keys() != self._convert.keys():
            raise TypeError(f"a row has the columns {', '.join(self._convert)}, but got {', '.join(row) or 'none'}")
        values: list[Any] = [ts]
        for name, (physical, _) in self._convert.items():
            value = row[name]
            values.append(None if value is None else physical(value))
        if self._struct is None:
            return msgspec.msgpack.encode(values)
        try:
            if None not in values:
                return self._struct.pack(self._all_present, *values)
            nulls = sum(1 << index for index, value in enumerate(values) if value is None)
            return self._struct.pack(
                nulls.to_bytes(self._bitmap, "little"),
                *(blank if value is None else value for value, blank in zip(values, self._blanks, strict=True)),
            )
        except struct.error as error:
            raise TypeError(f"{dict(row)} does not fit the columns {dict(self.schema)}: {error}") from None

    def decode(self, data: bytes) -> tuple[dict[str, Any], int | None]:
        """Raises ``RowFormatError`` if the bytes were written under another schema."""
        try:
            if self._struct is None:
                ts, *values = msgspec.msgpack.decode(data)
            else:
                bitmap, ts, *values = self._struct.unpack(data)
                if bitmap != self._all_present:
                    nulls = int.from_bytes(bitmap, "little")
                    ts, *values = (None if nulls >> at & 1 else value for at, value in enumerate((ts, *values)))
            return {
                name: None if value is None else logical(value)
                for (name, (_, logical)), value in zip(self._convert.items(), values, strict=True)
            }, ts
        except (struct.error, msgspec.MsgspecError, ValueError, TypeError) as error:
            raise RowFormatError(tuple(self._convert), str(error)) from error


def _text_pack(dtype: pl.DataType, end: bytes, is_escaped: bool) -> Convert:
    """A function from a value of a text column, or None, to its component of a key."""
    physical, null = to_physical(dtype), NULL + end
    is_binary = dtype == pl.Binary

    def pack(value: Any) -> bytes:
        if value is None:
            return null
        text: bytes = physical(value) if is_binary else physical(value).encode()
        return PRESENT + (text.replace(END, ESCAPED) if is_escaped else text) + end

    return pack


def _number_pack(dtype: pl.DataType) -> Convert:
    """The same for a column whose values have a fixed width."""
    physical, null = to_physical(dtype), NULL + _number_bytes(0, dtype)
    return lambda value: null if value is None else PRESENT + _number_bytes(physical(value), dtype)


def to_physical(dtype: pl.DataType) -> Convert:
    """A function from a Python value (not None) to its stored form; it raises ``TypeError`` for other types."""
    if dtype.is_integer():
        return operator.index
    if dtype.is_float():
        return float
    if dtype in (pl.Boolean, pl.String, pl.Binary):
        wanted = {pl.Boolean: bool, pl.String: str, pl.Binary: bytes}[type(dtype)]

        def checked(value: Any) -> Any:
            if not isinstance(value, wanted):
                raise TypeError(f"{value!r} is not a {wanted.__name__}")
            return value

        return checked
    if _is_utc(dtype):
        per_unit = 1000 if dtype.time_unit == "ms" else 1  # type: ignore[attr-defined]
        return lambda value: (value - _EPOCH) // _MICROSECOND // per_unit
    return lambda value: pl.Series([value], dtype=dtype).cast(packed_dtype(dtype)).to_list()[0]


def to_logical(dtype: pl.DataType) -> Convert:
    """The inverse of ``to_physical``."""
    if dtype.is_integer() or dtype.is_float() or dtype in (pl.Boolean, pl.String, pl.Binary):
        return lambda value: value
    if _is_utc(dtype):
        per_unit = 1000 if dtype.time_unit == "ms" else 1  # type: ignore[attr-defined]
        return lambda value: _EPOCH + timedelta(microseconds=value * per_unit)
    packed = packed_dtype(dtype)
    return lambda value: pl.Series([value], dtype=packed).cast(dtype).to_list()[0]


def _is_utc(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.Datetime) and dtype.time_zone == "UTC" and dtype.time_unit in ("ms", "us")


def _number_bytes(value: Any, dtype: pl.DataType) -> bytes:
    if dtype == pl.Boolean:
        return b"\x01" if value else b"\x00"
    if isinstance(dtype, pl.Decimal):
        return (int(Decimal(value).scaleb(dtype.scale, _WIDE)) + DECIMAL_SIGN).to_bytes(width(dtype), "big")
    if dtype.is_float():
        number = math.nan if math.isnan(value) else value + 0.0
        bits: int = struct.unpack(">Q", struct.pack(">d", number))[0]
        return (bits ^ (_SIGN * 2 - 1) if bits & _SIGN else bits | _SIGN).to_bytes(8, "big")
    try:
        return value.to_bytes(8, "big") if dtype == pl.UInt64 else time_bytes(value)
    except OverflowError:
        raise TypeError(f"{value} does not fit a column of type {dtype}") from None


def _number(data: bytes, dtype: pl.DataType) -> Any:
    if dtype == pl.Boolean:
        return data == b"\x01"
    bits = int.from_bytes(data, "big")
    if isinstance(dtype, pl.Decimal):
        return str(unscaled(bits - DECIMAL_SIGN, dtype))
    if dtype.is_float():
        return struct.unpack(">d", (bits ^ _SIGN if bits & _SIGN else bits ^ (_SIGN * 2 - 1)).to_bytes(8, "big"))[0]
    return bits if dtype == pl.UInt64 else bits - _SIGN


def _time(data: bytes) -> int:
    return int.from_bytes(data, "big") - _SIGN


def _end_of(body: bytes, position: int) -> int:
    end = body.index(END, position)
    while body[end : end + 2] == ESCAPED:
        end = body.index(END, end + 2)
    return end
