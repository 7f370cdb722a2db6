"""The rows of a table: counted without reading more than necessary, and read whoever wrote its files."""

from dataclasses import replace

import polars as pl
import pytest

from weir.state.commit.files import write_files
from weir.state.commit.tables import AppendTable, count_rows, read_rows, read_table
from weir.state.types import TableSpec

COLUMNS = pl.Schema(
    {"k": pl.String(), "n": pl.Int64(), "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
)


def table_of(folder, *, keys: tuple[str, ...]) -> AppendTable:
    spec = TableSpec(name="t", keys=keys, schema=COLUMNS)
    table = AppendTable.create(folder, spec, "app")
    for epoch, names in ((1, "abca"), (2, "ad")):
        rows = pl.DataFrame(
            {
                "k": list(names),
                "n": epoch,
                "_epoch": epoch,
                "_seq": range(len(names)),
                "_deleted": [name == "b" for name in names],
            },
            schema_overrides=COLUMNS,
        )
        table.append(epoch, write_files(folder, spec, rows))
    return table


@pytest.mark.parametrize(("keys", "rows"), [((), 6), (("k",), 3)])
def test_a_table_has_as_many_rows_as_reading_it_gives(tmp_path, keys, rows):
    table = table_of(tmp_path, keys=keys)
    assert count_rows(table.folder, read_at_most=6) == read_table(table.folder).height == rows


def test_a_table_without_files_has_no_rows(tmp_path):
    table = AppendTable.create(tmp_path, TableSpec(name="t", keys=("k",), schema=COLUMNS), "app")
    assert count_rows(table.folder, read_at_most=0) == 0


def test_facts_are_counted_however_many_and_updates_up_to_a_limit(tmp_path):
    facts, updates = (table_of(tmp_path / name, keys=keys) for name, keys in (("facts", ()), ("updates", ("k",))))
    assert count_rows(facts.folder, read_at_most=5) == 6
    assert count_rows(updates.folder, read_at_most=5) is None


@pytest.mark.parametrize("place", ["warehouse", "ware house"])
@pytest.mark.parametrize("values", [("a", "é =%/", None), (1, 2, None)])
def test_files_with_and_without_the_partition_in_their_path_are_read_together(tmp_path, place, values):
    """As after an OPTIMIZE of Spark's, whose files lack partition columns; before, a table got a column."""
    narrow = TableSpec(name="t", schema=pl.Schema({"p": pl.Series(values).dtype, "n": pl.Int64()}), partition_by=("p",))
    apart = replace(narrow, schema=pl.Schema({**narrow.schema, "x": pl.String()}))
    within = replace(apart, has_partition_columns=True)
    rows = pl.DataFrame({"p": values, "n": range(3)}, schema=narrow.schema)
    table = AppendTable.create(tmp_path / place, narrow, "app")
    wanted = []
    for version, spec in enumerate((narrow, apart, within, apart), start=1):
        written = rows.with_columns(pl.col("n") + 10 * version)
        if "x" in spec.schema:
            table = AppendTable.create(tmp_path / place, spec, "app")
            written = written.with_columns(x=pl.lit("x"))
        table.append(version, write_files(tmp_path / place, spec, written))
        wanted += [(*row, None)[:3] for row in written.rows()]
        assert sorted(read_rows(table.folder).select("p", "n").rows(), key=str) == sorted(
            [r[:2] for r in wanted], key=str
        )
    assert sorted(read_rows(table.folder).select("p", "n", "x").rows(), key=str) == sorted(wanted, key=str)
