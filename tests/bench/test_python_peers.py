"""Peers in Python: their environments, and the processes that run them, with stand-ins for pip and the broker."""

from __future__ import annotations

import importlib
import json
import subprocess
from types import SimpleNamespace

import pytest

from bench.peers import PEERS, python
from bench.peers.peer import NotRunError

FIRST_AND_WAIT = """
import pathlib, sys, time
print(time.monotonic(), flush=True)
assert sys.argv[7:] == ["python_sum"]
pathlib.Path(sys.argv[6], sys.argv[1]).touch()
time.sleep({})
"""


@pytest.fixture
def processes(monkeypatch):
    """The program of that name, which imports what lies beside it."""
    monkeypatch.syspath_prepend(python.SCRIPTS)
    return importlib.import_module("processes")


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """What is run to make environments; ``code`` is the exit code of pip."""
    found = SimpleNamespace(ran=[], code=0)

    def run(command, **options):
        found.ran.append(command[1:3])
        code = found.code if "pip" in command else 0
        if code == 0 and "venv" in command:
            (tmp_path / "weir" / "bench").mkdir(parents=True, exist_ok=True)
            python.Path(command[-1]).mkdir()
        return subprocess.CompletedProcess(command, code, "", "ERROR: no matching distribution")

    monkeypatch.setattr(python, "cache_home", lambda: tmp_path)
    monkeypatch.setattr(python.subprocess, "run", run)
    return found


def test_an_environment_is_made_once_for_the_same_packages(pip):
    made = python.environment("storm", ("storm==1",))
    assert pip.ran == [["-m", "venv"], ["-m", "pip"]]
    assert python.environment("storm", ("storm==1",)) == made
    assert len(pip.ran) == 2
    assert python.environment("storm", ("storm==2",)) != made
    assert len(pip.ran) == 4


@pytest.mark.parametrize("name", ["bytewax", "pathway"])
def test_a_peer_whose_packages_cannot_be_installed_is_not_run_until_they_can(name, pip):
    pip.code = 1
    peer = next(peer for peer in PEERS if peer.name == name)
    with pytest.raises(NotRunError, match=rf"{name}==0.\d+.\d, .* cannot be installed:\nERROR: no matching"):
        peer.install(None)
    pip.code = 0
    peer.install(None)


@pytest.mark.parametrize(("until", "waits_s"), [("exited", 0.2), ("committed", 600)])
def test_a_run_lasts_from_the_first_record_to_the_end(until, waits_s, processes, tmp_path, monkeypatch, capsys):
    state = tmp_path / "state"
    state.mkdir()

    class Consumer:
        def __init__(self, settings):
            assert settings["bootstrap.servers"] == "localhost:1=2"

        def get_watermark_offsets(self, partition, timeout):
            return 0, 25

        def committed(self, partitions, timeout):
            done = (state / "0").exists() and (state / "1").exists()
            return [SimpleNamespace(offset=25 if done else 24) for _ in partitions]

    monkeypatch.setattr(processes, "Consumer", Consumer)
    client, program = tmp_path / "client.properties", tmp_path / "program.py"
    client.write_text("bootstrap.servers=localhost:1=2\n")
    program.write_text(FIRST_AND_WAIT.format(waits_s))
    processes.main(str(program), "2", until, str(client), "events", "totals", str(state), "python_sum")
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == 100
    assert 0 < found["seconds"] < 60


def test_a_process_that_fails_is_told(processes, tmp_path, monkeypatch):
    consumer = SimpleNamespace(
        get_watermark_offsets=lambda partition, timeout: (0, 1),
        committed=lambda partitions, timeout: [SimpleNamespace(offset=0) for _ in partitions],
    )
    monkeypatch.setattr(processes, "Consumer", lambda settings: consumer)
    client, program = tmp_path / "client.properties", tmp_path / "program.py"
    client.touch()
    program.write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit, match="a process ended with code 3"):
        processes.main(str(program), "1", "committed", str(client), "events", "totals", str(tmp_path))
