"""An application is held at rest while a backfill is swapped in, and a second swap is told so."""

from __future__ import annotations

import os

import pytest

from tests.faults.applications import app
from tests.waiting import wait_for
from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.backfill.shadow import EVERYTHING, Backfill, Shadow
from weir.pipelines.operations import at_rest, backfill
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import register

REFERENCE = "tests.faults.applications:app"


def test_the_lease_is_renewed_for_as_long_as_a_swap_takes(tmp_path, monkeypatch):
    """A swap of everything rewrites all rows, which takes longer than a lease lasts without a heartbeat."""
    monkeypatch.setattr(at_rest, "LEASE_TTL_S", 0.2)
    database = ControlDatabase(Settings(dir=tmp_path).control_database_url)

    def heard_at_ms() -> int:
        return database.application_status("shop").heartbeat_at_ms

    with at_rest.at_rest(database, "shop"):
        taken_at_ms = heard_at_ms()
        wait_for(lambda: heard_at_ms() > taken_at_ms, "it is renewed", every_s=0.01)
    status = database.application_status("shop")
    assert (status.state, status.is_running) == ("stopped", False)


def test_a_second_swap_is_told_of_the_first_and_not_of_a_driver(tmp_path):
    settings = Settings(dir=tmp_path)
    register(settings, app.id, REFERENCE)
    database = ControlDatabase(settings.control_database_url)
    Shadow.of(settings.warehouse, settings.state_dir, "faulty", "everything-1").begin(
        Backfill(id="everything-1", application="faulty", days=EVERYTHING, source="Kafka", ranges={}, cut_epoch=1)
    )
    with (
        at_rest.at_rest(database, "faulty"),
        pytest.raises(
            OperationError, match=f"process {os.getpid()} is working on faulty while it is at rest, .* try again"
        ),
    ):
        backfill.swap_in(settings, REFERENCE, "everything-1", reason="test")
