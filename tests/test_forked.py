"""Processes that are forked from one server."""

import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import psutil

from tests.forked import IMPORTED, end_of, ended, started
from tests.waiting import wait_for


def write_facts(to: Path) -> None:
    to.write_text(f"{os.environ.get('OF_THE_TEST')} {os.getcwd()} {[name in sys.modules for name in IMPORTED]}")


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_process_has_the_tests_environment_and_folder_and_what_the_server_has_imported(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_TEST", "yes")
    monkeypatch.chdir(tmp_path)
    assert ended(write_facts, tmp_path / "facts") == 0
    assert (tmp_path / "facts").read_text() == f"yes {tmp_path} {[True] * len(IMPORTED)}"


def test_it_is_really_killed_and_an_error_is_told():
    assert ended(kill_itself) == -signal.SIGKILL
    assert ended(os.mkdir, "/proc/no") == 1


def test_the_server_has_no_threads_that_its_forks_would_need():
    assert ended(os.getpid) == 0
    server = forkserver._forkserver._forkserver_pid
    threads = [thread for thread in Path(f"/proc/{server}/task").iterdir() if thread.name != str(server)]
    assert [(thread / "comm").read_text().strip() for thread in threads] == ["polars-ooc-clea"]


OWNER = """
from tests.forked import started
from tests.test_forked import stop_itself
if __name__ == "__main__":
    print(started(stop_itself).pid, flush=True)
    input()
"""


def test_it_ends_with_the_tests_even_if_they_are_killed_while_it_sleeps():
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    with owner:
        process = psutil.Process(int(owner.stdout.readline()))
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "it sleeps")
        owner.kill()
    wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "it has ended")


def test_a_process_that_sleeps_goes_on_and_is_waited_for():
    process = started(stop_itself)
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it sleeps")
    os.kill(process.pid, signal.SIGCONT)
    assert end_of(process) == 0
