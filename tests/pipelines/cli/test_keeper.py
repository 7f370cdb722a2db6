"""The keeper leaves no process behind, however the command that asked for it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weir.pipelines.cli.keeper import start_kept

SERVER = "import subprocess, sys, time; subprocess.Popen(['sleep', '{nap}'], start_new_session=True); time.sleep({nap})"


def processes_with(text: str) -> list[int]:
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in cmdline.read_bytes():
                found.append(int(cmdline.parent.name))
        except OSError:
            continue
    return found


def wait_for_count(text: str, done: bool) -> list[int]:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        found = processes_with(text)
        if (len(found) >= 3) if not done else not found:
            return found
        time.sleep(0.05)
    return processes_with(text)


@pytest.fixture
def nap() -> str:
    """A duration that no other process sleeps for: it identifies this test's processes."""
    return f"{1_000_000 + os.getpid()}.{time.monotonic_ns() % 1_000_000:06d}"


@pytest.mark.slow
def test_closing_the_pipe_ends_the_server_and_what_it_left_running(tmp_path, nap):
    kept = start_kept([sys.executable, "-c", SERVER.format(nap=nap)], log=tmp_path / "log", environment={})
    assert len(wait_for_count(nap, done=False)) >= 3, (tmp_path / "log").read_text()
    assert kept.stdin is not None
    kept.stdin.close()
    kept.wait(15)
    assert processes_with(nap) == []


@pytest.mark.slow
def test_killing_the_command_ends_the_server_too(tmp_path, nap):
    command = (
        f"import sys, time; from pathlib import Path; from weir.pipelines.cli.keeper import start_kept; "
        f"kept = start_kept([sys.executable, '-c', {SERVER.format(nap=nap)!r}], "
        f"log=Path({str(tmp_path / 'log')!r}), environment={{}}); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", command])
    assert len(wait_for_count(nap, done=False)) >= 3
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert wait_for_count(nap, done=True) == []


@pytest.mark.slow
def test_the_exit_code_of_a_server_that_ends_by_itself_is_returned(tmp_path):
    kept = start_kept([sys.executable, "-c", "raise SystemExit(7)"], log=tmp_path / "log", environment={})
    assert kept.wait(15) == 7
