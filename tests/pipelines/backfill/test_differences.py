"""What a swap would change is counted exactly, by table, before it is made, whatever epochs the rows have."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from weir.pipelines.backfill import differences
from weir.pipelines.backfill.differences import TableDifference, difference
from weir.pipelines.backfill.shadow import EVERYTHING
from weir.state.commit.files import write_file
from weir.state.commit.record import TableSwap
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec

TIME = pl.Datetime("ms", "UTC")
OF_COMMITS = {"_ts": TIME, "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}
FACTS = TableSpec(name="facts", schema=pl.Schema({"name": pl.String(), "cents": pl.Int64(), **OF_COMMITS}))
UPDATES = TableSpec(
    name="updates",
    schema=pl.Schema({"name": pl.String(), "window_start": TIME, "cents": pl.Int64(), **OF_COMMITS}),
    keys=("name", "window_start"),
)
DAY_MS = 24 * 3600 * 1000
DAY = int(datetime(2024, 5, 3, tzinfo=UTC).timestamp() * 1000)
OTHER_DAY = DAY + DAY_MS
CUT = 5


def fact(name: str | None, cents: int | None, ts: int | None = DAY, *, epoch: int = 1, seq: int = 0) -> dict:
    return {"name": name, "cents": cents, "_ts": ts, "_epoch": epoch, "_seq": seq, "_deleted": False}


def update(
    name: str | None, cents: int | None, start: int = DAY, *, epoch: int = 1, seq: int = 0, ts: int = 0, deleted=False
) -> dict:
    return {
        "name": name,
        "window_start": start,
        "cents": cents,
        "_ts": ts,
        "_epoch": epoch,
        "_seq": seq,
        "_deleted": deleted,
    }


def write(folder, spec: TableSpec, rows: list[dict], per_file: int = 3) -> AppendTable:
    table = AppendTable.create(folder, spec, "app")
    files = [
        write_file(folder, spec, pl.DataFrame(rows[start : start + per_file], schema=spec.schema))
        for start in range(0, len(rows), per_file)
    ]
    table.append(1, files)
    return table


def swap_of(spec: TableSpec, *, is_whole: bool) -> TableSwap:
    column = "window_start" if spec.keys else "_ts"
    of_days = TableSwap(
        backfill="b", table=spec.name, column=column, start_ms=DAY, end_ms=DAY + DAY_MS, cut_epoch=CUT, files=()
    )
    whole = {"column": None, "start_ms": EVERYTHING.start_ms, "end_ms": EVERYTHING.end_ms}
    return replace(of_days, **whole) if is_whole else of_days


def counted(tmp_path, spec: TableSpec, live: list[dict], made: list[dict], *, is_whole: bool) -> TableDifference:
    write(tmp_path / "live", spec, live)
    write(tmp_path / "made", spec, made)
    return difference(tmp_path / "live", tmp_path / "made", swap_of(spec, is_whole=is_whole))


FACTS_BEFORE = [
    fact("twice", 1, epoch=1),
    fact("twice", 1, epoch=2),
    fact("once", 2, epoch=CUT),
    fact("gone", 3),
    fact("moved", 4, DAY + 7),
    fact(None, None, DAY + DAY_MS - 1),
    fact("elsewhere", 5, OTHER_DAY),
    fact("before", 6, DAY - 1),
    fact("timeless", 7, None),
    fact("later", 8, epoch=CUT + 1),
]
FACTS_AFTER = [
    fact("twice", 1, epoch=90, seq=7),
    fact("once", 2, epoch=91),
    fact("once", 2, epoch=91, seq=1),
    fact("new", 9, epoch=1),
    fact("moved", 4, DAY + 8),
    fact(None, None, DAY + DAY_MS - 1),
    fact("in the margin", 10, DAY - 5),
    fact("timeless", 7, None),
]
UPDATES_BEFORE = [
    update("same", 1, epoch=1),
    update("same", 2, epoch=2),
    update("other value", 3, epoch=2, seq=0),
    update("other value", 4, epoch=2, seq=1),
    update("other time", 5, ts=1),
    update("gone", 6),
    update("deleted", 7, epoch=1),
    update("deleted", None, epoch=2, deleted=True),
    update(None, 8),
    update("later", 9, epoch=1),
    update("later", 10, epoch=CUT + 1),
    update("deleted later", 11, epoch=1),
    update("deleted later", None, epoch=CUT + 1, deleted=True),
    update("same", 20, OTHER_DAY),
    update("gone", 21, OTHER_DAY),
]
UPDATES_AFTER = [
    update("same", 2, epoch=70),
    update("other value", 3, epoch=1),
    update("other time", 5, ts=2),
    update("gone", 6, epoch=3),
    update("gone", None, epoch=4, deleted=True),
    update("deleted", 7),
    update("new", 12),
    update(None, 8),
    update("later", 9),
    update("deleted later", 11),
    update("same", 20, OTHER_DAY),
]


@pytest.mark.parametrize("at_a_time", [2_000_000, 1])
@pytest.mark.parametrize(
    ("spec", "is_whole", "wanted"),
    [
        (FACTS, False, {"removed": 3, "changed": 0, "added": 3, "unchanged": 3, "sums": {"cents": (11.0, 18.0)}}),
        (FACTS, True, {"removed": 5, "changed": 0, "added": 4, "unchanged": 4, "sums": {"cents": (29.0, 35.0)}}),
        (UPDATES, False, {"removed": 1, "changed": 2, "added": 2, "unchanged": 2, "sums": {"cents": (25.0, 37.0)}}),
        (UPDATES, True, {"removed": 2, "changed": 2, "added": 2, "unchanged": 3, "sums": {"cents": (66.0, 57.0)}}),
    ],
    ids=["facts of a day", "all facts", "updates of a day", "all updates"],
)
def test_what_a_swap_removes_changes_and_adds_is_counted(tmp_path, monkeypatch, spec, is_whole, wanted, at_a_time):
    """Facts are a multiset; of updates the newest row of each key counts, unless a later commit has written the key."""
    monkeypatch.setattr(differences, "COMPARED_ROWS", at_a_time)
    live, made = (UPDATES_BEFORE, UPDATES_AFTER) if spec.keys else (FACTS_BEFORE, FACTS_AFTER)
    assert counted(tmp_path, spec, live, made, is_whole=is_whole) == TableDifference(table=spec.name, **wanted)


@pytest.mark.parametrize("spec", [FACTS, UPDATES], ids=["facts", "updates"])
def test_of_an_empty_table_nothing_is_removed_and_an_empty_backfill_removes_all(tmp_path, spec):
    rows = [fact("a", 1), fact("b", 2)] if spec is FACTS else [update("a", 1), update("b", 2)]
    first = counted(tmp_path / "first", spec, [], rows, is_whole=False)
    assert (first.removed, first.changed, first.added, first.unchanged, first.share) == (0, 0, 2, 0, 0.0)
    last = counted(tmp_path / "last", spec, rows, [], is_whole=False)
    assert (last.removed, last.changed, last.added, last.unchanged, last.share) == (2, 0, 0, 0, 1.0)
    assert str(last) == (f"{spec.name} 2 -> 0 rows (2 removed, 0 changed, 0 added, 0 unchanged); sum of cents 3 -> 0")


def test_floats_that_differ_in_their_last_digits_only_are_equal(tmp_path):
    """A sum of floats depends in its last digits on where epochs end."""
    spec = TableSpec(
        name="means", schema=pl.Schema({"name": pl.String(), "mean": pl.Float64(), **OF_COMMITS}), keys=("name",)
    )
    nan = float("nan")
    live, made = (
        [{**update(name, 0), "mean": mean} for name, mean in means.items()]
        for means in (
            {"sum": 0.1 + 0.2, "none": None, "nan": nan, "other": 1.0, "was none": None},
            {"sum": 0.3, "none": None, "nan": nan, "other": 1.0000001, "was none": 0.0},
        )
    )
    found = counted(tmp_path, spec, live, made, is_whole=True)
    assert (found.removed, found.changed, found.added, found.unchanged) == (0, 2, 0, 3)
    assert found.sums == {}, "with a NaN there is no sum"


def test_floats_are_compared_alike_however_many_rows_are_compared_at_a_time(tmp_path, monkeypatch):
    """Rows that differ in the last digit only are of the same part."""
    monkeypatch.setattr(differences, "COMPARED_ROWS", 10)
    spec = TableSpec(name="means", schema=pl.Schema({"name": pl.String(), "mean": pl.Float64(), **OF_COMMITS}))
    means = [number + 0.1 for number in range(60)]
    others = [math.nextafter(mean, math.inf) for mean in means]
    others[7] = 7.1000001
    live, made = (
        [{**fact(f"n{number}", 0), "mean": mean} for number, mean in enumerate(values)] for values in (means, others)
    )
    found = counted(tmp_path, spec, live, made, is_whole=False)
    assert (found.removed, found.changed, found.added, found.unchanged) == (1, 0, 1, 59)


def test_rows_with_lists_and_records_in_them_are_compared(tmp_path):
    schema = {"name": pl.String(), "tags": pl.List(pl.String()), "place": pl.Struct({"x": pl.Int64()}), **OF_COMMITS}
    spec = TableSpec(name="nested", schema=pl.Schema(schema))
    live, made = (
        [{**fact("a", 0), "tags": tags, "place": {"x": x}} for tags, x in values]
        for values in ([(["u"], 1), (["u"], 1), ([], 2), (None, None)], [(["u"], 1), ([], 3), (None, None)])
    )
    found = counted(tmp_path, spec, live, made, is_whole=False)
    assert (found.removed, found.changed, found.added, found.unchanged) == (2, 0, 1, 2)


def stands(rows: list[dict], spec: TableSpec) -> Counter:
    """A table's standing rows as its readers see them, without what commits add: a plain model."""
    if spec.keys:
        newest = {}
        for row in sorted(rows, key=lambda row: (row["_epoch"], row["_seq"])):
            newest[row["name"], row["window_start"]] = row
        rows = [row for row in newest.values() if not row["_deleted"]]
    return Counter(tuple(value for name, value in row.items() if name not in ("_epoch", "_seq")) for row in rows)


def is_of(swap: TableSwap, row: dict) -> bool:
    return swap.column is None or (row[swap.column] is not None and swap.start_ms <= row[swap.column] < swap.end_ms)


def model(spec: TableSpec, swap: TableSwap, live: list[dict], made: list[dict]) -> tuple[int, int, int]:
    """Removed, changed, added: the whole table's standing rows before and after a swap that is made row by row."""
    stay = [row for row in live if not (is_of(swap, row) and row["_epoch"] <= swap.cut_epoch)]
    names = spec.schema.names()
    come = [
        {**dict(zip([name for name in names if name not in ("_epoch", "_seq")], row, strict=True))}
        for row, count in stands(made, spec).items()
        for _ in range(count)
    ]
    after = [*stay, *({**row, "_epoch": swap.cut_epoch, "_seq": 0} for row in come if is_of(swap, row))]
    lost, won = stands(live, spec) - stands(after, spec), stands(after, spec) - stands(live, spec)
    changed = len({row[:2] for row in lost} & {row[:2] for row in won}) if spec.keys else 0
    return lost.total() - changed, changed, won.total() - changed


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_whole", [False, True], ids=["a day", "everything"])
@pytest.mark.parametrize("spec", [FACTS, UPDATES], ids=["facts", "updates"])
def test_the_count_is_what_a_swap_made_row_by_row_does(tmp_path, monkeypatch, spec, is_whole, seed):
    rng = random.Random(seed)
    monkeypatch.setattr(differences, "COMPARED_ROWS", rng.choice([7, 40, 1000]))

    def rows() -> list[dict]:
        found = []
        for seq in range(60):
            name, time_ms, epoch = rng.choice("abcd"), DAY + rng.randrange(-1, 3) * (DAY_MS // 2), rng.randint(1, 7)
            if spec.keys:
                deleted = rng.random() < 0.2
                row = update(name, None if deleted else rng.randrange(2), time_ms, deleted=deleted)
            else:
                row = fact(name, rng.randrange(2), time_ms)
            found.append({**row, "_epoch": epoch, "_seq": seq})
        return found

    live, made = rows(), rows()
    found = counted(tmp_path, spec, live, made, is_whole=is_whole)
    wanted = model(spec, swap_of(spec, is_whole=is_whole), live, made)
    assert sum(wanted) > 0
    assert (found.removed, found.changed, found.added) == wanted
