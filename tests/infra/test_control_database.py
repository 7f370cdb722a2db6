"""The control database over SQLite, and over PostgreSQL if pgserver is installed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from tests.small_disk import small_disk
from tests.waiting import wait_for
from weir.infra.control import (
    AssignmentRow,
    ControlDatabase,
    ControlDatabaseError,
    DriverControl,
    LeaseHeldError,
    MetricRow,
    TaskStatusRow,
    guard,
    this_host,
)
from weir.infra.control.rows import AT_REST, QueryServerRow

METRIC = MetricRow(epoch=7, committed_epoch=5, records_in=100, records_per_s=12.5, lag=3, commit_ms=8.25)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory):
    pgserver = pytest.importorskip("pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgresql"))
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    url = (
        f"sqlite:///{tmp_path / 'control.sqlite'}"
        if request.param == "sqlite"
        else (request.getfixturevalue("postgresql"))
    )
    database = ControlDatabase(url)
    for application in database.applications():
        database.forget(application)
    return database


def acquire(database, *, owner="one", pid=None, host=None, ttl_s=60.0, take_over=False):
    return database.acquire_lease(
        "app", owner=owner, pid=pid or os.getpid(), host=host or this_host(), ttl_s=ttl_s, take_over=take_over
    )


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_held_lease_is_refused_and_names_its_holder(database):
    acquire(database, owner="weir run")
    with pytest.raises(LeaseHeldError, match=rf"weir run \(process {os.getpid()} on {this_host()}, since 20"):
        acquire(database, owner="two")


def test_a_lease_of_an_ended_process_of_this_host_is_free(database):
    acquire(database, pid=ended_pid())
    assert not database.is_running("app")
    assert database.application_status("app").state == "dead"
    acquire(database, owner="two")
    assert database.application_status("app").owner == "two"


def test_a_killed_driver_is_still_dead_after_the_lease_was_taken_at_rest(database):
    acquire(database, owner="weir run", pid=ended_pid())
    acquire(database, owner=AT_REST)
    assert database.application_status("app").owner == AT_REST
    driver = database.application_status("app", of_driver=True)
    assert (driver.owner, driver.state, driver.is_running) == ("weir run", "dead", False)


def test_a_pid_given_to_another_process_does_not_hold_the_lease(database):
    lease = acquire(database)
    with database._writing() as connection:
        connection.exec_driver_sql("UPDATE weir_instances SET process_start = process_start - 1")
    acquire(database, owner="two")
    assert not database.heartbeat(lease, state="running")


def test_a_lease_of_another_host_is_free_only_once_it_has_expired(database):
    acquire(database, host="elsewhere", ttl_s=60.0)
    with pytest.raises(LeaseHeldError):
        acquire(database)
    acquire(database, host="elsewhere", ttl_s=-1.0, take_over=True)
    acquire(database)


@pytest.mark.parametrize(("back_s", "is_free"), [(30, False), (61, True), (3600, True)])
def test_after_the_clock_went_back_a_dead_host_holds_its_lease_no_longer_than_it_lasts(
    database, monkeypatch, back_s, is_free
):
    """Its last heartbeat then lies in the future, and so does the end of its lease, by as much."""
    acquire(database, host="elsewhere", ttl_s=60.0)
    now_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr("weir.infra.control.database._now_ms", lambda: now_ms - back_s * 1000)
    assert database.is_running("app") != is_free
    if is_free:
        acquire(database)
        assert database.application_status("app").owner == "one"
    else:
        with pytest.raises(LeaseHeldError):
            acquire(database)


def test_after_the_clock_went_back_a_living_driver_keeps_its_lease(database, monkeypatch):
    here, elsewhere = time.time_ns() // 1_000_000, "elsewhere"
    local = acquire(database)
    monkeypatch.setattr("weir.infra.control.database._now_ms", lambda: here - 3_600_000)
    with pytest.raises(LeaseHeldError):
        acquire(database, owner="two")
    database.release(local)
    monkeypatch.setattr("weir.infra.control.database._now_ms", lambda: here)
    foreign = acquire(database, host=elsewhere)
    monkeypatch.setattr("weir.infra.control.database._now_ms", lambda: here - 3_600_000)
    assert database.heartbeat(foreign, state="running")
    with pytest.raises(LeaseHeldError):
        acquire(database, owner="two")


def test_a_heartbeat_after_a_takeover_reports_that_the_lease_is_lost(database):
    first = acquire(database)
    assert database.heartbeat(first, state="running", generation=3)
    second = acquire(database, owner="two", take_over=True)
    assert not database.heartbeat(first, state="running")
    database.release(first, state="failed", error="fenced")  # touches nothing of the second's
    status = database.application_status("app")
    assert (status.owner, status.state, status.is_running) == ("two", "starting", True)
    assert database.heartbeat(second, state="running", generation=4)
    database.release(second)
    status = database.application_status("app")
    assert (status.state, status.is_running, status.generation) == ("stopped", False, 4)


def test_many_may_create_the_tables_at_once(request, tmp_path):
    """In production each is a separate process: here none knows what another has created."""
    server = request.getfixturevalue("postgresql")
    name = f"fresh_{os.getpid()}"
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    urls = [server.replace("/postgres?", f"/{name}?"), f"sqlite:///{tmp_path / 'fresh.sqlite'}"]
    for url in urls:
        assert url != server
        with ThreadPoolExecutor(8) as pool:
            barrier = threading.Barrier(8)

            def look(url: str = url, barrier: threading.Barrier = barrier) -> list[str]:
                database = ControlDatabase(url)
                barrier.wait()
                return database.applications()

            assert [each.result() for each in [pool.submit(look) for _ in range(8)]] == [[]] * 8


def test_a_new_file_that_another_process_is_preparing_is_waited_for(tmp_path):
    """SQLite fails at once when a reader of a new file wants to switch its journal while another writes to it."""
    file, waited_s = tmp_path / "control.sqlite", 0.2
    preparing = sqlite3.connect(file, isolation_level=None)
    preparing.execute("BEGIN IMMEDIATE")
    database, began = ControlDatabase(f"sqlite:///{file}", busy_timeout_s=waited_s), time.monotonic()
    with pytest.raises(ControlDatabaseError, match="database is locked"):
        database.applications()
    assert time.monotonic() - began > waited_s
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(ControlDatabase(f"sqlite:///{file}", busy_timeout_s=60).applications)
        preparing.execute("COMMIT")
        assert patient.result() == []
    preparing.close()


WRITER = """
import sys
from weir.infra.control import ControlDatabase
database = ControlDatabase(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    database.finish_request(database.request("app", "commit", by=sys.argv[2]), str(number))
"""


@pytest.mark.slow
def test_two_processes_that_create_a_database_and_write_at_once_lose_nothing(tmp_path):
    url = f"sqlite:///{tmp_path / 'control.sqlite'}"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, by],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for by in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    errors = [writer.communicate(timeout=60)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    database = ControlDatabase(url)
    assert [database.latest_request("app", "commit", by).result for by in ("one", "two")] == ["99", "99"]
    assert database.request("app", "commit", by="three") == 201


def test_of_many_that_acquire_the_lease_at_once_one_gets_it(database):
    outcomes: list[str] = []
    barrier = threading.Barrier(6)

    def try_it() -> None:
        barrier.wait()
        try:
            acquire(database)
            outcomes.append("held")
        except LeaseHeldError:
            outcomes.append("refused")

    threads = [threading.Thread(target=try_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held"] + ["refused"] * 5


def test_task_rows_are_replaced_by_task_and_read_back_as_written(database):
    acquire(database)
    row = TaskStatusRow(
        task="0_2",
        slot=1,
        status="running",
        state="3.7",
        positions={"flights": {"2": 41}},
        lag=9,
        stream_time_ms=1_000,
        uncommitted_bytes=10,
        uncommitted_records=2,
        open_windows=4,
        late_records=1,
        records_in=41,
        reason="",
    )
    database.report_tasks("app", [row, TaskStatusRow(task="0_10", slot=0, status="restoring", reason="lost disk")])
    database.report_tasks("app", [TaskStatusRow(task="0_10", slot=0, status="running", records_in=2**40)])
    database.add_metric("app", METRIC)
    status = database.application_status("app")
    assert [task.task for task in status.tasks] == ["0_2", "0_10"]
    read = status.tasks[0]
    assert read.positions == {"flights": {"2": 41}}
    assert read.updated_at_ms >= status.started_at_ms
    assert (status.tasks[1].status, status.tasks[1].reason, status.tasks[1].records_in) == ("running", "", 2**40)
    assert (status.metric.records_per_s, status.metric.commit_ms, status.metric.lag) == (12.5, 8.25, 3)


def test_a_request_waits_until_the_driver_answers_it(database):
    first = database.request("app", "commit", by="someone", reason="bytes", arguments={"why": "now"})
    second = database.request("app", "pause", by="someone")
    database.request("other", "stop", by="someone")
    assert [row.id for row in database.pending_requests("app")] == [first, second]
    assert database.wait_request(first, timeout_s=0).state == "pending"
    database.finish_request(first, "committed 2.9")
    database.finish_request(second, "no such task", failed=True)
    assert database.pending_requests("app") == []
    answer = database.wait_request(first, timeout_s=5)
    assert (answer.state, answer.result, answer.arguments) == ("done", "committed 2.9", {"why": "now"})
    assert database.wait_request(second, timeout_s=5).state == "failed"


def test_requests_are_looked_for_only_if_somebody_else_has_written(tmp_path):
    url = f"sqlite:///{tmp_path / 'control.sqlite'}"
    driver, others = ControlDatabase(url), ControlDatabase(url)
    assert driver.may_have_requests(), "nobody has looked yet"
    assert driver.pending_requests("app") == []
    driver.add_metric("app", METRIC)
    driver.report_readings("app", [])
    assert not driver.may_have_requests(), "its own reports are not requests"
    first = others.request("app", "commit", by="someone")
    assert driver.may_have_requests()
    assert driver.may_have_requests(), "until it looks"
    assert [row.id for row in driver.pending_requests("app")] == [first]
    driver.finish_request(first, "committed")
    assert not driver.may_have_requests()
    for name in ("control.sqlite", "control.sqlite-wal", "control.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    second = ControlDatabase(url).request("app", "stop", by="someone")
    assert driver.may_have_requests(), "it is another file"
    assert [row.id for row in driver.pending_requests("app")] == [second]


def test_the_newest_request_of_a_requester_is_found_with_its_answer(database):
    assert database.latest_request("app", "commit", "sensor") is None
    first = database.request("app", "commit", by="sensor", reason="much")
    database.finish_request(first, "committed epoch 3")
    database.request("app", "pause", by="sensor")
    database.request("app", "commit", by="somebody else")
    found = database.latest_request("app", "commit", "sensor")
    assert (found.id, found.state, found.result, found.reason) == (first, "done", "committed epoch 3", "much")


def test_the_last_hour_has_one_row_per_minute(database):
    for lag in (5, 9, 1):
        database.add_metric("app", replace(METRIC, lag=lag, epoch=lag))
    rows = database.last_hour("app")
    assert len(rows) in (1, 2), "the minute may have changed meanwhile"
    assert max(row.lag for row in rows) == max(row.epoch for row in rows) == 9
    assert {row.records_per_s for row in rows} == {12.5}
    assert database.last_hour("another") == []


def test_readings_older_than_an_hour_are_kept_for_a_day_as_summaries_of_their_minutes(database, monkeypatch):
    hour, minute = 3_600_000, 60_000
    for at_ms, lag in ((100, 5), (59_900, 9), (60_100, 1), (hour, 2)):
        monkeypatch.setattr("weir.infra.control.database._now_ms", lambda at_ms=at_ms: at_ms)
        database.add_metric("aged", replace(METRIC, lag=lag, records_per_s=lag))
    before = database.last_day("aged")
    read = [(row.at_ms, row.lag, row.records_per_s) for row in before]
    assert read == [(0, 9, 7.0), (minute, 1, 1.0), (hour, 2, 2.0)]
    for now_ms in (hour + minute, hour + 2 * minute, hour + 2 * minute):
        monkeypatch.setattr("weir.infra.control.database._now_ms", lambda now_ms=now_ms: now_ms)
        database.add_metric("another", METRIC)
        assert database.last_day("aged") == before, "however much of it is folded"
    assert [row.at_ms for row in database.last_hour("aged")] == [hour]
    assert database.reading_before("aged", hour - 1) is None
    monkeypatch.setattr("weir.infra.control.database._now_ms", lambda: 24 * hour + minute)
    database.add_metric("another", METRIC)
    assert [row.at_ms for row in database.last_day("aged")] == [hour]
    database.forget("aged")
    assert database.last_day("aged") == []


def test_a_database_from_before_sizes_of_states_were_read_gets_their_column(tmp_path):
    file = tmp_path / "control.sqlite"
    url = f"sqlite:///{file}"
    ControlDatabase(url).add_metric("app", METRIC)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("ALTER TABLE weir_metrics DROP COLUMN state_bytes")
    database = ControlDatabase(url)
    assert [row.state_bytes for row in database.last_hour("app")] == [None]
    for size in (5, 9, 7):
        database.add_metric("app", replace(METRIC, state_bytes=size))
    assert max(row.state_bytes or 0 for row in database.last_hour("app")) == 9


def test_lags_are_the_greatest_of_each_step_up_to_a_time(database, monkeypatch):
    for at_ms, lag in ((1_000, 1), (1_001, 2), (1_099, 4), (1_100, 3), (1_350, 7)):
        monkeypatch.setattr("weir.infra.control.database._now_ms", lambda at_ms=at_ms: at_ms)
        database.add_metric("app", replace(METRIC, lag=lag))
    assert database.lags("app", until_ms=1_100, step_ms=100, steps=3) == [1, 4]
    assert database.lags("app", until_ms=1_100, step_ms=100, steps=1) == [4]
    assert database.lags("app", until_ms=1_350, step_ms=100, steps=3) == [4, 7], "a step may have no reading"
    assert database.lags("another", until_ms=1_100, step_ms=100, steps=3) == []


def test_servers_of_queries_are_known_with_the_tasks_as_long_as_their_driver_lives(database):
    servers = [
        QueryServerRow(executor=id, host="h", port=4, token=f"t{id}", machine="m", folder="/f") for id in ("0", "1")
    ]
    row = TaskStatusRow(task="0_2", slot=1, status="running", executor="1", standbys={"0": 0.5})
    lease = acquire(database)
    database.report_tasks("app", [row])
    assert database.query_servers("app") == ([], []), "it is on a single host"
    database.report_query_servers("app", [replace(servers[0], port=9)])
    database.report_query_servers("app", servers)
    found, (task,) = database.query_servers("app")
    assert sorted(found, key=lambda server: server.executor) == servers
    assert (task.task, task.executor, task.standbys) == ("0_2", "1", {"0": 0.5})
    assert database.query_servers("another") == ([], [])
    database.release(lease)
    assert database.query_servers("app") == ([], []), "its executors have ended"
    acquire(database)
    assert database.query_servers("app") == ([], []), "those of the next driver are not known yet"


def test_of_each_application_the_newest_assignments_are_kept(database, monkeypatch):
    monkeypatch.setattr("weir.infra.control.database.ASSIGNMENTS_KEPT", 3)
    rows = [
        AssignmentRow(
            reason=f"reason {number}",
            seconds=0.25 * number,
            executors={"1": {"slots": 2, "active": ["0_0"], "standby": [], "previous": ["0_0", "0_1"]}},
            moves=[{"task": "0_1", "role": "active", "source": "1/0", "target": None, "reason": "why"}],
            at_ms=number,
        )
        for number in range(1, 6)
    ]
    acquire(database)
    database.add_assignment("another", rows[0])
    for row in rows:
        database.add_assignment("app", row)
    assert database.assignments("app") == rows[-3:]
    assert database.assignments("another") == rows[:1]
    assert database.application_status("app").assignment == rows[-1]
    database.add_assignment("app", replace(rows[0], at_ms=0))
    assert database.assignments("app")[-1].at_ms > 1_600_000_000_000
    database.forget("another")


def test_forget_leaves_nothing_of_one_application(database):
    acquire(database)
    database.report_query_servers(
        "app", [QueryServerRow(executor="0", host="h", port=4, token="t", machine="m", folder="/f")]
    )
    database.add_assignment("app", AssignmentRow(reason="a run begins", seconds=0.0, executors={}, moves=[]))
    database.request("app", "stop", by="someone")
    database.add_metric("app", METRIC)
    database.note_watched(["app", "another"])
    database.forget("app")
    assert (database.watched_at_ms("app"), database.watched_at_ms("another") is None) == (None, False)
    assert database.applications() == []
    assert database.application_status("app") is None
    assert database.pending_requests("app") == []
    acquire(database)
    assert database.query_servers("app") == ([], [])
    assert database.assignments("app") == []


def test_a_database_deleted_under_a_running_driver_is_recreated_with_its_lease(tmp_path):
    file = tmp_path / "control.sqlite"
    control = DriverControl(f"sqlite:///{file}", "app", owner="weir run")
    for left in tmp_path.glob("control.sqlite*"):
        left.unlink()
    control.heartbeat("running", 3)
    status = ControlDatabase(f"sqlite:///{file}").application_status("app")
    assert (status.is_running, status.state, status.generation, status.owner) == (True, "running", 3, "weir run")


def test_what_a_frozen_process_has_locked_can_be_read(tmp_path):
    file = tmp_path / "control.sqlite"
    DriverControl(f"sqlite:///{file}", "app", owner="weir run").heartbeat("running", 3)
    frozen = sqlite3.connect(file, isolation_level=None)
    frozen.execute("BEGIN IMMEDIATE")
    database = ControlDatabase(f"sqlite:///{file}", busy_timeout_s=0.0)
    assert database.application_status("app").state == "running"
    with pytest.raises(ControlDatabaseError, match="database is locked"):
        database.request("app", "commit", by="someone")
    frozen.close()


def test_a_locked_database_delays_the_driver_only_briefly_and_loses_no_answer(tmp_path, caplog):
    url = f"sqlite:///{tmp_path / 'control.sqlite'}"
    control, other = DriverControl(url, "app", owner="weir run"), ControlDatabase(url)
    request = other.request("app", "commit", by="someone")
    assert [row.id for row in control.requests()] == [request]
    locker = sqlite3.connect(tmp_path / "control.sqlite", isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    control.finish(request, "committed 1.4")
    control.report([TaskStatusRow(task="0_0", slot=0, status="running")], METRIC)
    control.heartbeat("running", 1)
    assert [record.message for record in caplog.records if "continues without it" in record.message]
    locker.execute("ROLLBACK")
    locker.close()
    assert other.wait_request(request, timeout_s=0).state == "pending"
    control.release()
    assert other.wait_request(request, timeout_s=0).result == "committed 1.4"
    assert not other.is_running("app")


def test_a_start_that_takes_longer_than_the_lease_keeps_it(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'control.sqlite'}"
    monkeypatch.setattr(guard, "LEASE_TTL_S", 0.5)
    monkeypatch.setattr(guard, "HEARTBEAT_EVERY_S", 0.1)
    control, other = DriverControl(url, "app", owner="weir run"), ControlDatabase(url)
    with control.starting():
        time.sleep(1.0)
        assert other.is_running("app", "another host")
        with pytest.raises(LeaseHeldError):
            DriverControl(url, "app", owner="weir run")
    time.sleep(0.6)
    assert not other.is_running("app", "another host")
    control.release()


def test_why_a_start_waits_is_told_until_it_goes_on_and_not_what_its_predecessor_waited_for(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'control.sqlite'}"
    monkeypatch.setattr(guard, "HEARTBEAT_EVERY_S", 0.05)
    earlier, database = DriverControl(url, "app", owner="weir run"), ControlDatabase(url)

    def waits_for() -> str:
        return database.application_status("app").waits_for

    earlier.report_waiting("rows wait for sinks")  # and dies
    control = DriverControl(url, "app", owner="weir run", take_over=True)
    with control.starting() as tell:
        wait_for(lambda: waits_for() == "", "the reason of the one before is gone")
        tell("the start waits for space")
        wait_for(lambda: waits_for() == "the start waits for space", "the reason is told")
        tell("")
        wait_for(lambda: waits_for() == "", "it is over")
    control.release()


def test_a_driver_continues_without_its_database_but_not_against_a_held_lease(tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.write_text("a file where the folder should be")
    lonely = DriverControl(f"sqlite:///{folder / 'control.sqlite'}", "app", owner="weir run")
    lonely.heartbeat("running", 1)
    lonely.finish(1, "done")
    assert lonely.requests() == []
    lonely.release()
    assert any("continues without it" in record.message for record in caplog.records)
    url = f"sqlite:///{tmp_path / 'control.sqlite'}"
    DriverControl(url, "app", owner="one")
    with pytest.raises(LeaseHeldError):
        DriverControl(url, "app", owner="two")
    DriverControl(url, "app", owner="three", take_over=True)


def test_another_format_version_is_refused_with_the_way_out(tmp_path):
    url = f"sqlite:///{tmp_path / 'control.sqlite'}"
    assert ControlDatabase(url).applications() == []
    with sqlite3.connect(tmp_path / "control.sqlite") as connection:
        connection.execute("UPDATE weir_format SET version = 99")
    with pytest.raises(ControlDatabaseError, match=r"format version 99\b.* reads 2; point control_url at"):
        ControlDatabase(url).applications()
    assert ControlDatabase(f"sqlite:///{tmp_path / 'new.sqlite'}").applications() == []
    with sqlite3.connect(tmp_path / "control.sqlite") as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'weir%'")
        for (table,) in tables.fetchall():
            connection.execute(f"DROP TABLE {table}")
    assert ControlDatabase(url).applications() == []


def test_a_password_in_the_url_is_never_shown():
    database = ControlDatabase("postgresql+psycopg://weir:hunter2@127.0.0.1:1/weir", busy_timeout_s=1)
    with pytest.raises(ControlDatabaseError) as caught:
        database.applications()
    assert "hunter2" not in str(caught.value)
    assert "weir:***@127.0.0.1:1" in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://weir:hunter2", "postgresql://weir@host:hunter2/weir", "hunter2"])
def test_what_is_not_a_url_may_be_a_password_and_is_not_shown(url):
    with pytest.raises(ControlDatabaseError, match="control_url is not a URL; write one such as") as refused:
        ControlDatabase(url)
    assert "hunter2" not in str(refused.value)


def test_the_newest_readings_are_kept_until_the_application_is_forgotten(database):
    lease = acquire(database)
    assert database.application_status("app").readings == ()
    old, new = (
        {"group": "stream-task-metrics", "name": "process-total", "tags": {"task-id": "0_1"}, "value": value}
        for value in (1.0, 2.5)
    )
    database.report_readings("app", [old, old])
    database.report_readings("app", [new])
    database.release(lease)
    assert database.application_status("app").readings == (new,)
    database.forget("app")
    acquire(database)
    assert database.application_status("app").readings == ()


def test_a_driver_goes_on_without_a_database_whose_disk_is_full_and_with_it_once_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "REST_S", 0.0)
    with small_disk(tmp_path / "disk", 4) as disk:
        url = f"sqlite:///{disk.folder / 'control.sqlite'}"
        disk.fill()
        with pytest.raises(
            ControlDatabaseError, match=rf"the disk of {disk.folder} has 0 bytes free, but 1,048,576 .* free some space"
        ):
            ControlDatabase(url).application_status("app")
        control = DriverControl(url, "app", owner="weir run")
        control.report([], METRIC)
        control.finish(1, "an answer that is kept")
        control.heartbeat("running")
        assert control.requests() == []
        disk.clear()
        control.heartbeat("running", 1)
        other = ControlDatabase(url)
        found = other.application_status("app")
        assert found is not None
        assert (found.state, found.generation) == ("running", 1)
        wanted = other.request("app", "commit", by="a test")
        control.requests()
        disk.fill()
        for _ in range(200):
            control.report([], METRIC)
        control.finish(wanted, "done")
        disk.clear()
        control.requests()
        assert other.pending_requests("app") == []
        control.release()


def test_the_statuses_of_several_applications_are_those_of_each(database):
    """Each has its own newest life, tasks, reading and so on; one that is not known is left out."""
    for application, pid in (("first", 11), ("second", 22)):
        for age in (0, 1):  # an earlier life, and an earlier reading, count for nothing
            database.acquire_lease(
                application, owner=f"life {age}", pid=pid + age, host="elsewhere", ttl_s=60, take_over=True
            )
            database.add_metric(application, replace(METRIC, lag=pid + age, at_ms=1_000 + age))
        database.report_tasks(application, [TaskStatusRow(task=f"{pid}_0", slot=0, status="running")])
        database.report_readings(application, [{"name": application}])
        database.report_sinks(application, [{"sink": application}])
        database.report_waiting(application, f"{application} waits")
    lease = database.acquire_lease("third", owner=AT_REST, pid=33, host="elsewhere", ttl_s=60)
    database.release(lease)
    found = database.application_statuses(["first", "second", "third", "unknown"])
    assert {id_: (each.owner, each.pid) for id_, each in found.items()} == {
        "first": ("life 1", 12),
        "second": ("life 1", 23),
        "third": (AT_REST, 33),
    }
    assert {id_: each.metric and each.metric.lag for id_, each in found.items()} == {
        "first": 12,
        "second": 23,
        "third": None,
    }
    second = found["second"]
    assert [task.task for task in second.tasks] == ["22_0"]
    assert (second.readings, second.sinks, second.waits_for) == (
        ({"name": "second"},),
        ({"sink": "second"},),
        "second waits",
    )
    assert set(database.application_statuses(["first", "third"], of_driver=True)) == {"first"}
    assert database.application_statuses([]) == {}


def test_a_process_needs_no_more_connections_however_many_ask(postgresql):
    """Python may be long in collecting what nobody holds any more."""

    def connections() -> int:
        with psycopg.connect(postgresql.replace("+psycopg", "")) as connection:
            (row,) = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE pid != pg_backend_pid()")
            return row[0]

    ControlDatabase(postgresql).applications()
    before = connections()
    databases = [ControlDatabase(postgresql) for _ in range(20)]
    for database in databases:
        database.applications()
    assert connections() <= before
