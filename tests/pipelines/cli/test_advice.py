"""The commands that messages advise can be typed as they stand: they name the program, the folder and the brokers."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from weir.infra.control import ControlDatabase
from weir.infra.control.guard import DriverControl
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations.advice import addressed
from weir.pipelines.operations.registry import register
from weir.pipelines.spark.control import lease
from weir.pipelines.spark.errors import OtherApplicationError

PROGRAM = """
from weir import Application, StreamsBuilder, String

builder = StreamsBuilder()
builder.stream("orders", key=String("id"), value=String("what")).group_by_key().count("orders").to_delta("out")
app = Application("shop", builder)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which ``shop`` was started from the module ``my_shop``."""
    (tmp_path / "my_shop.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("WEIR_DIR", raising=False)
    register(Settings(dir=tmp_path / ".weir"), "shop", "my_shop:app")
    return tmp_path / ".weir"


def said(*arguments: str, **options: str) -> str:
    result = CliRunner().invoke(app, list(arguments), **options)
    return " ".join(result.output.split())


def test_the_program_of_an_id_is_the_one_that_is_registered(folder):
    assert "shop is not running; start it with `weir run my_shop:app`" in said("commit", "shop")
    assert said("stop", "shop") == "weir: shop is not running"
    assert "run it first with `weir run my_shop:app`" in said("compact", "shop")
    assert "has committed nothing in" in (listed := said("state", "list", "shop"))
    assert "`weir run my_shop:app`" in listed
    assert "did you mean 'shop'?" in said("state", "list", "shob")


def test_an_unknown_program_stays_a_placeholder(folder):
    empty = folder / "empty"
    assert f"`weir run MODULE:APP --dir {empty}`" in said("commit", "shop", "--dir", str(empty))


def test_a_folder_and_brokers_on_the_command_line_are_in_the_commands_that_take_them(folder):
    there = ("--dir", str(folder))
    assert f"start it with `weir run my_shop:app --dir {folder}`" in said("commit", "shop", *there)
    ControlDatabase(Settings(dir=folder).control_database_url).acquire_lease(
        "shop", owner="weir run", pid=1, host="h", ttl_s=60
    )
    told = said("run", "my_shop:app", *there, "--bootstrap-servers", "127.0.0.1:1")
    assert f"`weir stop shop --dir {folder}`" in told
    assert f"`weir run my_shop:app --take-over --dir {folder} --bootstrap-servers 127.0.0.1:1`" in told


def test_the_program_that_ran_before_is_the_registered_one_whatever_is_started_now(folder):
    settings = Settings(dir=folder)
    register(settings, "shop", "old_shop:app")
    text = "first `weir run OLD_MODULE:APP`, then `weir run MODULE:APP`"
    assert addressed(text, settings, "my_shop:app") == "first `weir run old_shop:app`, then `weir run my_shop:app`"
    assert addressed(text, Settings(dir=folder / "empty"), "my_shop:app") == (
        "first `weir run OLD_MODULE:APP`, then `weir run my_shop:app`"
    )


def test_the_status_of_a_refused_run_names_the_program_that_was_refused_not_the_registered_one(folder):
    control = DriverControl(Settings(dir=folder).control_database_url, "shop", owner="weir run")
    with pytest.raises(OtherApplicationError), lease(control, "another:app"):
        raise OtherApplicationError("shop")
    assert f"start it with `weir run another:app --accept-state-loss --dir {folder}`" in said(
        "status", "shop", "--dir", str(folder)
    )
    assert "start it with `weir run another:app --accept-state-loss`" in said("status")


@pytest.mark.parametrize("command", [["reset", "shop"], ["dead-letters", "discard", "shop"]])
def test_without_a_terminal_the_message_says_that_it_takes_yes(folder, command):
    result = CliRunner().invoke(app, command, input="")
    assert (result.exit_code, "nothing was changed, because there is no terminal" in result.stderr) == (1, True), (
        result.output
    )
    assert f"`weir {' '.join(command)} --yes`" in result.stderr
    declined = CliRunner().invoke(app, command, input="n\n")
    assert (declined.exit_code, "--yes" in declined.stderr) == (1, False)
