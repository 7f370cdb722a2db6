"""Bytes of keys and rows as earlier versions wrote them: state on disk stays readable."""

from __future__ import annotations

from datetime import UTC, date, datetime

import polars as pl
import pytest

from weir.state.stores.codec import KeyCodec, RowCodec
from weir.state.types import StoreKind

TIME = pl.Datetime("ms", "UTC")
NOON = datetime(2024, 5, 1, tzinfo=UTC)
NUMBERS = {"n": pl.Int64(), "x": pl.Float64(), "ok": pl.Boolean(), "at": TIME, "day": pl.Date()}
TEXTS = {"text": pl.String(), "raw": pl.Binary()}
LISTS = {"tags": pl.List(pl.String()), "times": pl.List(TIME)}
ROW = {
    "n": -2, "x": 1.5, "ok": True, "at": NOON, "day": date(2024, 5, 1), "text": "a", "raw": b"\x00",
    "tags": ["a", None], "times": [NOON],
}  # fmt: skip
FRAME = pl.DataFrame([ROW, dict.fromkeys(ROW)], schema={**NUMBERS, **TEXTS, **LISTS}).with_columns(
    _ts=pl.Series([5, None], dtype=pl.Int64)
)


@pytest.mark.parametrize(
    ("columns", "written"),
    [
        (
            NUMBERS,
            [
                "000500000000000000feffffffffffffff000000000000f83f01007073318f010000844d0000",
                "3f00000000000000000000000000000000000000000000000000000000000000000000000000",
            ],
        ),
        (
            {**NUMBERS, **TEXTS, **LISTS},
            [
                "9a05fecb3ff8000000000000c3cf0000018f31737000cd4d84a161c4010092a161c091cf0000018f31737000",
                "9ac0c0c0c0c0c0c0c0c0c0",
            ],
        ),
    ],
)
def test_rows_of_flat_columns_keep_their_bytes(columns, written):
    codec = RowCodec(pl.Schema(columns))
    assert [row.hex() for row in codec.encode(FRAME)] == written
    assert codec.decode([bytes.fromhex(row) for row in written]).equals(FRAME.select(*columns, "_ts"))


@pytest.mark.parametrize(
    ("columns", "kind", "written"),
    [
        (
            ["n", "x", "ok", "at", "day", "text", "raw"],
            StoreKind.KEY_VALUE,
            [
                "027ffffffffffffffe02bff80000000000000201028000018f31737000028000000000004d840261000200ff",
                "0180000000000000000180000000000000000100018000000000000000018000000000000000010001",
            ],
        ),
        (["text", "window_start", "window_end"], StoreKind.WINDOW, ["8000018f317370000261008000018f31737000"]),
        (["text", "window_start", "window_end"], StoreKind.SESSION, ["0261008000018f317370008000018f31737000"]),
    ],
)
def test_keys_keep_their_bytes(columns, kind, written):
    frame = FRAME.with_columns(window_start="at", window_end="at").select(columns)[: len(written)]
    codec = KeyCodec(frame.schema, kind)
    assert [key.hex() for key in codec.encode(frame)] == written
    assert codec.decode([bytes.fromhex(key) for key in written]).equals(frame)


def test_structs_are_maps_times_of_day_nanoseconds_and_decimals_text_in_rows_and_sixteen_bytes_in_keys():
    """New kinds of column, pinned from the first version that has them."""
    inner = {"city": pl.String(), "price": pl.Decimal(38, 9), "at": pl.Time()}
    frame = pl.DataFrame(
        {"place": [{"city": "a", "price": "-1.5", "at": 1_000}, None], "lines": [[None], []], "_ts": [5, 6]},
        schema={
            "place": pl.Struct({"city": pl.String(), "price": pl.String(), "at": pl.Int64()}),
            "lines": pl.List(pl.Struct(inner)),
            "_ts": pl.Int64(),
        },
    ).with_columns(pl.col("place").cast(pl.Struct(inner)))
    codec = RowCodec(frame.drop("_ts").schema)
    place = "83" + "a463697479" + "a161" + "a57072696365" + "ac2d312e353030303030303030" + "a26174" + "cd03e8"
    written = [f"9305{place}91c0", "9306c090"]
    assert [row.hex() for row in codec.encode(frame)] == written
    assert codec.decode([bytes.fromhex(row) for row in written]).equals(frame)
    keys = pl.DataFrame({"price": ["-1.5", "0", "0.000000001", None]}).cast(pl.Decimal(38, 9))
    encoded = KeyCodec(keys.schema).encode(keys)
    assert [key.hex() for key in encoded] == [
        "027fffffffffffffffffffffffa697d100",
        "0280000000000000000000000000000000",
        "0280000000000000000000000000000001",
        "0180000000000000000000000000000000",
    ]
    assert KeyCodec(keys.schema).decode(encoded).equals(keys)
