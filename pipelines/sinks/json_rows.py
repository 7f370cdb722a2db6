"""Rows as JSON: one object each, whose values are written as the JSON serde writes them (docs/types.md)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from weir.pipelines.serdes.shapes import Field
from weir.pipelines.serdes.values import objects_of

_ENCODER = msgspec.json.Encoder()


def json_rows(rows: pl.DataFrame, fields: Mapping[str, Field]) -> list[bytes]:
    """One JSON object for each row, of the columns that ``fields`` names, in its order."""
    names, encode = list(fields), _ENCODER.encode
    columns = [objects_of(rows.get_column(name), field) for name, field in fields.items()]
    return [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
