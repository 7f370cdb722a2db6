"""Processes that are watched until they end."""

from __future__ import annotations

import subprocess
from threading import Event

from weir.infra.process import start_ticks, this_machine, when_ended


def test_the_end_of_a_process_that_is_no_parent_is_noticed():
    ended = Event()
    with subprocess.Popen(["sleep", "600"]) as process:
        assert when_ended(process.pid, start_ticks(process.pid), ended.set)
        assert not ended.wait(0.1)
        process.kill()
        assert ended.wait(20)


def test_one_that_has_ended_or_whose_pid_another_process_has_is_not_watched():
    never = Event()
    with subprocess.Popen(["sleep", "600"]) as process:
        ticks = start_ticks(process.pid)
        assert not when_ended(process.pid, ticks - 1, never.set)
        process.kill()
    assert not when_ended(process.pid, ticks, never.set)
    assert not never.is_set()


def test_a_machine_has_one_name():
    assert this_machine() == this_machine()
