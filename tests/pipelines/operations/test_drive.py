"""What a run logs: its end in one line if the text explains it, else with the stack trace; late records if asked."""

from __future__ import annotations

import logging

import pytest

from weir.infra.settings import Settings
from weir.pipelines.operations import drive as module
from weir.pipelines.operations.drive import drive
from weir.pipelines.operators.epoch import LateRecord
from weir.pipelines.spark.errors import TaskFailedError
from weir.pipelines.spark.late_log import LATE_LOG, log_late

PROGRAM = """
from weir import Application, StreamsBuilder, String

builder = StreamsBuilder()
builder.stream("orders", key=String("id"), value=String("what")).to_delta("orders")
app = Application("shop", builder)
"""


@pytest.mark.parametrize(
    ("error", "has_stack"),
    [(TaskFailedError("shop", "0_0", "ValueError: no such price"), False), (KeyError("no such price"), True)],
)
def test_the_end_of_a_run_is_logged_once(tmp_path, monkeypatch, error, has_stack):
    (tmp_path / "logs_its_end.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, "run", fail)
    settings = Settings(dir=tmp_path / ".weir", bootstrap_servers="nobody:1")
    with pytest.raises(type(error)):
        drive("logs_its_end:app", settings, until_caught_up=True, owner="weir run")
    lines = (settings.logs / "shop.log").read_text().splitlines()
    assert "the run of shop ended with an error: " in lines[0]
    assert "no such price" in lines[0]
    assert (len(lines) > 1) == has_stack
    assert any("Traceback" in line for line in lines) == has_stack


@pytest.mark.parametrize(("level", "is_logged"), [("info", False), ("debug", True)])
def test_late_records_are_in_the_log_at_debug_alone(tmp_path, monkeypatch, level, is_logged):
    (tmp_path / "logs_late_records.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    late = LateRecord(
        node="AGG", topic="orders", partition=2, offset=7, time_ms=5, stream_time_ms=90, window_ms=(0, 10)
    )
    monkeypatch.setattr(module, "run", lambda *_, **__: log_late("0_2", [late], 3))
    settings = Settings(dir=tmp_path / ".weir", bootstrap_servers="nobody:1", metrics_level=level)
    drive("logs_late_records:app", settings, until_caught_up=True, owner="weir run")
    log = (settings.logs / "shop.log").read_text()
    line = "task 0_2, AGG: orders-2 offset 7 is late and dropped: timestamp 5, stream time 90, window [0, 10)"
    assert (line in log) == ("task 0_2: 2 more late records were dropped" in log) == is_logged
    assert not logging.getLogger(LATE_LOG).isEnabledFor(logging.DEBUG), "as before the run"
