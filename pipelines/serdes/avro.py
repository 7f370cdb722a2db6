"""Avro with schemas in a registry, read into the schema that the program declares.

A record is read with its writer's schema and resolved against the declared one by Avro's rules: fields that are not
declared are skipped, a missing field is null for ``X | None`` and bad input otherwise, and int becomes long or double.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from operator import getitem
from typing import Any

import polars as pl

from weir.pipelines.serdes.avro_limits import contains_itself, has_items_without_bytes
from weir.pipelines.serdes.avro_schema import as_written, converter, reader_schema, schema_of
from weir.pipelines.serdes.registry import HEADER_BYTES, RegistrySerde, header, schema_id_of
from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.pipelines.serdes.serde import DecodedColumns, decode_one_by_one, fields_of
from weir.pipelines.serdes.shapes import Field, record_of, schema_class
from weir.pipelines.serdes.values import misfit, series_of


class Avro(RegistrySerde):
    """``Avro(Flight)``: the fields of the dataclass ``Flight``, or of an Arrow or polars schema, as columns.

    Encoding registers the declared schema under ``subject``, by default the dataclass's name.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Order:
        ...     item: str
        ...     cents: int | None
        >>> Avro(Order, subject="orders-value")
        Avro(Order)
    """

    def __init__(self, schema: Any, *, subject: str | None = None) -> None:
        self._declared, self.cls = schema, schema_class(schema)
        self._record = record_of(self.cls)
        self.subject = subject or self.cls.__name__
        self._row_type = row_type_of(self.cls, "")
        self._schema, self._convert = schema_of(self._record), converter(Field(self._record))
        self._readers: dict[int, Callable[[io.BytesIO], Any]] = {}
        self._header: bytes | None = None

    def __reduce__(self) -> tuple[Callable[..., Avro], tuple[Any, str]]:
        return _avro, (self._declared, self.subject)

    def __repr__(self) -> str:
        return f"Avro({self.cls.__name__})"

    def connect(self, registry: Any) -> None:
        super().connect(registry)
        self._readers, self._header = {}, None

    def row_type(self, default_name: str) -> RowType:
        return self._row_type

    def encode(self, item: Any) -> bytes | None:
        if item is None:
            return None
        import fastavro

        if self._header is None:
            self._header = header(self.registry.register(self.subject, json.dumps(self._schema), "AVRO"))
        fields_of(self, item, self._row_type.annotations)
        written = io.BytesIO()
        fastavro.schemaless_writer(written, fastavro.parse_schema(self._schema), as_written(Field(self._record), item))
        return self._header + written.getvalue()

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        """Raises ``SchemaRegistryError`` when the registry cannot be asked for an unknown schema."""
        records, absent, bad = decode_one_by_one(items, self._decode_one)
        try:
            return DecodedColumns(_columns(row_type, records), absent, bad)
        except (OverflowError, TypeError, ValueError):
            field = Field(self._record)
            for index, record in enumerate(records):
                if found := misfit(field, record, get=getitem):
                    records[index] = None
                    bad[index] = f"does not fit {self.cls.__name__}: {found.reason} - at `$.{found.path}`"
        return DecodedColumns(_columns(row_type, records), absent, bad)

    def _decode_one(self, item: bytes) -> Any:
        schema_id = schema_id_of(item)
        read = self._readers.get(schema_id)
        if read is None:
            read = self._readers[schema_id] = self._reader(schema_id)
        try:
            record = read(io.BytesIO(item[HEADER_BYTES:]))
        except Exception as error:  # on malformed bytes fastavro raises errors of all kinds
            raise ValueError(
                f"not a record of schema {schema_id} that fits {self.cls.__name__}: {type(error).__name__}: {error}"
            ) from None
        return self._convert(record) if self._convert else record

    def _reader(self, schema_id: int) -> Callable[[io.BytesIO], Any]:
        import fastavro
        from fastavro import _read_py

        writer = fastavro.parse_schema(json.loads(self.registry.schema(schema_id)))
        if not isinstance(writer, dict) or writer["type"] != "record":
            raise ValueError(f"schema {schema_id} is not a record schema, but {self!r} reads only records")
        if has_items_without_bytes(writer):
            raise ValueError(
                f"schema {schema_id} has an array whose items take no bytes, so that a few bytes could be any number "
                "of items; write such records with a schema without that array"
            )
        declared = fastavro.parse_schema(reader_schema(self._record, writer))
        # Python's limit of recursion holds for the reader in Python alone, which is slower.
        read = _read_py.schemaless_reader if contains_itself(writer) else fastavro.schemaless_reader
        return lambda encoded: read(encoded, writer, declared)


def _avro(schema: Any, subject: str) -> Avro:
    return Avro(schema, subject=subject)


def _columns(row_type: RowType, records: list[Any]) -> list[pl.Series]:
    return [
        series_of(name, field, [None if record is None else record[name] for record in records], getitem)
        for name, field in row_type.fields.items()
    ]
