"""A second driver of the bank waits, and takes over when the first dies or is frozen; nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.faults.bank_run import bank
from tests.waiting import wait_for
from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.state.commit.log import newest_commit

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.slow]


@pytest.mark.parametrize("end", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGSTOP])
def test_a_standby_takes_over_from_a_driver_that_dies_or_is_frozen(tmp_path, end):
    settings = Settings(dir=tmp_path / "weir", slots=2)
    database = ControlDatabase(settings.control_database_url)

    def is_driven(pid: int) -> bool:
        life = database.application_status("bank")
        return life is not None and (life.pid, life.state) == (pid, "running")

    with bank(settings, tmp_path / "log", seed=5, per_second=100) as (run, traffic):
        first = run.start()
        wait_for(lambda: is_driven(first.pid), "the first drives", 120)
        traffic.start()
        second = run.start("--standby")
        wait_for(lambda: "takes over when that dies" in run.output(), "the second waits", 120)
        generation = newest_commit(settings.warehouse, "bank").generation
        began_s = time.monotonic()
        os.kill(first.pid, end)
        try:
            wait_for(lambda: newest_commit(settings.warehouse, "bank").generation > generation, "it commits", 60)
            took_s = time.monotonic() - began_s
            traffic.stop()
            run.wait_until_equal(traffic.truth)
            if end == signal.SIGSTOP:
                os.kill(first.pid, signal.SIGCONT)
                assert first.wait(60) == 1, "it is fenced"
            run.wait_until_equal(traffic.truth)
            assert is_driven(second.pid)
            run.stop()
        finally:
            first.kill()
            first.wait()
    print(f"{end.name}: the standby has committed after {took_s:.1f} s")
