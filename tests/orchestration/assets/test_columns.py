"""Types of columns in words that an operator knows."""

import polars as pl
import pytest

from weir.orchestration.assets.columns import type_words
from weir.orchestration.definitions import defs


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (pl.String(), "text"),
        (pl.Int64(), "integer"),
        (pl.Int32(), "integer (32 bits)"),
        (pl.UInt8(), "integer (8 bits, not negative)"),
        (pl.Float64(), "number"),
        (pl.Float32(), "Float32"),
        (pl.Boolean(), "true or false"),
        (pl.Binary(), "bytes"),
        (pl.Date(), "date"),
        (pl.Datetime("ms", "UTC"), "time (ms, UTC)"),
        (pl.Datetime("us"), "time (us, no time zone)"),
        (pl.Duration("ms"), "duration (ms)"),
        (pl.Decimal(10, 2), "decimal (10 digits, 2 after the point)"),
        (pl.List(pl.String()), "list of text"),
        (pl.Struct({"key": pl.String(), "value": pl.Binary()}), "record (key: text, value: bytes)"),
    ],
)
def test_types_are_in_words(dtype, words):
    assert type_words(dtype) == words


def test_the_ingest_shows_its_topology():
    [spec] = [spec for spec in defs.resolve_all_asset_specs() if spec.key.path == ["flights", "ingest"]]
    assert "Source: KSTREAM-SOURCE-0000000000 (topics: [flights])" in spec.metadata["topology"].value
