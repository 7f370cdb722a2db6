"""What a Delta table is apart from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import polars as pl
from deltalake import DeltaTable, Schema


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A table's columns, as stored, its properties, and the columns by which its files are partitioned."""

    columns: pl.Schema
    properties: Mapping[str, str | None]
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, table: DeltaTable) -> Layout:
        """That of a table as it was read; nothing more is read for it."""
        metadata = table.metadata()
        return cls(
            columns=pl.Schema(table.schema()),
            properties=metadata.configuration,
            partition_by=tuple(metadata.partition_columns),
        )

    @classmethod
    def of_action(cls, metadata: Mapping[str, Any]) -> Layout:
        """That which a log entry gives the table by its action ``metaData``."""
        return cls(
            columns=_columns(metadata["schemaString"]),
            properties=metadata.get("configuration") or {},
            partition_by=tuple(metadata["partitionColumns"]),
        )


@lru_cache(1024)
def _columns(described: str) -> pl.Schema:
    """The columns that a ``schemaString`` describes; a log is opened anew far more often than its columns change."""
    return pl.Schema(Schema.from_json(described))
