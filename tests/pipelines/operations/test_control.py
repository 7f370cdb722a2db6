"""Requests that no driver can follow are refused, and a request whose driver died is not left for the next one."""

import os
import subprocess
from threading import Thread

import pytest

from tests.waiting import wait_for
from weir.infra.control import ControlDatabase, TaskStatusRow, this_host
from weir.infra.settings import Settings
from weir.pipelines.operations import control
from weir.pipelines.operations.control import ask
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import register


@pytest.fixture
def settings(tmp_path) -> Settings:
    settings = Settings(dir=tmp_path)
    register(settings, "shop", "my_jobs.shop:app")
    return settings


@pytest.fixture
def driver(settings, monkeypatch):
    """A process that holds the lease and is killed once there is a request."""
    monkeypatch.setattr(control, "LOOK_EVERY_S", 0.05)
    process, database = subprocess.Popen(["sleep", "60"]), ControlDatabase(settings.control_database_url)
    database.acquire_lease("shop", owner="weir run", pid=process.pid, host=this_host(), ttl_s=60)

    def kill() -> None:
        while not database.pending_requests("shop"):
            pass
        process.kill()
        process.wait()

    killer = Thread(target=kill)
    killer.start()
    yield database
    process.kill()
    killer.join()


def test_a_stop_whose_driver_died_does_not_stop_the_next_driver(settings, driver):
    assert ask(settings, "shop", "stop", reason="test") == "has ended"
    assert driver.pending_requests("shop") == []


def test_a_pause_that_was_reported_as_failed_does_not_pause_the_next_driver(settings, driver):
    with pytest.raises(OperationError, match="ended before it could pause"):
        ask(settings, "shop", "pause", reason="test")
    assert driver.pending_requests("shop") == []


def test_a_driver_that_is_too_busy_to_extend_its_lease_has_not_ended_and_answers_late(settings, monkeypatch):
    monkeypatch.setattr(control, "LOOK_EVERY_S", 0.05)
    database = ControlDatabase(settings.control_database_url)
    lease = database.acquire_lease("shop", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=0.0)
    has_ended, looks = ControlDatabase.has_ended, []
    monkeypatch.setattr(ControlDatabase, "has_ended", lambda *given: looks.append(given) or has_ended(*given))

    def answer() -> None:
        wait_for(lambda: database.pending_requests("shop"), "it is asked")
        assert not database.is_running("shop"), "its lease is over"
        wait_for(lambda: len(looks) > 3, "it is looked for")
        database.finish_request(database.pending_requests("shop")[0].id, "task 0_1 is restoring")

    driver = Thread(target=answer)
    driver.start()
    assert ask(settings, "shop", "restore", {"task": "0_1"}, reason="test") == "task 0_1 is restoring"
    driver.join()
    database.release(lease)
    with pytest.raises(OperationError, match="shop is not running"):
        ask(settings, "shop", "restore", {"task": "0_1"}, reason="test")


@pytest.mark.parametrize(
    ("task", "message"), [("0_9", "shop has no task '0_9'; its tasks are 0_0, 0_1"), ("0_1", "shop is not running")]
)
def test_an_unknown_task_is_refused_even_when_no_driver_runs(settings, task, message):
    database = ControlDatabase(settings.control_database_url)
    lease = database.acquire_lease("shop", owner="weir run", pid=1, host=this_host(), ttl_s=60)
    database.report_tasks("shop", [TaskStatusRow(task=name, slot=0, status="running") for name in ("0_0", "0_1")])
    database.release(lease)
    with pytest.raises(OperationError, match=message):
        ask(settings, "shop", "restore", {"task": task, "source": "snapshot"}, reason="test")
