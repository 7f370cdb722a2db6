"""The serdes of a store's changelog in Kafka Streams: those that the program suggests; columns to bytes and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.serdes.scalar import Bytes, Float64, Int32, Int64, String
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.topology import Node
from weir.pipelines.topology.nodes import SourceNode

_SCALARS: dict[pl.DataType, Serde] = {
    pl.String(): String(),
    pl.Int64(): Int64(),
    pl.Binary(): Bytes(),
    pl.Float64(): Float64(),
}
EXACT = (String, Int64, Int32, Float64, Bytes)
"""Serdes that give the same bytes as Kafka's for every value."""


@dataclass(frozen=True, kw_only=True)
class StoreSerdes:
    """How the bytes of a store's changelog become the columns of a store of Weir."""

    key: Serde
    value: Serde
    """Reads the state: what the store holds, not the results computed from it."""
    has_timestamps: bool = False
    """Whether 8 bytes of timestamp precede each value."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a store's rows, its key or its value: the columns and the serde that writes them."""

    store: str
    name: str
    """``key`` or ``value``."""
    columns: pl.Schema
    serde: Serde
    written_as: pl.Schema
    """The columns under the names that the serde gives them, if there are several."""

    def __post_init__(self) -> None:
        found = self.serde.row_type(next(iter(self.columns), "value")).columns
        is_single = len(found) == len(self.columns) == 1
        if list(found.values()) != list(self.columns.values()) or not (
            is_single or list(found) == list(self.written_as)
        ):
            raise MigrationError(
                f"store {self.store!r}: its {self.name} is read as {dict(found)} by {self.serde!r}, but the store has "
                f"{dict(self.columns)}; give serdes with the store's columns"
            )

    def decode(self, items: pl.Series, offsets: pl.Series, where: str) -> list[pl.Series]:
        """The columns of ``items``, none of them null; ``offsets`` and ``where`` name what cannot be read.

        Raises:
            MigrationError: The serde cannot read an item.
        """
        decoded = self.serde.decode(items, self.serde.row_type(next(iter(self.columns))))
        if bad := [*decoded.bad.items(), *((index, "is empty") for index in decoded.absent)]:
            index, reason = min(bad)
            raise MigrationError(
                f"{where}, store {self.store!r}: its {self.name} at offset {offsets[index]} cannot be read by "
                f"{self.serde!r}: {reason}; give the serdes that the application wrote it with"
            )
        return [column.alias(name) for column, name in zip(decoded.columns, self.columns, strict=True)]

    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        """The bytes of each row of ``rows``, which has the columns among others.

        Raises:
            MigrationError: The serde cannot write a row.
        """
        row_type = self.serde.row_type(next(iter(self.columns)))
        renamed = rows.select(self.columns.names()).rename(dict(zip(self.columns, row_type.columns, strict=True)))
        try:
            return [self.serde.encode(item) or b"" for item in row_type.to_objects(renamed)]
        except (TypeError, ValueError) as error:
            raise MigrationError(
                f"store {self.store!r}: its {self.name} cannot be written by {self.serde!r}: {error}; give the serdes "
                "that the application reads it with"
            ) from None


def suggested_part(
    store: str, name: str, node: Node, columns: pl.Schema, given: StoreSerdes | None, source_columns: pl.Schema
) -> Part:
    """The key or value of a store of ``node``, with the serde given, that of the nearest topic with these columns
    (under their names there, ``source_columns``), or that of a single text, number or bytes column.

    Raises:
        MigrationError: The program suggests none, or the serde has other columns.
    """
    serde = None if given is None else getattr(given, name)
    if serde is None:
        for source in sources_of(node):
            found = source.record.key if name == "key" else source.record.value
            if found.columns == source_columns:
                serde = getattr(source, f"{name}_serde")
                break
    if serde is None and len(columns) == 1:
        serde = _SCALARS.get(next(iter(columns.values())))
    if serde is None:
        raise MigrationError(
            f"how Kafka Streams wrote the {name} of store {store!r} ({', '.join(columns)}) is unknown; give --serdes "
            f"{store}=MODULE:NAME, which names a StoreSerdes object"
        )
    return Part(store=store, name=name, columns=columns, serde=serde, written_as=source_columns)


def sources_of(node: Node) -> Iterator[SourceNode]:
    """The topics that lead to ``node``, nearest first."""
    waiting, seen = [node], set[Node]()
    while waiting:
        at = waiting.pop(0)
        if at in seen:
            continue
        seen.add(at)
        if isinstance(at, SourceNode):
            yield at
        waiting += at.parents
