"""Where the warehouse is on an object store, the next epoch begins before a commit: its tasks read and compute while
the commit waits for the network, write nothing until it stands, and count each record once whatever dies.

Results are compared with a plain loop over the records. Slots are threads; the store is a server.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.faults.dying import KilledError
from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.threads import ThreadedPlace
from weir import Application, Count, Json, StreamsBuilder, String
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache
from weir.state.storage.places import folder_at

RECORDS, USERS, PARTITIONS = 240, 6, 2
SEEN: Counter[int] = Counter()
CALLED = threading.Condition()
CALL_S = 0.0
LIMIT = 3_000


@dataclass(frozen=True)
class Click:
    number: int


def called(click: Click) -> Click:
    time.sleep(CALL_S)
    with CALLED:
        SEEN[click.number] += 1
        CALLED.notify_all()
    return click


@pytest.fixture
def place(tmp_path, s3_bucket):
    yield place_of(tmp_path, s3_bucket, commit_interval=timedelta(milliseconds=1))
    TaskStoreCache.close_all()


@pytest.fixture
def small_place(tmp_path, s3_bucket):
    """Where commits come by what is uncommitted, never by their interval."""
    yield place_of(tmp_path, s3_bucket, commit_interval=timedelta(minutes=10), uncommitted_max_bytes=LIMIT)
    TaskStoreCache.close_all()


def place_of(tmp_path: Path, s3_bucket: str, **options: Any) -> ThreadedPlace:
    SEEN.clear()
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).map_values(called)
    clicks.group_by_key().agg("counts", n=Count()).to_delta("counts")
    clicks.group_by("number").agg("numbers", n=Count()).to_delta("numbers")
    topics = Topics(
        {
            ("clicks", partition): [
                (b"user-%d" % (number % USERS), json.dumps({"number": number}).encode(), 1_000 + number)
                for number in range(RECORDS)
                if number % USERS % PARTITIONS == partition
            ]
            for partition in range(PARTITIONS)
        }
    )
    return ThreadedPlace(Application("shop", builder, **options), topics, tmp_path, max_records=15, bucket=s3_bucket)


def assert_each_counted_once(place: ThreadedPlace) -> None:
    counts = read_table(place.warehouse / "shop" / "counts")
    assert dict(counts.select("user", "n").iter_rows()) == {f"user-{user}": RECORDS // USERS for user in range(USERS)}
    numbers = read_table(place.warehouse / "shop" / "numbers")
    assert dict(numbers.select("number", "n").iter_rows()) == dict.fromkeys(range(RECORDS), 1)


def files(place: ThreadedPlace) -> set[str]:
    """What tasks have written into tables."""
    names = (file.name for file in (folder_at(place.warehouse) / "shop").list(below=True))
    return {name for name in names if not name.startswith(("_blobs", "_commits")) and "_delta_log" not in name}


def test_tasks_compute_during_a_commit_and_write_nothing_before_it_stands(place, monkeypatch):
    overlapped, known = list[bool](), set[str]()
    monkeypatch.setattr(sys.modules[__name__], "CALL_S", 0.04)  # so that there are several commits, however quick it is
    place.application.commit_interval = timedelta(seconds=1)  # else commits are late, and no epoch is waited for

    def on_step(step: str) -> None:
        read = sum(place.positions("clicks")) if step == "pivot appended" else RECORDS
        if read < RECORDS:
            with CALLED:
                overlapped.append(CALLED.wait_for(lambda: sum(SEEN.values()) > read, 2))
            named = {f"{file.table}/{file.path}" for file in place.commit_before().files}
            assert files(place) - known == named
            known.update(named)

    run, _ = place.begin(on_step)
    try:
        summary = run.result(120)
    finally:
        place.used[-1].driver_dies()
    assert (summary.reason, summary.records_in) == ("caught_up", RECORDS)
    assert overlapped.count(True) > 1
    assert Counter(range(RECORDS)) == SEEN, "nothing was done twice"
    assert_each_counted_once(place)


def test_tasks_also_compute_during_a_commit_that_comes_because_much_is_uncommitted(small_place, monkeypatch):
    overlapped, reasons = list[bool](), set[str]()
    monkeypatch.setattr(sys.modules[__name__], "CALL_S", 0.04)

    def on_step(step: str) -> None:
        if step != "pivot appended" or (read := sum(small_place.positions("clicks"))) == RECORDS:
            return
        reasons.add(small_place.commit_before().reason)
        with CALLED:
            overlapped.append(CALLED.wait_for(lambda: sum(SEEN.values()) > read, 2))

    run, _ = small_place.begin(on_step)
    try:
        assert run.result(120).reason == "caught_up"
    finally:
        small_place.used[-1].driver_dies()
    assert overlapped.count(True) > 1
    assert reasons <= {"first run", "bytes", "early"}
    assert_each_counted_once(small_place)


@pytest.mark.parametrize("step", ["pivot appended", "table appended", "settled", "renewed", "files written"])
def test_a_driver_that_dies_while_both_are_under_way_is_followed_by_one_that_counts_each_record_once(place, step):
    left, lock = [3], threading.Lock()

    def on_step(name: str) -> None:
        if name == step:
            with lock:
                left[0] -= 1
            if left[0] <= 0:
                raise KilledError

    run, _ = place.begin(on_step)
    with pytest.raises(KilledError):
        run.result(120)
    place.used[-1].driver_dies()
    TaskStoreCache.close_all()
    run, _ = place.begin()
    assert run.result(120).reason == "caught_up"
    assert_each_counted_once(place)


def test_a_newer_driver_fences_one_whose_epoch_has_begun(place):
    def on_step(name: str) -> None:
        if name == "settled" and len(place.used) == 1:
            newer, _ = place.begin()
            newer.result(120)

    run, _ = place.begin(on_step)
    with pytest.raises(Exception, match="newer driver has taken over"):
        run.result(120)
    place.used[0].driver_dies()
    assert_each_counted_once(place)
