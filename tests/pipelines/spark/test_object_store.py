"""Applications whose warehouse is on an object store: the driver and its tasks run here, the store is a server."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import timedelta
from threading import Event

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.examples import combined
from tests.faults.dying import KilledError, dying_at
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, program, sales, totals
from tests.s3_proxy import s3_proxy
from weir.pipelines.spark.progress import Progress
from weir.state.changelog.compaction import Compaction
from weir.state.commit.log import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache
from weir.state.errors import FencedError
from weir.state.storage import object_store


@pytest.fixture
def place(tmp_path, s3_bucket):
    topics = Topics({("sales", partition): sales(90, partition) for partition in (0, 1)})
    yield Place(application(), topics, tmp_path, max_records=30, snapshot_rows=12, bucket=s3_bucket)
    TaskStoreCache.close_all()


def lose_state(place: Place) -> None:
    TaskStoreCache.close_all()
    shutil.rmtree(place.state_folder)


def test_what_is_committed_is_on_the_store_alone(place):
    place.run()
    assert totals(place) == expected(place)
    assert not (place.folder / "warehouse").exists()


def test_lost_stores_are_restored_from_snapshots_and_changelogs(place):
    place.run()
    assert [each.error for each in place.snapshots.done] == [""] * len(place.snapshots.done)
    assert place.snapshots.done
    for task in ("0_0", "0_1"):
        shutil.rmtree(place.state_of(task))
    TaskStoreCache.close_all()
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(30, partition)
    place.run()
    assert [done.error for done in place.restores.done] == ["", ""]
    assert any(done.from_snapshot for done in place.restores.done)
    assert totals(place) == expected(place)


@pytest.mark.parametrize("step", ["files written", "state written", "pivot appended", "table appended", "settled"])
def test_a_driver_that_dies_at_a_step_is_followed_by_one_that_loses_and_doubles_nothing(place, step):
    with pytest.raises(KilledError):
        place.run(dying_at(step, 3))
    place.run()
    assert totals(place) == expected(place)


def test_of_two_drivers_the_older_is_fenced(place):
    older, newer = place.driver(), place.driver()
    with pytest.raises(FencedError, match="newer driver has taken over"):
        older.run(Event(), until_caught_up=True)
    newer.run(Event(), until_caught_up=True)
    assert totals(place) == expected(place)


def test_rows_on_their_way_to_another_task_arrive_once_though_the_driver_dies(place):
    place.application = program(by_amount=True)
    with pytest.raises(KilledError):
        place.run(dying_at("pivot appended", 2))
    place.run()
    sold = {row["amount"]: row["sold"] for row in read_table(place.warehouse / "sales" / "by_amount").to_dicts()}
    assert sold == dict.fromkeys(range(90), 2)
    assert not newest_commit(place.warehouse, "sales").pending_blobs


def test_a_compaction_leaves_fewer_files_and_the_same_rows(place):
    place.run()
    compaction = Compaction(place.warehouse, "sales", is_whole=True, tombstone_retention_ms=0)
    reports = list(compaction.run(compaction.tables()))
    assert all(report.files_after < report.files_before for report in reports if report.files_before > 2)
    assert totals(place) == expected(place)
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(30, partition)
    place.run()
    assert totals(place) == expected(place)


def test_delta_rs_and_polars_read_and_compact_tables_there_by_the_same_variables(place, monkeypatch):
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # for others, who do not know that the endpoint has no TLS
    place.run()
    uri = str(place.warehouse / "sales" / "totals")
    before = pl.read_delta(uri)
    assert before["total"].to_list()
    assert DeltaTable(uri).optimize.compact()["numFilesRemoved"] > 1
    assert sorted(pl.read_delta(uri).rows()) == sorted(before.rows())
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(30, partition)
    place.run()
    assert totals(place) == expected(place)


@pytest.fixture
def proxy(s3_url, s3_bucket, monkeypatch):
    with s3_proxy(s3_url) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        yield found


@combined("step,fault", ["files written", "table appended", "settled"], ["refusing", "hanging_up"])
def test_a_store_that_goes_away_is_waited_for_and_named_in_the_status(
    tmp_path, s3_bucket, proxy, monkeypatch, fault, step
):
    monkeypatch.setattr(
        object_store, "_RETRY", {"max_retries": 1, "backoff": {"init_backoff": timedelta(milliseconds=1)}}
    )
    monkeypatch.setattr("weir.pipelines.spark.driver.DISK_FULL_WAIT_S", 0.01)
    topics = Topics({("sales", partition): sales(90, partition) for partition in (0, 1)})
    place = Place(application(), topics, tmp_path, max_records=30, bucket=s3_bucket)
    waits, steps = set[str](), Counter[str]()

    def on_step(name: str) -> None:
        steps[name] += 1
        if name == step and steps[name] == 2:
            setattr(proxy, fault, 1_000_000)

    def on_progress(progress: Progress) -> None:
        if progress.state == "waiting":
            waits.add(progress.message)
            proxy.refusing = proxy.hanging_up = 0

    place.driver(on_step, on_progress).run(Event(), until_caught_up=True)
    assert totals(place) == expected(place)
    reason = "503 Service Unavailable" if fault == "refusing" else "error sending request"
    assert waits
    for message in waits:
        assert f"the object store of {s3_bucket}/warehouse/sales" in message
        assert f"does not answer: {'Server returned non-2xx status code: ' * (fault == 'refusing')}" in message
        assert f"{reason}; check the network, and the endpoint in the environment" in message
    place.run()
    assert totals(place) == expected(place), "another start finds nothing to complain of"
    TaskStoreCache.close_all()
