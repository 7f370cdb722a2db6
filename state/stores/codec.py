"""Rows as bytes: order-preserving keys, and values packed a whole batch at a time.

Keys sort as their columns do, nulls first, so a range of a store is a range of keys. Each component is a flag (null or
present) and its bytes: eight big-endian bytes for numbers and times, sixteen for decimals, the text itself for strings.
Which keys a store reads and writes is decided by ``weir.state.stores.typed``; ``weir.state.stores.long_keys`` shortens
keys too long for LMDB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import polars as pl

from weir.state.errors import RowFormatError
from weir.state.frames import FEW, framed, picked
from weir.state.stores.nested import column_of
from weir.state.types import StoreKind

Codec = TypeVar("Codec")
NULL, PRESENT = b"\x01", b"\x02"
AFTER_FLAGS = b"\x03"
"""Greater than the first byte of any component, and less than the escape of a zero byte."""
END, ESCAPED = b"\x00", b"\x00\xff"
"""Text followed by another component ends with a zero byte. Next to other columns, a zero byte within text is followed
by 0xff; a key of a single text column is the plain text."""
_PRESENT, _END = pl.Series([PRESENT]), pl.Series([END])
_SIGN = np.uint64(1 << 63)
TIME_BYTES = 8
SORTED_ONE_BY_ONE = 500
"""Up to about this many keys are sorted in less time than polars begins to."""
DECIMAL_BYTES, DECIMAL_SIGN = 16, 1 << 127


TIMES_AROUND: dict[StoreKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    StoreKind.KEY_VALUE: ((), ()),
    StoreKind.WINDOW: (("window_start",), ("window_end",)),
    StoreKind.SESSION: ((), ("window_end", "window_start")),
    StoreKind.VERSIONED: ((), ("valid_from",)),
}
"""The times before and after the other components of a key; eight bytes each, never null."""


class KeyCodec:
    """Key columns to bytes and back, in the order that the kind of store needs (``TIMES_AROUND``)."""

    def __init__(self, schema: pl.Schema, kind: StoreKind = StoreKind.KEY_VALUE) -> None:
        self.schema = schema
        self._before, self._after = TIMES_AROUND[kind]
        times = (*self._before, *self._after)
        columns = list(schema.items())
        self._columns = columns[: -len(times)] if times else columns
        for name, dtype in self._columns:
            if not (is_text(dtype) or is_fixed_key(dtype)):
                raise TypeError(
                    f"key column {name!r} has type {dtype}, but keys are made of strings, binaries, "
                    "numbers, booleans, dates and times; convert the column first"
                )
        last = len(self._columns) - 1
        self._has_end = [bool(times) or index < last for index in range(len(self._columns))]
        self._is_escaped = bool(times) or last > 0
        self._is_text = len(self._columns) == 1 and not times and is_text(self._columns[0][1])

    def encode(self, frame: pl.DataFrame) -> list[bytes]:
        """Keys of any length, in the order of the rows; other columns are ignored."""
        if frame.is_empty():
            return []
        if frame.height <= FEW and self._is_text:
            texts = frame.get_column(self._columns[0][0]).cast(pl.Binary).to_list()
            return [NULL if text is None else PRESENT + text for text in texts]
        return self._encoded(frame).to_list()

    def encode_sorted(self, frame: pl.DataFrame) -> tuple[list[bytes], np.ndarray]:
        """``encode`` in ascending order, and the row of each key."""
        if frame.height <= SORTED_ONE_BY_ONE:
            found = self.encode(frame)
            order = sorted(range(len(found)), key=found.__getitem__)
            return [found[row] for row in order], np.array(order, np.intp)
        keys = self._encoded(frame)
        rows = keys.arg_sort()
        return keys.gather(rows).to_list(), rows.to_numpy()

    def prefixes(self, frame: pl.DataFrame) -> list[bytes]:
        """For each row, the common prefix of all keys whose first columns (not all of them) equal those of ``frame``;
        key-value stores only."""
        return [] if frame.is_empty() else _joined(self._parts(frame, frame.width)).to_list()

    def decode(self, keys: Sequence[bytes]) -> pl.DataFrame:
        """The key columns of each key, in order."""
        if not keys:
            return pl.DataFrame(schema=self.schema)
        cut, columns = _Cut(keys), dict[str, pl.Series]()
        for name in self._before:
            columns[name] = _numbers(cut.left(TIME_BYTES), self.schema[name])
        for name in reversed(self._after):
            columns[name] = _numbers(cut.right(TIME_BYTES), self.schema[name])
        columns |= self._decode_rest(cut)
        return framed([columns[name].alias(name) for name in self.schema])

    def window_upper(self, start_ms: int) -> bytes:
        """The exclusive upper bound of all keys with ``window_start < start_ms`` (window stores only)."""
        return time_bytes(start_ms)

    def _encoded(self, frame: pl.DataFrame) -> pl.Series:
        return _joined(
            self._times(frame, self._before) + self._parts(frame, len(self._columns)) + self._times(frame, self._after)
        )

    def _parts(self, frame: pl.DataFrame, count: int) -> list[pl.Series | np.ndarray]:
        """The components of the first ``count`` columns, without the times."""
        parts: list[pl.Series | np.ndarray] = []
        for (name, dtype), has_end in zip(self._columns[:count], self._has_end, strict=False):
            column = frame[name].cast(dtype)
            parts.append(_text_part(column, has_end, self._is_escaped) if is_text(dtype) else _fixed_part(column))
        return parts

    def _times(self, frame: pl.DataFrame, names: Sequence[str]) -> list[pl.Series | np.ndarray]:
        return [_number_bytes(frame[name].cast(self.schema[name])) for name in names]

    def _decode_rest(self, cut: _Cut) -> dict[str, pl.Series]:
        """Cut columns of fixed width off both ends; what is left in the middle is text, or is parsed row by row."""
        columns: dict[str, pl.Series] = {}
        first, last = 0, len(self._columns)
        while first < last and is_fixed_key(self._columns[first][1]):
            name, dtype = self._columns[first]
            columns[name], first = _fixed_column(cut.left(1 + width(dtype)), dtype), first + 1
        while first < last and is_fixed_key(self._columns[last - 1][1]):
            name, dtype = self._columns[last - 1]
            columns[name], last = _fixed_column(cut.right(1 + width(dtype)), dtype), last - 1
        if first == last:
            return columns
        texts = self._columns[first:last]
        if len(cut) > FEW:
            middle = cut.middle(self._has_end[last - 1])
            is_plain = not (self._is_escaped and _any_has(middle, ESCAPED))
            if is_plain and len(texts) == 1:
                return columns | {texts[0][0]: _text_column(middle, texts[0][1])}
            if is_plain and all(dtype == pl.String for _, dtype in texts):
                fields = middle.cast(pl.String).str.split_exact("\x00", len(texts) - 1).struct.unnest()
                return columns | {
                    name: _text_column(field.cast(pl.Binary), pl.String())
                    for (name, _), field in zip(texts, fields, strict=True)
                }
        rows = [self._parse(key, first, last) for key in cut.each_middle()]
        for (name, dtype), values in zip(texts, zip(*rows, strict=True), strict=True):
            columns[name] = (
                pl.Series(name, values, dtype=pl.Binary).cast(dtype)
                if is_text(dtype)
                else _fixed_column(_rows_of(values), dtype)
            )
        return columns

    def _parse(self, key: bytes, first: int, last: int) -> list[bytes | None]:
        """One key's components: text without its escapes, numbers with their flag."""
        parts: list[bytes | None] = []
        position = 0
        for index in range(first, last):
            dtype = self._columns[index][1]
            if is_fixed_key(dtype):
                parts.append(key[position : position + 1 + width(dtype)])
                position += 1 + width(dtype)
                continue
            end = len(key)
            if self._has_end[index]:
                end = key.index(END, position)
                while key[end : end + 2] == ESCAPED:
                    end = key.index(END, end + 2)
            is_null = key[position : position + 1] == NULL
            text = key[position + 1 : end]
            parts.append(None if is_null else text.replace(ESCAPED, END) if self._is_escaped else text)
            position = end + 1
        return parts


class RowCodec:
    """Value columns and ``_ts`` (Int64, ms) to bytes and back.

    Rows of numbers, booleans and times have a fixed width (a null bitmap, then the columns) and are packed
    by numpy; rows with anything else are msgpack arrays, with a map for each struct in them, and decimals as text.
    ``_ts`` comes first in both.
    """

    def __init__(self, schema: pl.Schema) -> None:
        self.schema = pl.Schema({"_ts": pl.Int64(), **schema})
        self._row: np.dtype[Any] | None = None
        if all(is_fixed(dtype) for dtype in schema.values()):
            bitmap = (len(self.schema) + 7) // 8
            self._row = np.dtype(
                [
                    ("_nulls", "u1", (bitmap,)),
                    *((f"c{index}", numpy_type(dtype)) for index, dtype in enumerate(self.schema.values())),
                ]
            )
            self._absent = b"\xff" * bitmap + bytes(self._row.itemsize - bitmap)
        else:
            self._absent = msgspec.msgpack.encode([None] * len(self.schema))

    def encode(self, frame: pl.DataFrame) -> list[bytes]:
        """One value per row, in order; ``frame`` has the value columns and ``_ts``, others are ignored."""
        if frame.is_empty():
            return []
        columns = [frame[name].cast(dtype).cast(packed_dtype(dtype)) for name, dtype in self.schema.items()]
        if self._row is None:
            return list(
                map(msgspec.msgpack.Encoder().encode, zip(*(column.to_list() for column in columns), strict=True))
            )
        rows = np.zeros(frame.height, self._row)
        for index, column in enumerate(columns):
            if column.null_count():
                rows["_nulls"][:, index // 8] |= column.is_null().to_numpy().astype(np.uint8) << (index % 8)
                column = column.fill_null(False if column.dtype == pl.Boolean else 0)
            rows[f"c{index}"] = column.to_numpy()
        return self._packed(rows)

    def decode(self, values: Sequence[bytes | None]) -> pl.DataFrame:
        """Value columns, then ``_ts``; the row for a None is null in all of them.

        Raises:
            RowFormatError: The bytes were written under another schema.
        """
        if not values:
            return self._ordered(pl.DataFrame(schema=self.schema))
        if values.count(None) == len(values):
            return framed([column.new_from_index(0, len(values)) for column in self._no_row.get_columns()])
        return self._ordered(
            self._unpack_objects(self._joined(values), len(values))
            if self._row is None
            else self._unpack_numbers(self._records(values))
        )

    @cached_property
    def _no_row(self) -> pl.DataFrame:
        return self._ordered(pl.DataFrame({name: [None] for name in self.schema}, schema=self.schema))

    def encode_numbers(self, columns: Mapping[str, np.ndarray]) -> list[bytes]:
        """``encode`` for columns as numbers, none of them null; all have to have a fixed width."""
        rows = np.zeros(len(columns["_ts"]), self._row)
        for index, name in enumerate(self.schema):
            rows[f"c{index}"] = columns[name]
        return self._packed(rows)

    def decode_numbers(self, values: Sequence[bytes | None]) -> dict[str, np.ndarray]:
        """``decode`` with columns as numbers, times in ms, and 0 for null; all have to have a fixed width."""
        rows = self._records(values)
        return {name: rows[f"c{index}"] for index, name in enumerate(self.schema)}

    def _joined(self, values: Sequence[bytes | None]) -> bytes:
        if None not in values:
            return b"".join(cast(Sequence[bytes], values))
        return b"".join([self._absent if value is None else value for value in values])

    def _records(self, values: Sequence[bytes | None]) -> np.ndarray:
        packed, count, row = self._joined(values), len(values), self._row
        assert row is not None, "not of a fixed width"
        if len(packed) != count * row.itemsize:
            raise self._format_error(f"{count} rows take {len(packed)} bytes, not {count * row.itemsize}")
        return np.frombuffer(packed, row)

    @staticmethod
    def _packed(rows: np.ndarray) -> list[bytes]:
        packed: list[bytes] = rows.view(f"V{rows.itemsize}").tolist()
        return packed

    def _unpack_numbers(self, rows: np.ndarray) -> pl.DataFrame:
        columns = [
            pl.Series(name, np.ascontiguousarray(rows[f"c{index}"])).cast(dtype)
            for index, (name, dtype) in enumerate(self.schema.items())
        ]
        if (nulls := rows["_nulls"]).any():
            for index, column in enumerate(columns):
                is_null = (nulls[:, index // 8] >> np.uint8(index % 8)) & 1
                if is_null.any():
                    columns[index] = column.set(pl.Series(is_null.astype(bool)), None)
        return framed(columns)

    def _unpack_objects(self, packed: bytes, count: int) -> pl.DataFrame:
        try:
            rows = msgspec.msgpack.decode(struct.pack(">BI", 0xDD, count) + packed, type=list[list[Any]])
            columns = [
                column_of(name, column, packed_dtype(dtype)).cast(dtype)
                for (name, dtype), column in zip(self.schema.items(), zip(*rows, strict=True), strict=True)
            ]
        except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
            raise self._format_error(str(error)) from error
        return framed(columns)

    def _ordered(self, frame: pl.DataFrame) -> pl.DataFrame:
        return picked(frame, [*(name for name in self.schema if name != "_ts"), "_ts"])

    def _format_error(self, reason: str) -> RowFormatError:
        return RowFormatError(tuple(self.schema), reason)


def codec(kind: Callable[..., Codec], columns: pl.Schema, *options: Hashable) -> Codec:
    """The codec of that ``kind`` for ``columns``, made once: stores are opened anew for each epoch, and making their
    codecs takes longer than an epoch of a few records uses them."""
    return cast(Codec, _made(kind, tuple(columns.items()), *options))


@lru_cache(4096)
def _made(kind: Callable[..., object], columns: tuple[tuple[str, pl.DataType], ...], *options: Hashable) -> object:
    return kind(pl.Schema(columns), *options)


def time_bytes(time_ms: int) -> bytes:
    """A time as written in keys; sorts as the number does."""
    return (time_ms + (1 << 63)).to_bytes(TIME_BYTES, "big")


def unscaled(number: int, dtype: pl.Decimal) -> Decimal:
    """The decimal that a column of type ``dtype`` keeps as ``number``."""
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -dtype.scale))


def is_text(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Binary)


def is_fixed(dtype: pl.DataType) -> bool:
    return dtype.is_integer() or dtype.is_float() or dtype.is_temporal() or dtype == pl.Boolean


def is_fixed_key(dtype: pl.DataType) -> bool:
    """Whether all values of a key column take the same number of bytes."""
    return is_fixed(dtype) or isinstance(dtype, pl.Decimal)


def width(dtype: pl.DataType) -> int:
    """The size of a fixed-width component of a key in bytes, without its flag."""
    if dtype == pl.Boolean:
        return 1
    return DECIMAL_BYTES if isinstance(dtype, pl.Decimal) else 8


def packed_dtype(dtype: pl.DataType) -> pl.DataType:
    """The type whose values msgpack can hold: times as numbers, decimals as text, and these in lists and structs."""
    if isinstance(dtype, pl.Decimal):
        return pl.String()
    if isinstance(dtype, pl.List):
        return pl.List(packed_dtype(dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return pl.Struct({field.name: packed_dtype(field.dtype) for field in dtype.fields})  # type: ignore[arg-type]
    return _physical(dtype)


@cache
def _physical(dtype: pl.DataType) -> pl.DataType:
    return pl.Series([], dtype=dtype).to_physical().dtype


@cache
def numpy_type(dtype: pl.DataType) -> np.dtype[Any]:
    numpy: np.dtype[Any] = pl.Series([], dtype=dtype).to_physical().to_numpy().dtype
    return numpy.newbyteorder("<")


def _joined(parts: list[pl.Series | np.ndarray]) -> pl.Series:
    """Concatenate the components of each row; adjacent ones of fixed width are joined first, by numpy."""
    merged: list[pl.Series | np.ndarray] = []
    for part in parts:
        if merged and isinstance(part, np.ndarray) and isinstance(merged[-1], np.ndarray):
            merged[-1] = np.concatenate([merged[-1], part], axis=1)
        else:
            merged.append(part)
    columns = [part if isinstance(part, pl.Series) else _binary(part) for part in merged]
    if not columns:
        raise ValueError("a key needs at least one column")
    keys = columns[0]
    for column in columns[1:]:
        keys = keys + column
    return keys


def _binary(rows: np.ndarray) -> pl.Series:
    packed = np.ascontiguousarray(rows)
    return pl.Series(packed.view(f"V{packed.shape[1]}").ravel().tolist(), dtype=pl.Binary)


def _text_part(column: pl.Series, has_end: bool, is_escaped: bool) -> pl.Series:
    text = column.cast(pl.Binary)
    if is_escaped and _any_has(text, END):
        text = pl.Series(
            [None if value is None else value.replace(END, ESCAPED) for value in text.to_list()], dtype=pl.Binary
        )
    end = END if has_end else b""
    part = _PRESENT + text + _END if has_end else _PRESENT + text
    return part.fill_null(pl.lit(NULL + end)) if part.null_count() else part


def _any_has(texts: pl.Series, part: bytes) -> bool:
    """Whether ``part`` stands in any of the values."""
    if len(texts) > FEW:
        return bool(texts.bin.contains(part).any())
    return any(text is not None and part in text for text in texts.to_list())


def _text_column(part: pl.Series, dtype: pl.DataType) -> pl.Series:
    """The text of components that have neither an end marker nor escapes."""
    of = pl.col(part.name).bin
    text, is_null = part.to_frame().select_seq(of.slice(1), of.starts_with(NULL).alias("_is_null"))
    return (text.set(is_null, None) if is_null.any() else text).cast(dtype)


def _fixed_part(column: pl.Series) -> np.ndarray:
    flags = np.full(len(column), PRESENT[0], np.uint8)
    if column.null_count():
        flags[column.is_null().to_numpy()] = NULL[0]
    return np.concatenate([flags[:, None], _number_bytes(column)], axis=1)


def _fixed_column(part: np.ndarray, dtype: pl.DataType) -> pl.Series:
    """The column of components with their flags; shape (rows, width with the flag)."""
    column, is_null = _numbers(part[:, 1:], dtype), part[:, 0] == NULL[0]
    return column.set(pl.Series(is_null), None) if is_null.any() else column


def _number_bytes(column: pl.Series) -> np.ndarray:
    """Big-endian bytes that sort as the numbers do; shape (rows, width), nulls as zero."""
    values = column.cast(pl.Int64) if column.dtype.is_temporal() else column
    if values.null_count():
        values = values.fill_null(False if values.dtype == pl.Boolean else 0)
    if isinstance(column.dtype, pl.Decimal):
        numbers = values.to_physical().to_list()
        packed = b"".join([(number + DECIMAL_SIGN).to_bytes(DECIMAL_BYTES, "big") for number in numbers])
        return np.frombuffer(packed, np.uint8).reshape(-1, DECIMAL_BYTES)
    if values.dtype == pl.Boolean:
        return values.to_numpy().astype(np.uint8)[:, None]
    if values.dtype.is_float():
        floats = values.cast(pl.Float64).to_numpy() + 0.0  # one zero; the next line makes one NaN
        bits = np.where(np.isnan(floats), np.nan, floats).view(np.uint64)
        bits = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    elif values.dtype == pl.UInt64:
        bits = values.to_numpy()
    else:
        bits = values.cast(pl.Int64).to_numpy().view(np.uint64) ^ _SIGN
    return bits.astype(">u8").view(np.uint8).reshape(-1, 8)


def _numbers(part: np.ndarray, dtype: pl.DataType) -> pl.Series:
    """The inverse of ``_number_bytes``."""
    if dtype == pl.Boolean:
        return pl.Series(part[:, 0] == 1)
    if isinstance(dtype, pl.Decimal):
        numbers = [int.from_bytes(row, "big") - DECIMAL_SIGN for row in map(bytes, part)]
        return pl.Series([unscaled(number, dtype) for number in numbers], dtype=dtype)
    bits = np.ascontiguousarray(part).view(">u8").ravel().astype(np.uint64)
    if dtype == pl.UInt64:
        return pl.Series(bits)
    if dtype.is_float():
        return pl.Series(np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float64)).cast(dtype)
    return pl.Series((bits ^ _SIGN).view(np.int64)).cast(_physical(dtype)).cast(dtype)


class _Cut:
    """Keys, at least one, of which components of fixed width are cut off at both ends; shape (rows, width)."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys, self._left, self._right = keys, 0, 0

    def __len__(self) -> int:
        return len(self._keys)

    @cached_property
    def _bytes(self) -> np.ndarray:
        """The keys one after another."""
        return np.frombuffer(b"".join(self._keys), np.uint8)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each key begins and ends."""
        ends = np.cumsum(np.fromiter(map(len, self._keys), np.int64, len(self._keys)))
        return np.concatenate([[0], ends[:-1]]), ends

    def left(self, width: int) -> np.ndarray:
        """The next component from the left."""
        self._left += width
        return self._at(self._places[0] + self._left - width, width)

    def right(self, width: int) -> np.ndarray:
        """The next component from the right."""
        self._right += width
        return self._at(self._places[1] - self._right, width)

    def middle(self, without: int = 0) -> pl.Series:
        """What is left of each key, less ``without`` bytes at its end."""
        body, left, right = pl.Series("middle", self._keys, dtype=pl.Binary), self._left, self._right + without
        if left == right == 0:
            return body
        part = pl.col("middle").bin
        return body.to_frame().select_seq(part.slice(left, part.size() - left - right)).to_series()

    def each_middle(self) -> list[bytes]:
        """What is left of each key, to be looked at one by one."""
        return [key[self._left : len(key) - self._right] for key in self._keys]

    def _at(self, starts: np.ndarray, width: int) -> np.ndarray:
        found: np.ndarray = np.lib.stride_tricks.sliding_window_view(self._bytes, width)[starts]
        return found


def _rows_of(parts: Sequence[bytes]) -> np.ndarray:
    """Parts of one width as rows; shape (parts, width)."""
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), -1)
