"""What is read ahead changes nothing but who decodes it, and when."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales, totals
from weir.pipelines.serdes import source
from weir.pipelines.serdes.source import decode_parts
from weir.pipelines.tasks import ahead
from weir.pipelines.tasks.epoch import EpochRunner
from weir.pipelines.tasks.plan import OffsetRange, Receipt, ReceiptStatus, TaskPlan
from weir.state.types import StateId, TaskId

RECORDS, BATCH = 40, 8


class Slot:
    """Runs epochs of the only task one after another; ``decoded`` says on which thread, for how many records."""

    def __init__(self, folder, monkeypatch, rows=None, *, reads_ahead=True, on_error="fail") -> None:
        monkeypatch.setattr(ahead, "LEAST_RECORDS", 1)
        self.rows = sales(RECORDS, 0) if rows is None else rows
        self.place = Place(application(on_error), Topics({("sales", 0): self.rows}), folder)
        self.decoded: list[tuple[str, int]] = []
        for module in (ahead, source):
            monkeypatch.setattr(module, "decode_parts", self._noting(decode_parts))
        self.steps: list[str] = []
        self.runner = EpochRunner(
            self.place.application.topology,
            replace(self.place.settings, reads_ahead=reads_ahead),
            cache(self.place.topics.reader),
            self.steps.append,
            self.place.application.error_handling,
        )
        self.epoch = 0

    def _noting(self, decode):
        def noted(source, raw):
            is_main = threading.current_thread() is threading.main_thread()
            self.decoded.append(("main" if is_main else "ahead", raw.height))
            return decode(source, raw)

        return noted

    def run(self, start: int, end: int, **bounds) -> Receipt:
        plan = TaskPlan(
            task=TaskId(0, 0),
            instance="first",
            state=StateId(1, self.epoch + 1),
            expected=StateId(1, self.epoch) if self.epoch else None,
            committed=StateId(1, self.epoch) if self.epoch else None,
            now_ms=0,
            ranges=(OffsetRange(topic="sales", partition=0, start=start, end=end),),
            **bounds,
        )
        receipt = self.runner.run(plan)
        self.runner.wait_for_readers()
        assert receipt.status is ReceiptStatus.DONE, receipt.error
        self.epoch += 1
        return receipt

    def read_to(self, *ends: int) -> list[Receipt]:
        return [self.run(start, end) for start, end in pairwise((0, *ends))]


def plain(receipt: Receipt) -> tuple:
    return receipt.positions, receipt.counts, receipt.clocks, receipt.bad_record, receipt.source_times_ms


def test_what_follows_is_decoded_on_another_thread_and_gives_the_same(tmp_path, monkeypatch):
    ends = range(BATCH, RECORDS + 1, BATCH)
    with monkeypatch.context() as patch:
        slot = Slot(tmp_path / "ahead", patch)
        receipts = slot.read_to(*ends)
        assert slot.decoded == [("main", BATCH), *[("ahead", BATCH)] * (len(ends) - 1)]
    with monkeypatch.context() as patch:
        plainly = Slot(tmp_path / "plain", patch, reads_ahead=False)
        assert list(map(plain, plainly.read_to(*ends))) == list(map(plain, receipts))
        assert plainly.decoded == [("main", BATCH)] * len(ends)


def test_a_shorter_plan_takes_the_beginning_and_a_longer_one_decodes_itself(tmp_path, monkeypatch):
    slot = Slot(tmp_path, monkeypatch)
    receipts = slot.read_to(10, 14, 30, RECORDS)
    assert [receipt.positions["sales"][0] for receipt in receipts] == [10, 14, 30, RECORDS]
    assert slot.decoded == [("main", 10), ("ahead", 10), ("ahead", 4), ("main", 16), ("ahead", 10)], (
        "each before it is due"
    )


def test_an_epoch_that_leaves_rows_is_followed_by_one_that_reads_them_again(tmp_path, monkeypatch):
    """They are taken back into a reader that has read beyond them."""
    slot = Slot(tmp_path, monkeypatch)
    monkeypatch.setattr("weir.pipelines.tasks.batch_sizes.FIRST_ROWS", 3)
    cut = slot.run(0, BATCH, max_uncommitted_bytes=1).positions["sales"][0]
    assert 0 < cut < BATCH
    assert slot.run(cut, RECORDS).positions["sales"][0] == RECORDS
    assert slot.decoded == [("main", BATCH), ("ahead", BATCH), ("main", RECORDS - cut)]


def test_bad_records_are_told_as_ever(tmp_path, monkeypatch):
    rows = sales(RECORDS, 0)
    rows[BATCH + 2] = (b"shop", b"no JSON", 5)
    slot = Slot(tmp_path, monkeypatch, rows)
    slot.run(0, BATCH)
    receipt = slot.run(BATCH, 2 * BATCH)
    assert slot.decoded == [("main", BATCH), ("ahead", BATCH)]
    assert (receipt.bad_record.offset, receipt.positions["sales"][0]) == (BATCH + 2, BATCH + 2)


def test_a_log_that_was_replaced_meanwhile_is_decoded_anew(tmp_path, monkeypatch):
    slot = Slot(tmp_path, monkeypatch)
    slot.run(0, BATCH)
    for offset in range(BATCH, RECORDS):
        key, _, time_ms = slot.rows[offset]
        slot.rows[offset] = key, json.dumps({"amount": 1_000}).encode(), time_ms
    slot.runner._connected.cache_clear()  # as after an error: a new reader knows nothing of what was fetched
    slot.run(BATCH, 2 * BATCH)
    assert slot.decoded[:3] == [("main", BATCH), ("ahead", BATCH), ("main", BATCH)]


def test_an_error_ahead_is_left_to_whoever_reads_next(tmp_path, monkeypatch):
    slot = Slot(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "decode_parts", lambda source, raw: 1 / 0)
        slot.run(0, BATCH)
    assert slot.run(BATCH, 2 * BATCH).positions["sales"][0] == 2 * BATCH
    assert slot.decoded[:2] == [("main", BATCH), ("main", BATCH)]


@pytest.mark.parametrize(("bounds", "expected"), [({"MOST_BYTES": 0}, 0), ({"LEAST_RECORDS": BATCH + 1}, 0), ({}, 4)])
def test_little_and_too_much_is_not_read_ahead(tmp_path, monkeypatch, bounds, expected):
    slot = Slot(tmp_path, monkeypatch)
    for name, value in bounds.items():
        monkeypatch.setattr(ahead, name, value)
    slot.read_to(*range(BATCH, RECORDS + 1, BATCH))
    assert [thread for thread, _ in slot.decoded].count("ahead") == expected


def test_a_run_that_reads_ahead_gives_the_plain_totals(tmp_path, monkeypatch):
    """Two partitions that share a slot, epoch by epoch of a driver; the totals are those of a loop over the records."""
    monkeypatch.setattr(ahead, "LEAST_RECORDS", 1)
    monkeypatch.setattr("weir.pipelines.spark.parts.os.sched_getaffinity", lambda pid: range(99))
    rows = {("sales", partition): sales(200 + partition, partition) for partition in range(2)}
    place = Place(application(), Topics(rows), tmp_path, max_records=30)
    place.run()
    expected: dict[str, tuple[int, int]] = {}
    for key, value, _ in (row for part in rows.values() for row in part):
        total, count = expected.get(key.decode(), (0, 0))
        expected[key.decode()] = total + json.loads(value)["amount"], count + 1
    assert totals(place) == expected
