"""The columns by which a table in Delta is partitioned, checked against its records."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.topology.nodes import RecordType


def partition_columns(table: str, record: RecordType, columns: str | Sequence[str]) -> tuple[str, ...]:
    """The columns as a tuple.

    Raises:
        TopologyError: One is missing, comes twice, or has values that make no folders.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        dtype = record.columns.get(name)
        if dtype is None:
            raise TopologyError(
                f"the table {table!r} is to be partitioned by {name!r}, but its columns are "
                f"{', '.join(record.columns)}; name one of these, or map the values so that they have it"
            )
        if not (dtype.is_integer() or dtype in (pl.String, pl.Boolean, pl.Date)):
            raise TopologyError(
                f"the table {table!r} is to be partitioned by {name!r}, which is {dtype}: take a column of text, whole "
                "numbers, dates or booleans, such as the day of a time: map_values(day=pl.col(...).dt.date())"
            )
    if len(set(names)) < len(names):
        raise TopologyError(f"the table {table!r} is to be partitioned by a column twice: {', '.join(names)}")
    return names
