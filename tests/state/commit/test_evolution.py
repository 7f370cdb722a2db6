"""Tables that get other columns: what is added, widened, left and refused."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit.evolution import evolution, evolve
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.commit.widening import is_wider
from weir.state.errors import TableSchemaError
from weir.state.types import TableSpec

ROWS = pl.DataFrame({"k": ["a", "b"], "n": [1, 2]}, schema={"k": pl.String, "n": pl.Int32})
OUTPUT = TableSpec(name="out", schema=ROWS.schema)
CHANGELOG = TableSpec(
    name="_changelog/s",
    schema=pl.Schema({**ROWS.schema, "task": pl.String()}),
    partition_by=("task",),
    keys=("k",),
    evolves_freely=True,
)


def made(folder, spec: TableSpec) -> None:
    table = AppendTable.create(folder, spec, "app")
    values = dict.fromkeys(spec.partition_by, "clicks_0")
    for version in (1, 2):
        table.append(version, [write_file(folder, spec, ROWS, values)])


def with_columns(spec: TableSpec, **columns: pl.DataType | None) -> TableSpec:
    changed = {**spec.schema, **columns}
    return replace(spec, schema=pl.Schema({name: dtype for name, dtype in changed.items() if dtype is not None}))


@pytest.mark.parametrize("spec", [OUTPUT, CHANGELOG])
def test_columns_are_added_and_null_in_the_rows_that_are_there(tmp_path, spec):
    made(tmp_path, spec)
    other = with_columns(spec, x=pl.String(), y=pl.List(pl.Int64()))
    assert str(evolution(tmp_path, other)) == "column x String is added, column y List(Int64) is added"
    table = AppendTable.create(tmp_path, other, "app")
    assert (table.version, evolution(tmp_path, other)) == (2, evolution(tmp_path, other))
    assert not evolution(tmp_path, other)
    new = pl.DataFrame({"k": ["c"], "n": [3], "x": ["new"], "y": [[1]]})
    table.append(3, [write_file(tmp_path, other, new, dict.fromkeys(spec.partition_by, "clicks_0"))])
    rows = read_rows(tmp_path / spec.name).sort("k", "n")
    assert rows.select("k", "n", "x", "y").rows() == [
        *[("a", 1, None, None)] * 2,
        *[("b", 2, None, None)] * 2,
        ("c", 3, "new", [1]),
    ]


def test_a_changelogs_rows_are_written_anew_with_wider_types(tmp_path):
    made(tmp_path, CHANGELOG)
    other = with_columns(CHANGELOG, n=pl.Int64(), x=pl.String())
    assert str(evolution(tmp_path, other)) == "column x String is added, column n is now Int64"
    before = DeltaTable(tmp_path / CHANGELOG.name)
    evolve(tmp_path, other)
    table = AppendTable.create(tmp_path, other, "app")
    assert table.version == 2
    new = pl.DataFrame({"k": ["c"], "n": [1 << 40], "x": ["new"]})
    table.append(3, [write_file(tmp_path, other, new, {"task": "clicks_0"})])
    rows = read_rows(tmp_path / CHANGELOG.name).sort("k", "n")
    assert rows.select("k", "n", "x", "task").rows() == [
        *[("a", 1, None, "clicks_0")] * 2,
        *[("b", 2, None, "clicks_0")] * 2,
        ("c", 1 << 40, "new", "clicks_0"),
    ]
    after = DeltaTable(tmp_path / CHANGELOG.name)
    assert after.metadata().configuration == before.metadata().configuration
    assert after.to_pyarrow_table().num_rows == 5


def test_a_rewrite_removes_files_whose_names_are_quoted_in_the_log(tmp_path):
    table = AppendTable.create(tmp_path, CHANGELOG, "app")
    table.append(1, [write_file(tmp_path, CHANGELOG, ROWS, {"task": "a b_0"})])
    evolve(tmp_path, with_columns(CHANGELOG, n=pl.Int64()))
    after = DeltaTable(tmp_path / CHANGELOG.name)
    assert len(after.file_uris()) == 1
    assert read_rows(tmp_path / CHANGELOG.name).select("k", "n", "task").rows() == [
        ("a", 1, "a b_0"),
        ("b", 2, "a b_0"),
    ]


def test_a_rewrite_gives_way_to_another_writer_and_begins_again(tmp_path, monkeypatch):
    made(tmp_path, CHANGELOG)
    from weir.state.commit import evolution as module

    real, calls = module.rewrite, []

    def late(folder, *arguments):
        if not calls:
            table = AppendTable(tmp_path / CHANGELOG.name, CHANGELOG.name, "app")
            table.append(3, [write_file(tmp_path, CHANGELOG, ROWS, {"task": "clicks_0"})])
        calls.append(real(folder, *arguments))
        return calls[-1]

    monkeypatch.setattr(module, "rewrite", late)
    evolve(tmp_path, with_columns(CHANGELOG, n=pl.Int64()))
    assert calls == [False, True]
    assert read_rows(tmp_path / CHANGELOG.name)["n"].sum() == 9


def test_a_changelog_keeps_columns_that_nobody_writes_any_more(tmp_path):
    made(tmp_path, CHANGELOG)
    other = with_columns(CHANGELOG, n=None, m=pl.Int64())
    table = AppendTable.create(tmp_path, other, "app")
    table.append(3, [write_file(tmp_path, other, pl.DataFrame({"k": ["c"], "m": [3]}), {"task": "clicks_0"})])
    rows = read_rows(tmp_path / CHANGELOG.name).sort("k").tail(1)
    assert rows.select("k", "n", "m").rows() == [("c", None, 3)]


@pytest.mark.parametrize(
    ("spec", "columns"),
    [
        (OUTPUT, {"n": None}),
        (OUTPUT, {"n": pl.Int64()}),
        (CHANGELOG, {"n": pl.String()}),
        (CHANGELOG, {"n": pl.Int8()}),
        (CHANGELOG, {"k": pl.Int64()}),
    ],
)
def test_all_other_changes_are_refused(tmp_path, spec, columns):
    made(tmp_path, spec)
    with pytest.raises(TableSchemaError, match="columns may only be added"):
        evolution(tmp_path, with_columns(spec, **columns))
    with pytest.raises(TableSchemaError, match="keyed by n"):
        evolution(tmp_path, replace(spec, keys=("n",)))


@pytest.mark.parametrize("before", [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32, pl.Float32])
@pytest.mark.parametrize("now", [pl.Int16, pl.Int32, pl.Int64, pl.UInt16, pl.UInt32, pl.Float32, pl.Float64])
def test_a_wider_type_holds_every_value_of_the_narrower_one(before, now):
    if not is_wider(str(before()), str(now())):
        return
    limits = [1.5, 3.4e38] if before == pl.Float32 else [before.min(), before.max()]
    values = pl.Series(limits if before == pl.Float32 else [pl.select(each).item() for each in limits], dtype=before)
    assert values.cast(now).cast(before).equals(values)


def test_a_decimal_may_get_more_digits_on_either_side_and_lose_none():
    old = "Decimal(precision=10, scale=2)"
    assert is_wider(old, "Decimal(precision=12, scale=4)")
    assert is_wider(old, "Decimal(precision=11, scale=2)")
    assert not is_wider(old, "Decimal(precision=10, scale=4)")
    assert not is_wider(old, "Decimal(precision=12, scale=1)")
    assert not is_wider(old, old)
