"""What a serde is: bytes of one Kafka record part to typed columns, a whole batch at a time, and objects to bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl

from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import known_field
from weir.pipelines.serdes.values import misfit, name_of
from weir.state.own_code import failures


@dataclass(frozen=True)
class DecodedColumns:
    """Columns aligned with the bytes they came from."""

    columns: list[pl.Series]
    absent: list[int] = field(default_factory=list)
    """Rows without a value (no bytes, or JSON null); their columns are null."""
    bad: dict[int, str] = field(default_factory=dict)
    """Row to the reason it could not be read; its columns are null."""

    def first(self, rows: int) -> DecodedColumns:
        """Those of the first ``rows``."""
        return DecodedColumns(
            [column[:rows] for column in self.columns],
            [row for row in self.absent if row < rows],
            {row: reason for row, reason in self.bad.items() if row < rows},
        )


class SchemaRegistryError(Exception):
    """The schema registry is not configured, out of reach or refuses; records that this leaves unread are not bad
    input."""


NOT_THE_RECORDS = (SchemaRegistryError, OSError, MemoryError)
"""What reading a record may raise that says nothing about the record."""


class Serde(Protocol):
    """Reads and writes keys or values. One object serves any number of topics and threads."""

    def row_type(self, default_name: str) -> RowType:
        """The columns; a scalar that was given no name takes ``default_name`` (``key`` or ``value``)."""
        ...

    def decode(self, items: pl.Series, row_type: RowType) -> DecodedColumns:
        """Columns of ``row_type`` for ``items`` (Binary, null where a record has none).

        Bad bytes are no error. If it raises one all the same, it is called again for parts of ``items``, down to the
        records that cause it, except for ``NOT_THE_RECORDS``.
        """
        ...

    def encode(self, item: Any) -> bytes | None:
        """The bytes of one object; None stays None.

        Raises:
            TypeError: The object is of another type than the serde's.
            ValueError: Its value cannot be written.
        """
        ...


def fields_of(serde: Serde, item: Any, annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Name to value of an object's fields; a field with the annotation None takes any value.

    Raises:
        TypeError: The object lacks a field, or a field that is not None does not fit its annotation.
    """
    try:
        fields = {name: getattr(item, name) for name in annotations}
    except AttributeError:
        missing = [name for name in annotations if not hasattr(item, name)]
        raise TypeError(
            f"{serde!r} takes objects with {', '.join(annotations)}; {item!r} ({type(item).__name__}) has "
            f"no {', '.join(missing)}"
        ) from None
    for name, value in fields.items():
        annotation = annotations[name]
        if annotation is not None and (found := misfit(known_field(annotation), value, name)):
            raise TypeError(
                f"{serde!r} takes {name_of(found.field)} for {found.path}, found {found.value!r} "
                f"({type(found.value).__name__})"
            )
    return fields


def decode_one_by_one(items: Iterable[bytes | None], decode: Any) -> tuple[list[Any], list[int], dict[int, str]]:
    """Objects of ``items``, with None where absent or bad; ``decode`` raises ValueError with the reason, or whatever
    the bytes make it raise."""
    objects: list[Any] = []
    absent, bad = [], {}
    for index, item in enumerate(items):
        value = None
        if item is None:
            absent.append(index)
        else:
            try:
                value = decode(item)
            except NOT_THE_RECORDS:
                raise
            except failures() as error:
                bad[index] = reason_of(error)
            else:
                if value is None:
                    absent.append(index)
        objects.append(value)
    return objects, absent, bad


def decoded(serde: Serde, items: pl.Series, row_type: RowType) -> DecodedColumns:
    """What ``serde`` makes of ``items``; a record that makes it raise an error is bad, and the others are read.

    Raises:
        SchemaRegistryError, OSError, MemoryError: That is not the fault of a record.
    """
    try:
        return serde.decode(items, row_type)
    except NOT_THE_RECORDS:
        raise
    except failures() as error:
        if len(items) == 1:
            columns = [pl.Series(name, [None], dtype) for name, dtype in row_type.columns.items()]
            return DecodedColumns(columns, bad={0: reason_of(error)})
    half = len(items) // 2
    first, second = decoded(serde, items[:half], row_type), decoded(serde, items[half:], row_type)
    return DecodedColumns(
        [one.append(other) for one, other in zip(first.columns, second.columns, strict=True)],
        [*first.absent, *(half + row for row in second.absent)],
        first.bad | {half + row: reason for row, reason in second.bad.items()},
    )


def reason_of(error: BaseException) -> str:
    """Why a record cannot be read: the words of a ``ValueError``, which serdes raise for that; else the error too."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def absent_rows(items: pl.Series) -> list[int]:
    """The rows that are null."""
    return items.is_null().arg_true().to_list() if items.null_count() else []
