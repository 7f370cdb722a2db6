"""Batches of an epoch: how large the first is, and when no other follows."""

from __future__ import annotations

import pytest

from weir.pipelines.tasks.batch_sizes import (
    FIRST_ROW_BYTES,
    FIRST_ROWS,
    LEAST_ROWS,
    LESS,
    MOST_GROWTH,
    BatchSizes,
    Written,
)

MB = 1 << 20


def sizes(max_bytes: int, before: Written | None = None, max_rollback_us: int | None = None) -> BatchSizes:
    return BatchSizes(max_bytes=max_bytes, max_rollback_us=max_rollback_us, budget_s=None, before=before)


def written(records: int, each_bytes: int, each_us: int = 0) -> Written:
    return Written(records=records, bytes=records * each_bytes, rollback_us=records * each_us)


def test_before_anything_is_known_the_first_batch_is_small():
    assert sizes(16 * MB).next == FIRST_ROWS
    assert sizes(100 * 2 * FIRST_ROW_BYTES).next == LEAST_ROWS


def test_an_epoch_begins_with_a_batch_of_half_of_what_fits_by_the_last_epoch():
    assert sizes(16 * MB, written(60_000, 32)).next == 16 * MB // (2 * 32)
    assert sizes(16 * MB, written(60_000, 32, 5), max_rollback_us=300_000).next == 30_000


@pytest.mark.parametrize("each_bytes", [0, 1])
def test_it_grows_by_so_much_only(each_bytes):
    """The last epoch may have had records that wrote little."""
    assert sizes(16 * MB, written(50_000, each_bytes)).next == MOST_GROWTH * 50_000
    assert sizes(16 * MB, written(1, each_bytes)).next == FIRST_ROWS


def test_records_that_write_much_come_in_small_batches():
    assert sizes(16 * MB, written(1_000, 10_000)).next == 16 * MB // 20_000
    assert sizes(MB, written(10, MB)).next == LEAST_ROWS


def test_no_batch_follows_once_little_of_the_limit_is_left():
    batches = sizes(16 * MB)
    batches.took(FIRST_ROWS, written(100_000, 100))
    assert batches.next == 100_000 * (16 * MB - 10_000_000) // (2 * 10_000_000)
    assert not batches.are_too_large
    few = Written(records=100_000, bytes=16 * MB - 16 * MB // LESS - 1, rollback_us=0)
    batches.took(FIRST_ROWS, few)
    assert batches.next > 0
    batches.took(LEAST_ROWS, Written(records=100_100, bytes=few.bytes + 1, rollback_us=0))
    assert batches.are_too_large
    assert batches.next == 0


@pytest.mark.parametrize("each_bytes", [20, 100])
@pytest.mark.parametrize("limit", [MB, 64 * MB])
def test_an_epoch_nearly_reaches_its_limit_in_few_batches(limit, each_bytes):
    batches, taken = sizes(limit), list[int]()
    while batches.next:
        taken.append(batches.next)
        batches.took(batches.next, written(sum(taken), each_bytes))
    assert batches.are_too_large
    assert limit - limit // LESS <= sum(taken) * each_bytes <= limit
    assert len(taken) <= 6
    assert min(taken[1:]) >= limit / each_bytes / 64
