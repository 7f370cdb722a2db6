"""Records of one topic partition as columns, filled by a callback in C (``_columns.c``) and handed to polars.

The data is not copied: polars imports the columns through Arrow's C data interface (the PyCapsule protocol).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

RECORD_SCHEMA = pl.Schema({"key": pl.Binary(), "value": pl.Binary(), "timestamp_ms": pl.Int64(), "offset": pl.Int64()})
"""Undecoded records of one topic partition; null where a record has no key or value."""
RECORD_HEADERS = pl.List(pl.Struct({"key": pl.String(), "value": pl.Binary()}))
"""The type of the column ``headers``, which records have if it is asked for: in the record's order, none left out."""
_EXPORTED = {"key": 0, "value": 1, "timestamp_ms": 4, "offset": 5}
_HEADER_NAMES, _HEADER_VALUES, _HEADER_ENDS = 2, 3, 6
ERROR_BYTES = 512


class _Fields(ctypes.Structure):
    """The part of ``struct columns`` in ``_columns.c`` that callers see."""

    _fields_ = (
        ("end", ctypes.c_int64),
        ("until_ms", ctypes.c_int64),
        ("max_bytes", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("next_offset", ctypes.c_int64),
        ("headers", ctypes.c_int64),
        ("is_complete", ctypes.c_int32),
        ("is_out_of_memory", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("error_offset", ctypes.c_int64),
        ("error_text", ctypes.c_char * ERROR_BYTES),
    )


class _ArrowSchema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _ArrowArray(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Column:
    """One column on its way to polars."""

    def __init__(self, columns: Any, which: int) -> None:
        self._schema, self._array = _ArrowSchema(), _ArrowArray()
        if not compiled().columns_export(columns, which, ctypes.byref(self._schema), ctypes.byref(self._array)):
            raise MemoryError

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return (
            _capsule(ctypes.addressof(self._schema), b"arrow_schema", None),
            _capsule(ctypes.addressof(self._array), b"arrow_array", None),
        )


class RecordColumns:
    """Columns filled by ``take``, librdkafka's consume callback, up to a bound; then ``frame`` hands them out.

    ``timestamp_of`` and ``stop`` are the addresses of ``rd_kafka_message_timestamp`` and ``rd_kafka_yield``; ``client``
    is the latter's argument. With ``headers_of`` and ``header_at``, those of ``rd_kafka_message_headers`` and
    ``rd_kafka_header_get_all``, there is a column ``headers``, too.

    Raises:
        ImportError: ``_columns.c`` is not compiled; the text names the command.
    """

    def __init__(
        self,
        timestamp_of: int | None,
        stop: int | None,
        client: int | None,
        headers_of: int | None = None,
        header_at: int | None = None,
    ) -> None:
        self.schema = record_schema(with_headers=headers_of is not None)
        self.pointer = compiled().columns_new(timestamp_of, stop, client, headers_of, header_at)
        if not self.pointer:
            raise MemoryError
        self.take = address_of(compiled().columns_take)
        """The address of the callback, to be called with ``pointer``."""

    @property
    def found(self) -> Any:
        """The fields of ``struct columns``: bounds to set, and what was found."""
        return self.pointer.contents

    def begin_at(self, offset: int) -> None:
        """Discard all rows, and skip records before ``offset``."""
        compiled().columns_clear(self.pointer, offset)

    def frame(self) -> pl.DataFrame:
        """The rows since the last call, as ``schema``."""
        if not self.found.rows:
            return self.schema.to_frame()
        columns = [pl.Series(_Column(self.pointer, which)).alias(name) for name, which in _EXPORTED.items()]
        if "headers" in self.schema:
            columns.append(self._headers())
        frame = pl.DataFrame(columns)
        self.begin_at(self.found.next_offset)
        return frame

    def _headers(self) -> pl.Series:
        if not self.found.headers:
            return pl.Series("headers", [[]], RECORD_HEADERS).new_from_index(0, self.found.rows)
        rows = self.found.rows
        names, values, ends = (
            pl.Series(_Column(self.pointer, which)) for which in (_HEADER_NAMES, _HEADER_VALUES, _HEADER_ENDS)
        )
        try:
            names = names.cast(pl.String)
        except pl.exceptions.PolarsError:  # Kafka does not enforce UTF-8
            names = pl.Series([name.decode(errors="replace") for name in names.to_list()], dtype=pl.String)
        owners = np.repeat(np.arange(rows), np.diff(ends.to_numpy()))
        pairs = pl.DataFrame({"row": owners, "headers": pl.DataFrame({"key": names, "value": values}).to_struct()})
        lists = pairs.group_by("row", maintain_order=True).agg("headers")
        if lists.height < rows:
            numbers = pl.int_range(rows, dtype=pl.Int64, eager=True).alias("row").to_frame()
            lists = numbers.join(lists, on="row", how="left", maintain_order="left")
            lists = lists.with_columns(pl.col("headers").fill_null(pl.lit([], RECORD_HEADERS)))
        return lists.get_column("headers")

    def close(self) -> None:
        """Call it once; nothing may be called afterwards."""
        compiled().columns_free(self.pointer)


def kept_bytes() -> int:
    """Memory of released columns that this process keeps for further ones, 128 MB at most."""
    return int(compiled().columns_kept())


def forget_kept() -> None:
    """Return it to the system."""
    compiled().columns_forget()


def record_schema(*, with_headers: bool) -> pl.Schema:
    """``RECORD_SCHEMA``, with the column ``headers`` if it is asked for."""
    return pl.Schema({**RECORD_SCHEMA, "headers": RECORD_HEADERS}) if with_headers else RECORD_SCHEMA


def declare(loaded: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> None:
    """Set the result and argument types of a library's function."""
    function = getattr(loaded, name)
    function.restype, function.argtypes = result, arguments


def address_of(function: Any) -> int | None:
    """The address of a library's function."""
    return ctypes.cast(function, ctypes.c_void_p).value


@cache
def compiled() -> ctypes.CDLL:
    """The library made of ``_columns.c`` and ``_outgoing.c``.

    Raises:
        ImportError: It is not compiled; the text names the command.
    """
    file = Path(__file__).with_name("_columns.so")
    if not file.exists():
        raise ImportError(
            "weir.infra.kafka._columns is not compiled: run `make setup` in a clone, or reinstall weir-streams"
        )
    library = ctypes.CDLL(str(file))
    pointer, columns = ctypes.c_void_p, ctypes.POINTER(_Fields)
    declare(library, "columns_new", columns, pointer, pointer, pointer, pointer, pointer)
    declare(library, "columns_clear", None, columns, ctypes.c_int64)
    declare(library, "columns_free", None, columns)
    declare(library, "columns_kept", ctypes.c_size_t)
    declare(library, "columns_forget", None)
    declare(library, "outgoing_produce", ctypes.c_int32, pointer, pointer)
    declare(library, "outgoing_failed", None, pointer, pointer, pointer)
    declare(library, "columns_export", ctypes.c_int32, columns, ctypes.c_int32, pointer, pointer)
    return library
