"""``weir status``: every application in short, one in detail, and figures as of a failure."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from threading import Event

import msgspec
import pytest
from typer.testing import CliRunner

from tests.pipelines.cli.sold import Installed, sold
from tests.pipelines.spark import counted_numbers
from tests.pipelines.spark.sales import sales
from weir.infra.control import ControlDatabase, this_host
from weir.infra.control.rows import MetricRow, TaskStatusRow
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations.registry import register
from weir.pipelines.publishing.state import SinkState
from weir.pipelines.spark.errors import BadRecordError
from weir.state import full_disk
from weir.state.commit.protocol import newest_commit
from weir.state.engine.doubts import Doubt, put_in_doubt
from weir.state.engine.instances import current_instance
from weir.state.types import StateId

METRIC = dict(epoch=1, committed_epoch=1, records_in=200, records_per_s=0.0, commit_ms=1.0)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Installed:
    return sold(tmp_path, monkeypatch)


@pytest.fixture
def database(place) -> ControlDatabase:
    return ControlDatabase(Settings(dir=place.folder).control_database_url)


def report(database: ControlDatabase, lag: int, *tasks: TaskStatusRow):
    lease = database.acquire_lease("sales", owner="weir run", pid=1, host=this_host(), ttl_s=60, take_over=True)
    database.report_tasks("sales", tasks)
    database.add_metric("sales", MetricRow(lag=lag, **METRIC))
    return lease


def status(*arguments: str):
    return CliRunner().invoke(app, ["status", *arguments])


def flat(text: str) -> str:
    return " ".join(text.split())


def test_one_application_in_detail(place, database):
    running = TaskStatusRow(task="0_0", slot=0, status="running", lag=7, reason="waits for rows of task 0_1")
    restoring = TaskStatusRow(task="0_1", slot=1, status="restoring", reason="1,000 of about 2,000 rows")
    report(database, 7, running, restoring)
    detail = json.loads(status("sales", "--json").stdout)
    newest = newest_commit(place.warehouse, "sales")
    shops = {key for rows in place.topics.rows.values() for key, _, _ in rows}
    (store,) = detail["stores"]
    assert (store["store"], store["tasks"], store["here"], store["rows"]) == ("sums", 2, 2, len(shops))
    files = sum((current_instance(place.state_of(task)) / "data.mdb").stat().st_size for task in ("0_0", "0_1"))
    assert 0 < store["bytes"] < files
    assert store["bytes"] % 4096 == 0
    assert (detail["committed_epoch"], detail["commit_reason"]) == (newest.epoch, newest.reason)
    assert [(task["task"], task["name"]) for task in detail["tasks"]] == [
        (task, place.name_of(task)) for task in ("0_0", "0_1")
    ]
    assert detail["tasks"][0]["committed_state"] == str(StateId(newest.generation, newest.epoch))
    assert detail["restores"] == [{"task": "0_1", "reason": "1,000 of about 2,000 rows"}]
    text = flat(status("sales").stdout)
    for fact in (
        f"epoch {newest.epoch} of generation 1",
        f"({newest.reason}), lag 7",
        "restore under way: task 0_1: 1,000 of about 2,000 rows",
        "waits for rows of task 0_1",
        f"sums 2 2 {len(shops)} {store['bytes']:,}",
        place.name_of("0_0"),
    ):
        assert fact in text


def test_a_running_application_tells_how_far_apart_commits_are_and_how_fresh_their_records(place, database):
    told = {"commit-interval-avg": 101.4, "freshness-p50": 91.4, "freshness-p99": 1_160.6}
    lease = database.acquire_lease("sales", owner="weir run", pid=1, host=this_host(), ttl_s=60, take_over=True)
    database.add_metric("sales", MetricRow(lag=7, commits_per_s=9.8, commit_ms_avg=12.2, commit_ms_max=30.0, **METRIC))
    database.report_readings(
        "sales",
        [{"group": "stream-thread-metrics", "name": name, "tags": {}, "value": value} for name, value in told.items()],
    )
    text = flat(status("sales").stdout)
    assert "commits: 9.8 per second, 12 ms on average, at most 30 ms, 101 ms apart" in text
    assert "half of the last minute's records were committed within 91 ms of their time, 99% within 1,161 ms" in text
    (entry,) = json.loads(status("--json").stdout)["applications"]
    assert [entry[name] for name in ("commit_interval_ms", "freshness_p50_ms", "freshness_p99_ms")] == [*told.values()]
    told["freshness-p99"] = 28_425_075_326.0
    database.report_readings(
        "sales",
        [{"group": "stream-thread-metrics", "name": name, "tags": {}, "value": value} for name, value in told.items()],
    )
    assert "99% within 329.0 days" in flat(status("sales").stdout)
    database.release(lease)
    assert "freshness" not in status("sales").stdout, "it has ended"


def test_sensors_that_have_stopped_looking_show_until_they_look_again(place, database, monkeypatch):
    assert json.loads(status("sales", "--json").stdout)["unwatched"] is None, "they never did"
    database.note_watched(["sales"])
    assert "unwatched" not in status().stdout
    at_s = database.watched_at_ms("sales") / 1000
    monkeypatch.setattr(time, "time", lambda: at_s + 26)
    at = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert f"unwatched: Dagster's sensors looked last at {at}, 26.0 s ago: its daemon" in flat(status().stdout)
    database.note_watched(["sales"])
    monkeypatch.undo()
    assert "unwatched" not in status().stdout


def test_a_task_in_doubt_shows_with_what_was_found_until_it_is_restored(place):
    doubt = Doubt(task="0_1", store="sums", difference="key shop=x differs", found_at_s=0.0, found_by="a check")
    put_in_doubt(current_instance(place.state_of("0_1")), doubt)
    (found,) = json.loads(status("sales", "--json").stdout)["in_doubt"]
    assert (found["task"], found["store"], found["difference"]) == ("0_1", "sums", "key shop=x differs")
    assert "in doubt: key shop=x differs; found at 1970-01-01 00:00:00 UTC by a check;" in flat(status().stdout)
    place.run()
    assert json.loads(status("sales", "--json").stdout)["in_doubt"] == []
    assert "in doubt" not in status().stdout


def test_a_full_disk_shows_whether_or_not_a_run_could_say_so(place, monkeypatch):
    assert json.loads(status("sales", "--json").stdout)["full_disk"] is None
    monkeypatch.setattr(full_disk, "free_bytes", lambda where: 1_000)
    shown = flat(status().stdout)
    assert (
        f"disk: application 'sales': the disk of {place.warehouse}/sales has 1,000 bytes free, but 33,554,432" in shown
    )


def test_without_its_program_or_its_state_it_shows_what_is_left(place, database):
    report(database, 0, TaskStatusRow(task="0_0", slot=0, status="running"))
    (place.folder / "applications" / "sales.json").unlink()
    place.state_folder.rename(place.folder / "elsewhere")
    detail = json.loads(status("sales", "--json").stdout)
    assert detail["stores"] == [{"store": "sums", "tasks": 2, "here": 0, "rows": None, "bytes": None}]
    assert [(task["task"], task["name"]) for task in detail["tasks"]] == [("0_0", None)]
    assert status("sales").exit_code == 0


def test_an_unknown_application_lists_the_known_ones(place):
    refused = status("zebra")
    assert refused.exit_code == 1
    assert "no application 'zebra' in" in flat(refused.stderr)
    assert "; it has sales" in flat(refused.stderr)


def test_a_lag_of_a_run_that_has_ended_says_when_it_was_reported(place, database):
    lease = report(database, 12)
    assert "lag 12 at" not in flat(status().stdout)
    assert "lag 12" in flat(status().stdout)
    before = datetime.now(UTC)
    database.release(lease, state="failed", error="a bad record")
    at = re.search(r"lag 12 at (\S+ \S+) UTC", flat(status().stdout))[1]
    assert abs((datetime.fromisoformat(at + "+00:00") - before).total_seconds()) < 60


@pytest.mark.parametrize("bad_offset", [100, 130])
def test_the_last_report_of_a_run_that_failed_has_the_lag_as_of_the_failure(place, bad_offset):
    for partition in (0, 1):
        place.topics.rows["sales", partition] += sales(60, partition)
    place.topics.rows["sales", 0][bad_offset] = (b"shop", b"no JSON", 5_000)
    reports = []
    place.desk.report = lambda progress, tasks, ends: reports.append((progress.lag, progress.committed_epoch))
    with pytest.raises(BadRecordError):
        place.driver().run(Event(), until_caught_up=True)
    newest = newest_commit(place.warehouse, "sales")
    read = sum(offset for task in newest.tasks.values() for offset in task.positions["sales"].values())
    assert newest.tasks[place.name_of("0_0")].positions["sales"] == {0: bad_offset}
    assert reports[-1] == (320 - read, newest.epoch)


def test_why_a_run_waits_is_told_while_it_does(place, database):
    lease = report(database, 12, TaskStatusRow(task="0_0", slot=0, status="running"))
    database.heartbeat(lease, state="waiting")
    database.report_waiting("sales", "5,000 bytes wait for sinks; reading goes on when they have caught up")
    assert json.loads(status("sales", "--json").stdout)["waits_for"].startswith("5,000 bytes wait for sinks")
    assert "waits: 5,000 bytes wait for sinks; reading goes on" in flat(status("sales").stdout)
    database.release(lease)
    assert "wait for sinks" not in status("sales").stdout


def test_what_waits_for_a_sink_is_told_in_rows_bytes_and_seconds(place, database):
    report(database, 12, TaskStatusRow(task="0_0", slot=0, status="running"))
    state = SinkState(
        sink="shelf",
        target="Shelf",
        waiting_rows=7_000,
        waiting_bytes=12_300_000,
        waiting_since_s=time.time() - 90,
        error="no route",
    )
    database.report_sinks("sales", [msgspec.to_builtins(state)])
    assert re.search(
        r"sink shelf \(Shelf\): waits: no route; 7,000 rows wait \(12\.3 MB, for 9\d\.\d s\)",
        flat(status("sales").stdout),
    )
    (plain,) = json.loads(status("sales", "--json").stdout)["sinks"]
    assert (plain["waiting_rows"], plain["waiting_bytes"]) == (7_000, 12_300_000)


def test_what_expectations_counted(tmp_path):
    place = counted_numbers.place(tmp_path)
    register(Settings(dir=tmp_path), "numbers", "tests.pipelines.spark.counted_numbers:app")
    place.run()
    numbers = counted_numbers.NUMBERS
    passed = sum(n >= 0 for n in numbers)
    failed = len(numbers) - passed
    detail = json.loads(status("numbers", "--json", "--dir", str(tmp_path)).stdout)
    counts = {"passed": passed, "failed": failed, "dropped": failed, "failed_share": failed / len(numbers)}
    assert detail["expectations"] == [{"expectation": "not_negative", **counts}]
    text = flat(status("--dir", str(tmp_path)).stdout)
    assert (
        f"expectation not_negative: {passed} passed, {failed} failed ({failed}.00%), {failed} of them dropped" in text
    )


def test_what_sensors_have_asked_for_is_shown_with_what_it_brought(place, database):
    report(database, 90_000, TaskStatusRow(task="0_0", slot=0, status="running"))
    asked = database.request(
        "sales", "pace", by="dagster sensor weir_lag", reason="commits take 40% of the time", arguments={}
    )
    database.request("sales", "commit", by="ann@host", reason="a person")
    assert "commits take 40% of the time; asked; not known yet" in status("sales").output
    database.finish_request(asked, "commits every 1 s")
    database.add_metric("sales", MetricRow(lag=7, at_ms=time.time_ns() // 1_000_000 + 5_000, **METRIC))
    shown = status("sales").output
    assert re.search(
        r"weir_lag at [-0-9]+ [:0-9]+ UTC: commits take 40% of the time; commits every 1 s; "
        r"lag 90,000 before, 7 5 s after",
        shown,
    ), shown
    assert "a person" not in shown
    [action] = json.loads(status("sales", "--json").output)["actions"]
    assert (action["kind"], action["lag_before"], action["lag_after"]) == ("pace", 90_000, 7)
