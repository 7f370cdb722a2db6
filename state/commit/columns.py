"""How columns differ from those of another program or of a table: by name, and part by part inside structs and lists.

The order of columns and of a struct's fields is no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from weir.state.commit.type_names import type_name
from weir.state.commit.widening import is_wider


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One column, or one part of it, that is new, left out, or of another type."""

    path: str
    """``last``, ``last.ref`` for a field of a struct, ``lines[].sku`` for one of the structs in a list."""
    before: pl.DataType | None
    """None if it is new."""
    now: pl.DataType | None
    """None if it is left out."""

    @property
    def is_other_type(self) -> bool:
        return self.before is not None and self.now is not None

    @property
    def is_wider(self) -> bool:
        """Whether it has a wider type."""
        return self.before is not None and self.now is not None and is_wider(self.before, self.now)

    @property
    def struct(self) -> str:
        """The path of the struct that has the field; "" for a column."""
        return self.path.rpartition(".")[0]

    def __str__(self) -> str:
        if self.before is None:
            return f"`{self.path}` {type_name(self.now)} is new" if self.now is not None else self.path
        if self.now is None:
            return f"`{self.path}` is left out"
        names = type_name(self.before), type_name(self.now)
        before, now = names if names[0] != names[1] else (str(self.before), str(self.now))
        return f"`{self.path}` was {before}, is {now}"


def differences(before: Mapping[str, pl.DataType], now: Mapping[str, pl.DataType]) -> list[Difference]:
    """What is new or of another type in the order of ``now``, then what is left out."""
    return sorted(_differences("", before, now), key=lambda each: each.now is None)


def _differences(
    struct: str, before: Mapping[str, pl.DataType], now: Mapping[str, pl.DataType]
) -> Iterator[Difference]:
    for name in (*now, *(name for name in before if name not in now)):
        yield from _parts(f"{struct}.{name}" if struct else name, before.get(name), now.get(name))


def _parts(path: str, before: pl.DataType | None, now: pl.DataType | None) -> Iterator[Difference]:
    if isinstance(before, pl.Struct) and isinstance(now, pl.Struct):
        yield from _differences(path, fields_of(before), fields_of(now))
    elif isinstance(before, pl.List) and isinstance(now, pl.List):
        yield from _parts(f"{path}[]", before.inner, now.inner)  # type: ignore[arg-type]
    elif before != now:
        yield Difference(path=path, before=before, now=now)


def merged(before: Mapping[str, pl.DataType], now: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    """The columns of both, in the order of ``before``, with the types of ``now``."""
    return {
        name: _merged(before[name], now[name]) if name in before and name in now else {**now, **before}[name]
        for name in (*before, *(name for name in now if name not in before))
    }


def _merged(before: pl.DataType, now: pl.DataType) -> pl.DataType:
    if isinstance(before, pl.Struct) and isinstance(now, pl.Struct):
        return pl.Struct(merged(fields_of(before), fields_of(now)))
    if isinstance(before, pl.List) and isinstance(now, pl.List):
        return pl.List(_merged(before.inner, now.inner))  # type: ignore[arg-type]
    return now


def fitted(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Rows with the columns of ``schema``: null where they have none, or one whose values have no place in its type."""
    columns = []
    for name, dtype in schema.items():
        kept = _kept(rows.schema[name], dtype) if name in rows.columns else None
        columns.append(
            pl.lit(None, dtype).alias(name)
            if kept is None
            else pl.col(name).cast(kept, strict=False).cast(dtype, strict=False)
        )
    return rows.select(columns)


def _kept(found: pl.DataType, wanted: pl.DataType) -> pl.DataType | None:
    """What is left of ``wanted`` without the fields that values of ``found`` have nothing for; None if nothing is."""
    if isinstance(found, pl.Struct) and isinstance(wanted, pl.Struct):
        there, fields = fields_of(found), dict[str, pl.DataType]()
        for name, dtype in fields_of(wanted).items():
            if name in there and (kept := _kept(there[name], dtype)) is not None:
                fields[name] = kept
        return pl.Struct(fields) if fields else None
    if isinstance(found, pl.List) and isinstance(wanted, pl.List):
        inner = _kept(found.inner, wanted.inner)  # type: ignore[arg-type]
        return None if inner is None else pl.List(inner)
    return wanted if found == wanted or is_wider(found, wanted) or is_wider(wanted, found) else None


def fields_of(struct: pl.Struct) -> dict[str, pl.DataType]:
    """A struct's fields in order."""
    return {field.name: field.dtype for field in struct.fields}  # type: ignore[misc]
