"""Blobs of the version before rows had keys are taken in the order of their times."""

from __future__ import annotations

import polars as pl
import pytest

from weir.pipelines.tasks.blobs import read_blob
from weir.pipelines.tasks.epoch import _Input
from weir.pipelines.tasks.order import Arrivals, Part
from weir.state.types import BlobRef, StateId

SCHEMA = pl.Schema(
    {"page": pl.String, "_ts": pl.Int64, "_partition": pl.Int32, "_offset": pl.Int64, "_deleted": pl.Boolean}
)


def older_blob(folder, sender, times):
    """A blob as that version wrote it and as its commits list it."""
    rows = len(times)
    frame = pl.DataFrame(
        {
            "page": ["p"] * rows,
            "_ts": times,
            "_partition": pl.Series([sender] * rows, dtype=pl.Int32),
            "_offset": list(range(rows)),
            "_deleted": [False] * rows,
        }
    )
    assert frame.schema == SCHEMA
    frame.write_ipc(folder / f"{sender}.arrow", compression="lz4")
    return BlobRef(
        source=f"clicks-1_{sender}",
        target="counts-1_0",
        edge="counts",
        state=StateId(1, 5),
        path=f"{sender}.arrow",
        rows=rows,
        size_bytes=(folder / f"{sender}.arrow").stat().st_size,
    )


def arrived(folder, blobs):
    return Arrivals(
        Part(
            input=blob.edge,
            rank=0,
            partition=int(blob.source.split("_")[-1]),
            frame=read_blob(folder, blob, SCHEMA),
            batch=str(blob.state),
        )
        for blob in blobs
    )


def times_of(arrivals):
    return arrivals.turns.frames["counts"]["_ts"].to_list()


MERGED = [0, 50, 100, 40, 150, 200, 250]
"""A row that is late stays after the one that its sender sent before it."""


@pytest.fixture
def blobs(tmp_path):
    return [older_blob(tmp_path, 0, [0, 100, 40, 200]), older_blob(tmp_path, 1, [50, 150, 250])]


def test_rows_of_two_senders_are_merged_by_time(tmp_path, blobs):
    assert times_of(arrived(tmp_path, blobs)) == MERGED


@pytest.mark.parametrize("taken", range(1, 7))
def test_one_of_which_some_rows_were_taken_is_read_on(tmp_path, blobs, taken):
    arrivals = arrived(tmp_path, blobs)
    arrivals.take(taken)
    assert times_of(arrivals) == MERGED[:taken]
    consumed, left = _Input(arrivals=arrivals, blobs=tuple(blobs)).split_blobs()
    gone = {blob.path for blob in (*consumed, *left)}
    rest = [*left, *(blob for blob in blobs if blob.path not in gone)]
    assert times_of(arrived(tmp_path, rest)) == MERGED[taken:]
