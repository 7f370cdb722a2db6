"""Signals end a run."""

import subprocess
import sys

import pytest

IN_THE_MIDDLE_OF_A_WAIT = """
import signal

from weir.pipelines.operations.signals import stop_on_signals
with stop_on_signals() as stop:
    with stop._cond:  # as stop.wait and stop.set hold it for a moment
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    print(stop.wait(10))
"""


@pytest.mark.slow
def test_signals_in_the_middle_of_a_wait_stop_the_run_and_never_deadlock():
    """In a process of its own: a deadlock would stop the tests."""
    done = subprocess.run([sys.executable, "-c", IN_THE_MIDDLE_OF_A_WAIT], capture_output=True, text=True, timeout=30)
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr
