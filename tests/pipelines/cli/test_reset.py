"""``weir reset`` deletes an application's state and tables, but nothing of another application or of a running one."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weir.infra.control import ControlDatabase, this_host
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app
from weir.pipelines.operations.registry import applications, register


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A folder in which ``shop`` and ``shops`` have run."""
    settings = Settings(dir=tmp_path)
    for name in ("shop", "shops"):
        register(settings, name, "my_jobs.shop:app")
        for folder in (settings.state_dir / name, settings.warehouse / name):
            (folder / "part").mkdir(parents=True)
            (folder / "part" / "file").touch()
    return settings


def reset(settings: Settings, *arguments: str, answer: str = ""):
    return CliRunner().invoke(app, ["reset", "shop", *arguments, "--dir", str(settings.dir)], input=answer)


def files(settings: Settings) -> set[Path]:
    return {
        path.relative_to(settings.dir)
        for root in (settings.state_dir, settings.warehouse, settings.tmp)
        for path in root.rglob("file")
    }


def test_it_asks_first_and_changes_nothing_when_declined(settings):
    before = files(settings)
    result = reset(settings, answer="n\n")
    assert result.exit_code == 1
    assert "Delete shop's tables" in " ".join(result.stderr.split())
    assert files(settings) == before


@pytest.mark.parametrize(("arguments", "answer"), [(["--yes"], ""), ([], "y\n")])
def test_state_and_tables_are_deleted_and_those_of_others_stay(settings, arguments, answer):
    kept = {path for path in files(settings) if "shops" in path.parts}
    result = reset(settings, *arguments, answer=answer)
    assert result.exit_code == 0
    assert files(settings) == kept
    assert applications(settings) == ["shops"]
    again = reset(settings, "--yes")
    assert again.exit_code == 1
    assert "shop" in again.stderr


def test_a_running_application_is_left_alone(settings):
    before = files(settings)
    ControlDatabase(settings.control_database_url).acquire_lease(
        "shop", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=60
    )
    result = reset(settings, "--yes")
    assert result.exit_code == 1
    assert "weir run" in result.stderr
    assert files(settings) == before
