"""How a run's end is logged: one line for what the text explains, with the stack trace for what nobody foresaw."""

from __future__ import annotations

import pytest

from weir.infra.settings import Settings
from weir.pipelines.operations import drive as module
from weir.pipelines.operations.drive import drive
from weir.pipelines.spark.errors import TaskFailedError

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
