"""One epoch of one task under interference: a twin that is quicker, a disk that fills up."""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial

import polars as pl
import pytest
from msgspec import structs

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales
from weir.pipelines.tasks import epoch as module
from weir.pipelines.tasks.epoch import EpochRunner
from weir.pipelines.tasks.plan import OffsetRange, ReceiptStatus, TaskPlan
from weir.state.engine import environment, task_store
from weir.state.engine.instances import current_instance
from weir.state.types import StateId, TaskId

PLAN = TaskPlan(
    task=TaskId(0, 0),
    instance="first",
    state=StateId(1, 1),
    expected=None,
    committed=None,
    now_ms=0,
    ranges=(OffsetRange(topic="sales", partition=0, start=0, end=20),),
)


@pytest.fixture
def place(tmp_path):
    return Place(application(), Topics({("sales", 0): sales(20, 0)}), tmp_path)


def runner(place: Place, on_step=lambda name: None) -> EpochRunner:
    return EpochRunner(place.application.topology, place.settings, place.topics.reader, on_step)


def test_a_task_whose_cancelled_twin_was_quicker_answers_with_the_twins_receipt(place):
    """PROTOCOL 6 and 7: Spark's retry runs beside the task that it cancelled, with the same plan."""
    receipts = []

    def on_step(name):
        if name == "files written" and not receipts:
            receipts.append(None)
            receipts[0] = runner(place).run(PLAN)

    answer = runner(place, on_step).run(PLAN)
    assert receipts[0].status is ReceiptStatus.DONE
    assert answer == receipts[0]


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_worker_that_slept_takes_back_nothing_that_its_successor_has_done_since(place, monkeypatch, ahead):
    """PROTOCOL 5: Spark had given it up between its look at the receipt and settling."""
    plans = [
        structs.replace(
            PLAN,
            state=StateId(1, number + 1),
            expected=StateId(1, number) if number else None,
            ranges=(OffsetRange(topic="sales", partition=0, start=5 * number, end=5 * number + 5),),
        )
        for number in range(3)
    ]
    receipts, stored_receipt = [], module._stored_receipt

    def sleeping(plan_hash, store):
        found = stored_receipt(plan_hash, store)
        monkeypatch.setattr(module, "_stored_receipt", stored_receipt)
        receipts.extend(map(runner(place).run, plans[:ahead]))
        return found

    monkeypatch.setattr(module, "_stored_receipt", sleeping)
    answer = runner(place).run(plans[0])
    assert [each.status for each in receipts] == [ReceiptStatus.DONE] * ahead
    if ahead == 1:
        assert answer == receipts[0]
    else:
        assert answer.status is ReceiptStatus.NEEDS_RESTORE
    assert runner(place).run(plans[ahead]).status is ReceiptStatus.DONE


def test_a_worker_that_slept_before_it_settles_without_a_plan_takes_back_nothing(place):
    """PROTOCOL 5: it was to drop the undo log of what is committed; its successor has, and has had a plan since."""
    first = runner(place).run(PLAN)
    following = structs.replace(PLAN, state=StateId(1, 2), expected=first.state, committed=first.state, ranges=())
    assert runner(place).run(following).status is ReceiptStatus.DONE
    assert not runner(place).settle(PLAN.task, PLAN.instance, generation=1, committed=first.state, close=False)
    third = structs.replace(following, state=StateId(1, 3), expected=following.state)
    assert runner(place).run(third).status is ReceiptStatus.DONE


def test_a_plan_that_comes_again_is_answered_with_its_receipt_and_another_undoes_it_first(place):
    """PROTOCOL 7: the driver repeats the plans of a lost Spark job; after its death a new one makes other plans."""
    first = runner(place).run(PLAN)
    files = sorted(place.warehouse.rglob("*.parquet"))
    assert runner(place).run(PLAN) == first
    assert sorted(place.warehouse.rglob("*.parquet")) == files, "nothing was computed again"
    shorter = OffsetRange(topic="sales", partition=0, start=0, end=5)
    second = runner(place).run(structs.replace(PLAN, state=StateId(2, 1), ranges=(shorter,)))
    assert second.status is ReceiptStatus.DONE
    assert (second.positions, second.counts["records_in"]) == ({"sales": {0: 5}}, 5)


def test_a_worker_of_an_older_driver_makes_no_instance_where_a_newer_one_has_its_own(place):
    """PROTOCOL 20: the older driver's is in quarantine when its worker, which was frozen, gets to the task."""
    newer = structs.replace(PLAN, instance="second", state=StateId(2, 1))
    assert runner(place).run(newer).status is ReceiptStatus.DONE
    refused = runner(place).run(PLAN)
    assert refused.status is ReceiptStatus.FAILED
    assert "this is generation 1, but generation 2 has taken over" in refused.error
    assert current_instance(place.state_of("0_0")) == place.state_of("0_0") / "second"
    assert not (place.state_of("0_0") / "first").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("No space left on device (os error 28)"),
        pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_a_disk_that_fills_while_files_are_written_is_waited_for(place, monkeypatch, error):
    def full(*args, **kwargs):
        raise error

    with monkeypatch.context() as filled:
        filled.setattr(module, "write_file", full)
        refused = runner(place).run(PLAN)
    assert refused.status is ReceiptStatus.DISK_FULL
    assert "free some space" in refused.error
    assert not list(place.warehouse.rglob("*.parquet")), "the next attempt needs the room of what was written"
    assert runner(place).run(PLAN).status is ReceiptStatus.DONE


def test_a_disk_that_fills_once_an_epoch_is_written_takes_none_of_its_files(place, monkeypatch):
    """The plan comes again, and is answered with the receipt that names them."""

    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as filled:
        filled.setattr(task_store, "prove_sound", full)
        assert runner(place).run(PLAN).status is ReceiptStatus.DISK_FULL
    receipt = runner(place).run(PLAN)
    assert receipt.status is ReceiptStatus.DONE
    assert receipt.files
    assert all((place.warehouse / place.application.id / file.table / file.path).exists() for file in receipt.files)


def test_waiting_for_space_proves_nothing_against_a_store(place, monkeypatch):
    """Only a process that dies at work on an instance makes it suspect; three of them that wait for the disk do not."""
    marks = partial(place.state_folder.rglob, "unproven.*")
    during = []

    def full(*args, **kwargs):
        during.append(len(list(marks())))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as filled:
        filled.setattr(module, "write_file", full)
        assert runner(place).run(PLAN).status is ReceiptStatus.DISK_FULL
        assert list(marks()) == []
        assert runner(place).run(PLAN).status is ReceiptStatus.DISK_FULL
    with monkeypatch.context() as filled:
        filled.setattr(environment, "FREE_DISK_RESERVE_BYTES", 1 << 60)
        assert runner(place).run(PLAN).status is ReceiptStatus.DISK_FULL
        assert list(marks()) == []
    assert during == [1, 1]
    assert runner(place).run(PLAN).status is ReceiptStatus.DONE


def test_records_that_a_reader_gives_twice_stop_the_task(place):
    """PROTOCOL 9: whatever a reader keeps between epochs, no record counts twice."""

    def reading_twice(topic, partition):
        reader = place.topics.reader(topic, partition)
        read = reader.read
        reader.read = lambda *range, **bounds: replace(
            found := read(*range, **bounds), frame=pl.concat([found.frame[:5], found.frame[3:]])
        )
        return reader

    answer = EpochRunner(place.application.topology, place.settings, reading_twice, lambda name: None).run(PLAN)
    assert answer.status is ReceiptStatus.FAILED
    assert answer.error == "RuntimeError: sales-0 was read out of order after offset 0; start again"
