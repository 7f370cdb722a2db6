"""Names of column types: polars' own, which commit rows keep, and the shorter ones that people read."""

from __future__ import annotations

import ast
from typing import Any

import polars as pl

_NAMES = {
    "String": "string",
    "Int64": "long",
    "Int32": "integer",
    "Int16": "short",
    "Int8": "byte",
    "UInt64": "unsigned long",
    "UInt32": "unsigned integer",
    "UInt16": "unsigned short",
    "UInt8": "unsigned byte",
    "Float64": "double",
    "Float32": "float",
    "Datetime": "timestamp",
}


def type_name(dtype: pl.DataType) -> str:
    """What people call a type: ``long``, ``decimal(12,2)``, ``array<string>``, ``struct<city: string, zip: string>``.

    Times of all units are called ``timestamp``.
    """
    if isinstance(dtype, pl.Decimal):
        return f"decimal({dtype.precision},{dtype.scale})"
    if isinstance(dtype, pl.List):
        return f"array<{type_name(dtype.inner)}>"  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.dtype)}' for field in dtype.fields)}>"  # type: ignore[arg-type]
    name = type(dtype).__name__
    return _NAMES.get(name, name.lower())


def dtype_of(text: str) -> pl.DataType:
    """The type that polars prints as ``text``.

    Raises:
        ValueError: No type is printed so.
    """
    try:
        dtype = _built(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, AttributeError):
        dtype = None
    if not isinstance(dtype, pl.DataType):
        raise ValueError(f"{text!r} is no column type")
    return dtype


def _built(node: ast.expr | None) -> Any:
    """The types, and the constants among their arguments, that an expression is made of."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _kind(node)()
        case ast.Dict():
            return {_built(key): _built(value) for key, value in zip(node.keys, node.values, strict=True)}
        case ast.Call(func=ast.Name() as name):
            return _kind(name)(*map(_built, node.args), **{str(each.arg): _built(each.value) for each in node.keywords})
    raise TypeError(node)


def _kind(name: ast.Name) -> type[pl.DataType]:
    kind = getattr(pl, name.id)
    if not (isinstance(kind, type) and issubclass(kind, pl.DataType)):
        raise TypeError(name.id)
    return kind
