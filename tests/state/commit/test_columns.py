"""How columns differ, part by part, and what becomes of rows that get others."""

from __future__ import annotations

import polars as pl

from weir.state.commit.columns import differences, fitted, merged

BEFORE = {
    "k": pl.String(),
    "last": pl.Struct({"ref": pl.String(), "at": pl.Struct({"city": pl.String(), "zip": pl.String()})}),
    "lines": pl.List(pl.Struct({"sku": pl.String(), "price": pl.Decimal(10, 2)})),
    "ms": pl.Datetime("ms", "UTC"),
}
NOW = {
    "new": pl.List(pl.Int64()),
    "last": pl.Struct({"at": pl.Struct({"zip": pl.String(), "floor": pl.Int32()}), "ref": pl.Int64()}),
    "k": pl.String(),
    "lines": pl.List(pl.Struct({"price": pl.Decimal(12, 2), "sku": pl.List(pl.String())})),
    "ms": pl.Datetime("us", "UTC"),
}


def test_each_part_that_differs_is_named_by_its_path_and_order_is_no_difference():
    assert list(map(str, differences(BEFORE, NOW))) == [
        "`new` array<long> is new",
        "`last.at.floor` integer is new",
        "`last.ref` was string, is long",
        "`lines[].price` was decimal(10,2), is decimal(12,2)",
        "`lines[].sku` was string, is array<string>",
        "`ms` was Datetime(time_unit='ms', time_zone='UTC'), is Datetime(time_unit='us', time_zone='UTC')",
        "`last.at.city` is left out",
    ]
    assert [each.path for each in differences(BEFORE, NOW) if each.is_wider] == ["lines[].price"]
    assert not differences(BEFORE, {"last": pl.Struct(BEFORE["last"].fields[::-1]), **dict(reversed(BEFORE.items()))})


def test_columns_of_both_have_the_order_of_the_first_and_the_types_of_the_second():
    assert list(merged(BEFORE, NOW).items()) == [
        ("k", pl.String()),
        (
            "last",
            pl.Struct(
                {
                    "ref": pl.Int64(),
                    "at": pl.Struct({"city": pl.String(), "zip": pl.String(), "floor": pl.Int32()}),
                }
            ),
        ),
        ("lines", pl.List(pl.Struct({"sku": pl.List(pl.String()), "price": pl.Decimal(12, 2)}))),
        ("ms", pl.Datetime("us", "UTC")),
        ("new", pl.List(pl.Int64())),
    ]


def test_rows_keep_what_has_a_place_in_their_new_types_and_a_null_stays_one():
    rows = pl.DataFrame(
        [
            {"last": {"ref": "7", "at": {"city": "Oslo", "zip": "1"}}, "n": 1 << 40, "gone": 1},
            {"last": {"ref": None, "at": None}, "n": 2, "gone": None},
            {"last": None, "n": None, "gone": 3},
        ]
    )
    wanted = {"new": pl.String(), "n": pl.Int32(), "last": NOW["last"]}
    assert fitted(rows, wanted).to_dicts() == [
        {"new": None, "n": None, "last": {"at": {"zip": "1", "floor": None}, "ref": None}},
        {"new": None, "n": 2, "last": {"at": None, "ref": None}},
        {"new": None, "n": None, "last": None},
    ]
