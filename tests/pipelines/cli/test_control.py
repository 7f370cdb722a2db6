"""A command that steers sends its request to the driver and prints the answer."""

from __future__ import annotations

import os
from threading import Thread

import pytest
from typer.testing import CliRunner

from tests.waiting import wait_for
from weir.infra.control import ControlDatabase, this_host
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations.registry import register

REFUSED = "there can be at most 2 slots on the cores of this host; for more, start again with --set slots=3"


@pytest.mark.parametrize(("answer", "failed"), [("3 slots instead of 2; moved: 0_1", False), (REFUSED, True)])
def test_slots_are_asked_for_and_a_refused_number_says_why(tmp_path, answer, failed):
    settings = Settings(dir=tmp_path)
    register(settings, "shop", "my_jobs.shop:app")
    database, asked = ControlDatabase(settings.control_database_url), []
    database.acquire_lease("shop", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=60)

    def drive() -> None:
        wait_for(lambda: database.pending_requests("shop"), "it is asked")
        asked.extend(database.pending_requests("shop"))
        database.finish_request(asked[0].id, answer, failed=failed)

    driver = Thread(target=drive)
    driver.start()
    result = CliRunner().invoke(app, ["scale", "shop", "--slots", "3", "--dir", str(tmp_path)])
    driver.join()
    assert [(request.kind, request.arguments) for request in asked] == [("slots", {"slots": "3"})]
    if failed:
        assert (result.exit_code, result.stderr) == (1, f"weir: slots of shop failed: {REFUSED}\n")
    else:
        assert result.stdout == f"shop: {answer}\n"
