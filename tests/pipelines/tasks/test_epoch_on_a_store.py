"""One epoch of one task whose files go to an object store: its rows are written while the puts are under way, and what
was written counts only once all of them are answered (PROTOCOL 6).

Totals are compared with a plain loop over the records.
"""

from __future__ import annotations

from threading import Event

import polars as pl
import pytest
from msgspec.structs import replace

from tests.faults.dying import KilledError
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales
from weir.pipelines.tasks.epoch import EpochRunner
from weir.pipelines.tasks.plan import OffsetRange, Receipt, ReceiptStatus, TaskPlan
from weir.state.engine import task_store
from weir.state.engine.cache import TaskStoreCache
from weir.state.errors import ObjectStoreAwayError
from weir.state.storage.object_store import ObjectFolder
from weir.state.types import StateId, TaskId

FIRST = TaskPlan(
    task=TaskId(0, 0),
    instance="first",
    state=StateId(1, 1),
    expected=None,
    committed=None,
    now_ms=0,
    ranges=(OffsetRange(topic="sales", partition=0, start=0, end=20),),
)
SECOND = replace(
    FIRST,
    state=StateId(1, 2),
    expected=StateId(1, 1),
    ranges=(OffsetRange(topic="sales", partition=0, start=20, end=40),),
)


@pytest.fixture
def place(tmp_path, s3_bucket):
    yield Place(application(), Topics({("sales", 0): sales(40, 0)}), tmp_path, bucket=s3_bucket)
    TaskStoreCache.close_all()


class Puts:
    """Lets no file be put before the rows of its epoch are written; then each of the next raises what it is told."""

    def __init__(self) -> None:
        self.errors = list[BaseException | None]()
        self.are_rows_written = Event()

    def run(self, place: Place, plan: TaskPlan) -> Receipt:
        self.are_rows_written.clear()
        epochs = EpochRunner(place.application.topology, place.settings, place.topics.reader, lambda name: None)
        return epochs.run(plan)

    def wait(self) -> None:
        assert self.are_rows_written.wait(10), "rows wait for puts"
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error


@pytest.fixture
def puts(monkeypatch) -> Puts:
    found, add, write_rows = Puts(), ObjectFolder.add, task_store._write_rows

    def added(self, *args, **kwargs):
        found.wait()
        return add(self, *args, **kwargs)

    def rows_written(*args):
        size_bytes = write_rows(*args)
        found.are_rows_written.set()
        return size_bytes

    monkeypatch.setattr(ObjectFolder, "add", added)
    monkeypatch.setattr(task_store, "_write_rows", rows_written)
    return found


def totals(place: Place, *receipts: Receipt) -> dict[str, tuple[int, int]]:
    """What the files that the receipts name say, the newest last."""
    folder, found = place.warehouse / place.application.id / "totals", dict[str, tuple[int, int]]()
    for file in (each for receipt in receipts for each in receipt.files if each.table == "totals"):
        rows = pl.read_parquet(folder.get(file.path))
        found |= {shop: (total, count) for shop, total, count in rows.select("shop", "total", "sales").iter_rows()}
    return found


def test_rows_are_written_while_files_are_put(place, puts):
    assert totals(place, puts.run(place, FIRST), puts.run(place, SECOND)) == expected(place)


@pytest.mark.parametrize("error", [ObjectStoreAwayError("s3://bucket", "503"), KilledError()], ids=["away", "killed"])
@pytest.mark.parametrize("file", [0, 1])
@pytest.mark.parametrize("again", [SECOND, replace(SECOND, state=StateId(1, 3))], ids=["the same", "another"])
def test_rows_do_not_count_before_every_file_is_there(place, puts, error, file, again):
    first = puts.run(place, FIRST)
    puts.errors = [*[None] * file, error]
    if isinstance(error, KilledError):
        with pytest.raises(KilledError):
            puts.run(place, SECOND)
        TaskStoreCache.close_all()
    else:
        assert puts.run(place, SECOND).status is ReceiptStatus.STORE_AWAY
    second = puts.run(place, again)
    assert (second.status, second.state) == (ReceiptStatus.DONE, again.state)
    assert totals(place, first, second) == expected(place)
