"""Merging keeps the newest row of each key whatever the files and the memory limit, and loses no fact."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from weir.state.changelog.merging import Merge, key_count, merged_updates, packs
from weir.state.commit.files import write_file
from weir.state.commit.tables import newest_of_each_key
from weir.state.types import TableSpec

COLUMNS = pl.Schema({"k": pl.String, "part": pl.Int64, "n": pl.Int64, "_epoch": pl.Int64, "_deleted": pl.Boolean})
ROW = st.tuples(st.sampled_from(["a", "b", "c", None, ""]), st.integers(0, 6), st.booleans())


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    files=st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=8),
    held_rows=st.integers(1, 20),
    seed=st.randoms(use_true_random=False),
)
def test_the_newest_rows_are_the_same_before_and_after_a_merge(files, held_rows, seed):
    frames = [
        pl.DataFrame(
            {
                "k": [row[0] for row in rows],
                "part": [row[1] for row in rows],
                "n": range(len(rows)),
                "_epoch": epoch,
                "_deleted": [row[2] for row in rows],
            },
            schema=COLUMNS,
        ).unique(["k", "part"], keep="last", maintain_order=True)
        for epoch, rows in enumerate(files)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, frame in enumerate(frames):
            frame.write_parquet(folder / f"{number}.parquet")
        listed = pl.DataFrame(
            {
                "path": [f"{number}.parquet" for number in range(len(frames))],
                "num_records": [frame.height for frame in frames],
            }
        )
        listed = listed.sample(fraction=1.0, shuffle=True, seed=seed.randrange(1 << 30))
        merged = list(merged_updates(folder, listed, COLUMNS, ["k", "part"], held_rows))
    wanted = newest_of_each_key(pl.concat(frames), ["k", "part"])
    assert pl.concat(merged).sort(list(COLUMNS)).equals(wanted.sort(list(COLUMNS)))
    assert all(part.height <= held_rows for part in merged)


def test_small_files_are_packed_oldest_first_and_large_ones_left_alone():
    files = pl.DataFrame(
        {"path": list("gfedcba"), "size_bytes": [40, 30, 60, 20, 45, 45, 10], "min._epoch": [7, 6, 5, 4, 3, 2, 1]}
    )
    assert [pack["path"].to_list() for pack in packs(files, 100)] == [["a", "b", "c"], ["d", "f", "g"]]
    assert packs(files.filter(pl.col("size_bytes") >= 60), 100) == []
    assert packs(files.head(1), 100) == []


@pytest.mark.parametrize("distinct", [1, 3_000, 60_000, 400_000])
def test_keys_are_counted_about_right_however_often_they_come(tmp_path, distinct):
    """Exactly while there are few; else the error is 1.6 per cent, and here five times that at most."""
    spec = TableSpec(
        name="updates", keys=("k", "part"), schema=pl.Schema({"k": pl.String(), "part": pl.Int64(), "n": pl.Int64()})
    )
    entries = []
    for number in range(3):
        keys = pl.int_range(distinct, eager=True)
        rows = pl.DataFrame({"k": (keys // 2).cast(pl.String), "part": keys % 2, "n": number})
        entries.append(write_file(tmp_path, spec, rows))
    files = pl.DataFrame({"path": [entry.path for entry in entries], "num_records": [entry.rows for entry in entries]})
    merge = Merge(app_folder=tmp_path, spec=spec, version=0, files=files, partition={}, deletions_through=0)
    assert merge.rows == 3 * distinct
    assert key_count(merge) == (distinct if distinct < 4096 else pytest.approx(distinct, rel=0.08))
