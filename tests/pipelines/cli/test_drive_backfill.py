"""What holds an application at rest while a backfill is swapped in."""

from __future__ import annotations

from infra.control import ControlDatabase
from infra.settings import Settings
from pipelines.cli import drive_backfill
from tests.waiting import wait_for


def test_the_lease_is_prolonged_for_as_long_as_a_swap_takes(tmp_path, monkeypatch):
    """A swap of everything writes all rows anew, for longer than a lease lasts without a word."""
    monkeypatch.setattr(drive_backfill, "LEASE_TTL_S", 0.2)
    database = ControlDatabase(Settings(dir=tmp_path).control_database_url)

    def heard_at_ms() -> int:
        return database.application_status("shop").heartbeat_at_ms

    with drive_backfill._at_rest(database, "shop"):
        taken_at_ms = heard_at_ms()
        wait_for(lambda: heard_at_ms() > taken_at_ms, "it is prolonged", every_s=0.01)
    status = database.application_status("shop")
    assert (status.state, status.is_running) == ("stopped", False)
