"""``weir tasks``: each task with its partitions, ends of topics, pace and stores, as far as they are known."""

import json
import time

import pytest
from typer.testing import CliRunner

from tests.pipelines.cli.by_user import by_user
from tests.pipelines.cli.sold import Installed, sold
from tests.pipelines.cli.typed import Admin
from tests.pipelines.spark.sales import sales
from weir.infra.control import AssignmentRow, ControlDatabase, Lease, TaskStatusRow, this_host
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations import tasks as operation

RUNNING = TaskStatusRow(
    task="0_0",
    slot=0,
    status="running",
    positions={"sales": {"0": 100}},
    lag=3,
    uncommitted_records=40,
    uncommitted_bytes=5_000,
    reason="waits for rows of task 0_1",
)
RESTORING = TaskStatusRow(
    task="0_1", slot=1, status="restoring", positions={"sales": {"1": 100}}, reason="1,000 rows, 1.0 of 2.0 MB (50 %)"
)
MEASURED = {"process-rate": 1.5, "num-keys": 2_000.0, "map-used-bytes": 8_192.0}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Installed:
    return sold(tmp_path, monkeypatch)


@pytest.fixture
def database(place) -> ControlDatabase:
    return ControlDatabase(Settings(dir=place.folder).control_database_url)


@pytest.fixture
def brokers(place, monkeypatch) -> Admin:
    """Brokers that run, with the topics of ``place``."""
    admin = Admin(place.topics, "first:9092")
    monkeypatch.setattr(operation, "broker_of", lambda settings: ("first:9092", settings))
    monkeypatch.setattr(operation, "KafkaAdmin", lambda *arguments, **options: admin)
    return admin


def start(database: ControlDatabase, *tasks: TaskStatusRow) -> Lease:
    """A driver of ``sales`` begins to run, and reports."""
    lease = database.acquire_lease("sales", owner="weir run", pid=1, host=this_host(), ttl_s=60, take_over=True)
    database.heartbeat(lease, state="running")
    database.report_tasks("sales", tasks)
    readings = [("stream-task-metrics", name, {"task-id": "0_0"}, value) for name, value in MEASURED.items()]
    others = [
        ("stream-thread-metrics", "process-rate", {}, 99.0),
        ("stream-state-metrics", "num-keys", {"task-id": "0_0", "store-id": "sums"}, 7.0),
    ]
    names = ("group", "name", "tags", "value")
    database.report_readings("sales", [dict(zip(names, each, strict=True)) for each in readings + others])
    return lease


def tasks(*arguments: str):
    return CliRunner().invoke(app, ["tasks", *arguments])


def plain() -> dict:
    return json.loads(tasks("sales", "--json").stdout)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_each_task_has_its_partitions_its_pace_and_its_stores(place, database, brokers):
    start(database, RUNNING, RESTORING)
    place.topics.rows["sales", 0] += sales(6, 0)
    found = plain()
    first, second = found["tasks"]
    assert (found["state"], found["is_running"], found["ends_unknown"]) == ("running", True, None)
    assert first == {
        "task": "0_0",
        "name": place.name_of("0_0"),
        "sub_topology": "sales",
        "slot": 0,
        "executor": None,
        "standbys": {},
        "status": "running",
        "partitions": [{"topic": "sales", "partition": 0, "committed_offset": 100, "end_offset": 106, "lag": 6}],
        "lag": 6,
        "seconds_behind": 4.0,
        "records_per_s": 1.5,
        "rows": 2_000,
        "bytes": 8_192,
        "uncommitted_records": 40,
        "uncommitted_bytes": 5_000,
        "reason": "waits for rows of task 0_1",
    }
    assert (second["status"], second["lag"], second["seconds_behind"]) == ("restoring", 0, 0.0)
    text = flat(tasks("sales").stdout)
    assert "sales running (process 1 on" in text
    assert "0_0 sales 0 running sales-0 at 100 of 106 6 4,000 ms 1.50 2,000 8,192 40 5,000 waits for rows" in text
    assert "0_1 sales 1 restoring sales-1 at 100 of 100 0 0 ms - " in text
    assert "0 0 1,000 rows, 1.0 of 2.0 MB (50 %)" in text


def test_what_was_not_measured_of_stores_is_read_on_this_host(place, database, brokers):
    start(database, RUNNING, RESTORING)
    second = plain()["tasks"][1]
    assert second["records_per_s"] is None
    assert second["rows"] == len({key for key, _, _ in place.topics.rows["sales", 1]})
    assert second["bytes"] > 0
    assert second["bytes"] % 4096 == 0


def test_offsets_are_those_of_the_newest_commit_and_not_what_has_been_read(place, database, brokers):
    place.topics.rows["sales", 0] += sales(50, 0)
    read = TaskStatusRow(task="0_0", slot=0, status="running", positions={"sales": {"0": 140, "7": 3}}, lag=10)
    start(database, read)
    (task,) = plain()["tasks"]
    known, unknown = task["partitions"]
    assert (known["committed_offset"], known["end_offset"], known["lag"]) == (100, 150, 50)
    assert (unknown["committed_offset"], unknown["end_offset"], unknown["lag"]) == (None, None, None)
    assert task["lag"] == 10, "as reported, since that of one partition is not known"
    assert "sales-0 at 100 of 150, sales-7 at - of -" in flat(tasks("sales").stdout)


def test_assignments_are_shown_with_what_each_executor_has_and_why_each_task_moved(place, database):
    names = [f"0_{number}" for number in range(30)]
    moves = [
        {"task": name, "role": "active", "source": "1/0", "target": "2/1", "reason": "executor 1 is lost"}
        for name in names
    ]
    executors = {"2": {"slots": 2, "active": names, "standby": ["1_0"], "previous": []}}
    row = AssignmentRow(reason="executor 1 is lost", seconds=0.0125, executors=executors, moves=moves, at_ms=1_000)
    database.add_assignment("sales", row)
    (found,) = json.loads(tasks("sales", "--assignments", "--json").stdout)["assignments"]
    assert (found["reason"], found["seconds"]) == ("executor 1 is lost", 0.0125)
    assert (found["executors"], found["moves"]) == (executors, moves)
    text = flat(tasks("sales", "--assignments").stdout)
    assert "1970-01-01 00:00:01 UTC executor 1 is lost; took 12.5 ms" in text
    assert "2 2 30 tasks 1_0" in text
    assert "0_19 active 1/0 -> 2/1: executor 1 is lost and 10 more moves; --json has all" in text


def test_a_task_without_topics_reads_rows_of_other_tasks(place, database, brokers):
    start(database, TaskStatusRow(task="0_0", slot=0, status="corrupted"))
    assert "0_0 sales 0 corrupted rows of other tasks 0" in flat(tasks("sales").stdout)


def test_of_an_application_that_has_ended_lag_grows_and_there_is_no_pace(place, database, brokers):
    database.release(start(database, RUNNING, RESTORING))
    place.topics.rows["sales", 1] += sales(9, 1)
    found = plain()
    assert (found["state"], found["is_running"]) == ("stopped", False)
    assert [task["status"] for task in found["tasks"]] == ["stopped", "stopped"]
    assert [task["lag"] for task in found["tasks"]] == [0, 9]
    assert [task["records_per_s"] for task in found["tasks"]] == [None, None]
    assert [task["seconds_behind"] for task in found["tasks"]] == [0.0, None]
    assert "(process" not in tasks("sales").stdout


def test_brokers_that_do_not_run_are_not_started(place, database):
    start(database, RUNNING)
    found = plain()
    assert found["ends_unknown"] == "the folder's own broker does not run"
    assert (found["tasks"][0]["lag"], found["tasks"][0]["seconds_behind"]) == (3, 2.0)
    text = flat(tasks("sales").stdout)
    assert "sales-0 at 100 of - 3 2,000 ms" in text
    assert "ends unknown: the folder's own broker does not run; lag is as the driver reported it at" in text
    assert not (place.folder / "kafka").exists()


def test_brokers_that_do_not_answer_are_waited_for_two_seconds_at_most(place, database, monkeypatch):
    start(database, RUNNING)
    began = time.monotonic()
    shown = tasks("sales", "--bootstrap-servers", "127.0.0.1:1")
    assert time.monotonic() - began < 10, "with all that a busy machine adds"
    assert shown.exit_code == 0
    assert "ends unknown: no answer from Kafka at 127.0.0.1:1" in flat(shown.stdout)


def test_what_the_first_answer_took_the_second_question_does_not_have(place, database, brokers, monkeypatch):
    now = iter([0.0, 1.5])
    monkeypatch.setattr(operation.time, "monotonic", lambda: next(now))
    assert operation._ends(Settings(dir=place.folder), [("sales", 0), ("gone", 0)]) == ({("sales", 0): 100}, None)
    assert brokers.time_limit_s == 0.5

    def away(partitions):
        raise BrokerUnreachableError("first:9092", "no partition has a leader yet")

    now = iter([0.0, 5.0])
    monkeypatch.setattr(brokers, "end_offsets", away)
    ends, why = operation._ends(Settings(dir=place.folder), [("sales", 0)])
    assert (ends, brokers.time_limit_s) == ({}, 0.1)
    assert "no partition has a leader yet" in why


def test_without_its_program_offsets_are_known_and_names_are_not(place, database, brokers):
    start(database, RUNNING)
    (place.folder / "applications" / "sales.json").unlink()
    (task,) = plain()["tasks"]
    assert (task["name"], task["sub_topology"]) == (None, None)
    assert task["partitions"][0]["committed_offset"] == 100
    assert "0_0 - 0 running" in flat(tasks("sales").stdout)


def test_an_unknown_application_lists_the_known_ones(place):
    refused = tasks("zebra")
    assert refused.exit_code == 1
    assert "no application 'zebra' in" in flat(refused.stderr)
    assert "; it has sales" in flat(refused.stderr)


def test_an_application_without_tasks_has_them_after_a_run(terminal):
    terminal.topics.rows["clicks", 0] = [(b"ann", b'{"page": "/", "ms": 1}', 1)]
    program = terminal.has("app", by_user())
    assert terminal.run(program).code == 0
    ControlDatabase(terminal.settings.control_database_url).forget("clicks")
    refused = terminal.weir("tasks clicks")
    assert refused.code == 1
    assert "no run of 'clicks' has reported tasks in" in refused.text
    done = terminal.take("run MODULE:APP", refused, "--until-caught-up", MODULE=program)
    assert done.code == 0, done.text
    assert "clicks-0 at 1 of -" in terminal.weir("tasks clicks").text


def test_an_application_without_assignments_has_one_after_a_run(terminal):
    terminal.topics.rows["clicks", 0] = [(b"ann", b'{"page": "/", "ms": 1}', 1)]
    program = terminal.has("app", by_user())
    assert terminal.run(program).code == 0
    ControlDatabase(terminal.settings.control_database_url).forget("clicks")
    refused = terminal.weir("tasks clicks --assignments")
    assert refused.code == 1
    assert "no run of 'clicks' has recorded an assignment" in refused.text
    assert terminal.take("run MODULE:APP", refused, "--until-caught-up", MODULE=program).code == 0
    shown = terminal.weir("tasks clicks --assignments")
    assert shown.code == 0
    assert "a run begins; took" in shown.text


def test_a_driver_that_has_no_tasks_yet_is_found_in_the_log(terminal):
    program = terminal.has("app", by_user())
    terminal.topics.rows["clicks", 0] = []
    assert terminal.run(program).code == 0
    database = ControlDatabase(terminal.settings.control_database_url)
    database.forget("clicks")
    lease = database.acquire_lease("clicks", owner="weir run", pid=1, host=this_host(), ttl_s=60, take_over=True)
    database.heartbeat(lease, state="waiting")
    database.report_waiting("clicks", "no topic clicks")
    refused = terminal.weir("tasks clicks")
    assert refused.code == 1
    assert "the driver of 'clicks' has not reported its tasks yet (no topic clicks)" in refused.text
    assert terminal.take("logs clicks", refused).code == 0
