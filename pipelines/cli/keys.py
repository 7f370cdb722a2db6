"""Keys of a store as text on the command line: a plain value, values with ``-`` between them, or a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from weir.pipelines.operations.errors import OperationError

if TYPE_CHECKING:
    import polars as pl

_EXAMPLES: Mapping[type, Any] = {
    int: 7,
    float: 1.5,
    bool: True,
    datetime: "2013-01-01T10:00:00Z",
    date: "2013-01-01",
    time: "10:00:00",
    Decimal: "1.50",
}


def parse_key(text: str, columns: Mapping[str, pl.DataType], option: str = "KEY") -> dict[str, Any]:
    """``text`` as one value per key column; ``option`` is what errors call it.

    Text that begins with ``{`` is a JSON object with exactly these columns. Other text is the value of a single column;
    for several, the values in order with ``-`` between them (the last gets the rest), such as ``UA-EWR``.

    Raises:
        OperationError: A column is missing, unknown or named twice, or a value has the wrong type.
    """
    if text.startswith("{"):
        return _from_json(text, columns, len(columns), option)
    parts = text.split("-", len(columns) - 1)
    if len(parts) != len(columns):
        raise _unfit(option, f"{text!r} has {len(parts)} of {len(columns)} values", columns)
    return {name: _of_text(part, name, columns, option) for name, part in zip(columns, parts, strict=True)}


def parse_prefix(text: str, columns: Mapping[str, pl.DataType]) -> tuple[Any, ...]:
    """``text`` as values of the first key columns: a JSON object with these, or the value of the first.

    Raises:
        OperationError: A column is unknown, left out or named twice, or a value has the wrong type.
    """
    if text.startswith("{"):
        return tuple(_from_json(text, columns, 1, "--prefix").values())
    return (_of_text(text, next(iter(columns)), columns, "--prefix"),)


def utc(moment: datetime) -> datetime:
    """``moment``, taken as UTC if it names no zone."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _from_json(text: str, columns: Mapping[str, pl.DataType], at_least: int, option: str) -> dict[str, Any]:
    """Values by column, in the columns' order: of all columns, or of the first ones, ``at_least`` so many."""
    try:
        pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError as error:
        raise _unfit(option, f"{text!r} begins with {{ but is not JSON ({error})", columns) from None
    values = dict(pairs)
    problems = [f"{name!r} is not one of its columns" for name in values if name not in columns]
    problems += [f"{name!r} is given twice" for name in values if sum(name == each for each, _ in pairs) > 1]
    last = max([at_least, *(place for place, name in enumerate(columns, start=1) if name in values)])
    problems += [f"{name!r} is missing" for name in list(columns)[:last] if name not in values]
    if problems:
        raise _unfit(option, f"{text} does not fit: {', '.join(problems)}", columns)
    if all(value is None for value in values.values()):
        raise _unfit(option, f"{text} is null, and no row has a null key", columns)
    return {name: _of_json(values[name], name, columns, option) for name in list(columns)[:last]}


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object in order, also those of one name."""


def _of_json(value: Any, name: str, columns: Mapping[str, pl.DataType], option: str) -> Any:
    """A JSON value as one of the column: text for text, bytes and times, numbers for numbers; null stays None."""
    from weir.pipelines.serdes.row_type import fits

    kind = _kinds(columns)[name]
    if value is None or (kind in (int, float, bool) and fits(kind, value)):
        return value
    if kind not in (int, float, bool) and isinstance(value, str):
        return _of_text(value, name, columns, option)
    shown = json.dumps(dict(value) if isinstance(value, _Pairs) else value)
    raise _unfit(option, f"{shown} is not a value of the column {name!r}", columns)


def _of_text(text: str, name: str, columns: Mapping[str, pl.DataType], option: str) -> Any:
    kind = _kinds(columns)[name]
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is datetime:
            return utc(datetime.fromisoformat(text))
        if kind is date or kind is time:
            return kind.fromisoformat(text)
        return text.encode() if kind is bytes else kind(text)
    except (InvalidOperation, KeyError, ValueError, TypeError):
        raise _unfit(option, f"{text!r} is not a value of the column {name!r}", columns) from None


def _unfit(option: str, reason: str, columns: Mapping[str, pl.DataType]) -> OperationError:
    """An error that names the key's columns and shows a key."""
    kinds = _kinds(columns)
    named = ", ".join(f"{name} ({getattr(kind, '__name__', kind)})" for name, kind in kinds.items())
    example = json.dumps({name: _EXAMPLES.get(kind, "abc") for name, kind in kinds.items()}, ensure_ascii=False)
    return OperationError(
        f"{option}: {reason}; the key has the column{'s' * (len(columns) > 1)} {named}, for example '{example}'"
    )


def _kinds(columns: Mapping[str, pl.DataType]) -> dict[str, Any]:
    """The Python type of each column's values."""
    from weir.pipelines.serdes.shapes import annotation_of, normal_dtype

    kinds = {name: annotation_of(normal_dtype(dtype, name)) for name, dtype in columns.items()}
    return {name: get_args(kind)[0] if get_origin(kind) is Annotated else kind for name, kind in kinds.items()}
