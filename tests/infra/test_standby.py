"""A standby waits for the driver of an application to die, on its host or another, and for nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.waiting import wait_for
from weir.infra.control import ControlDatabase, DriverControl, this_host
from weir.infra.control import standby as module
from weir.infra.control.standby import control_once_free


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'control.sqlite'}"


@pytest.fixture
def process() -> Iterator[subprocess.Popen]:
    """Whose id the first driver has."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def waiting(url):
    """``waiting()`` begins a standby: what it will get, what it says, and what stops it."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as threads:

        def begin() -> tuple[Future[DriverControl | None], list[str]]:
            said: list[str] = []
            return threads.submit(control_once_free, url, "app", owner="two", stop=stop, say=said.append), said

        begin.stop = stop
        yield begin
        stop.set()


def acquire(url: str, pid: int, host: str | None = None):
    return ControlDatabase(url).acquire_lease("app", owner="one", pid=pid, host=host or this_host(), ttl_s=60)


def test_with_nobody_there_it_drives_at_once(url, waiting):
    found, said = waiting()
    control = found.result(10)
    assert said == []
    assert ControlDatabase(url).application_status("app").pid == os.getpid()
    control.release()


def test_it_takes_over_when_the_process_of_the_driver_dies(url, waiting, process):
    acquire(url, process.pid)
    found, said = waiting()
    wait_for(lambda: said, "it says whom it waits for")
    who = f"one (process {process.pid} on {this_host()})"
    assert said == [f"standby of {who}: takes over when that dies, and ends when it is stopped"]
    time.sleep(2 * module.LOOK_EVERY_S)
    assert not found.done()
    process.kill()
    process.wait()
    began_s = time.monotonic()
    found.result(10).release()
    assert time.monotonic() - began_s < 5


def test_it_takes_over_from_a_silent_driver_of_another_host(url, waiting, monkeypatch):
    monkeypatch.setattr(module, "SILENT_MAX_S", 0.5)
    lease, database = acquire(url, 1, "elsewhere"), ControlDatabase(url)
    found, said = waiting()
    wait_for(lambda: said, "it says whom it waits for")
    for _ in range(5):
        assert database.heartbeat(lease, state="running")
        time.sleep(0.2)
    assert not found.done()
    control = found.result(10)
    assert not database.heartbeat(lease, state="running"), "the other one has lost its lease"
    control.release()


def test_it_ends_when_the_driver_is_stopped_and_when_it_is_itself(url, waiting, process):
    lease = acquire(url, process.pid)
    found, said = waiting()
    wait_for(lambda: said, "it says whom it waits for")
    ControlDatabase(url).release(lease)
    assert found.result(10) is None
    acquire(url, process.pid)
    found, said = waiting()
    wait_for(lambda: said, "it says whom it waits for")
    waiting.stop.set()
    assert found.result(10) is None
