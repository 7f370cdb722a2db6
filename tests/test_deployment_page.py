"""The files of docs/deployment.md, each checked by what reads it; tests/orchestration/test_deployment.py runs them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from dagster._cli import create_dagster_cli  # has no public name
from dagster._config import validate_config  # has no public name
from dagster._core.instance.config import dagster_instance_config_schema  # has no public name
from dagster._daemon.cli import create_dagster_daemon_cli  # has no public name
from dagster_webserver.cli import dagster_webserver

DOCS = Path(__file__).resolve().parent.parent / "docs"
FILES, PAGE = DOCS / "deployment", (DOCS / "deployment.md").read_text()
UNITS = sorted(FILES.glob("*.service"))
COMMANDS: dict[str, click.Command] = {
    "dagster": create_dagster_cli(),
    "dagster-daemon": create_dagster_daemon_cli(),
    "dagster-webserver": dagster_webserver,
}


def written(name: str) -> Any:
    return yaml.safe_load((FILES / name).read_text())


def variables_of(value: Any) -> set[str]:
    """All ``{env: NAME}`` in it."""
    if isinstance(value, dict):
        return {value["env"]} if set(value) == {"env"} else set[str]().union(*map(variables_of, value.values()))
    return set[str]().union(*map(variables_of, value)) if isinstance(value, list) else set()


def commands() -> Iterator[list[str]]:
    """How units and containers start Dagster."""
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
        program, *arguments = shlex.split(line)
        yield [Path(program).name, *arguments]
    for service in written("compose.yaml")["services"].values():
        if "command" in service:
            yield shlex.split(service["command"])


def verified(units: list[Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False)


def fits_compose(file: Path) -> bool:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_page_names_each_file():
    assert set(re.findall(r"\(deployment/([\w.-]+)\)", PAGE)) == {path.name for path in FILES.iterdir()}


def test_dagster_takes_the_configuration():
    schema, configuration = dagster_instance_config_schema(), written("dagster.yaml")
    assert validate_config(schema, configuration).errors is None
    assert validate_config(schema, {**configuration, "run_monitorings": {}}).errors


def test_whoever_reads_a_variable_is_given_it():
    needed = variables_of(written("dagster.yaml")) | variables_of(written("workspace.yaml"))
    assert needed == {"DAGSTER_POSTGRES_URL", "CODE_SERVER_HOST", "CODE_SERVER_PORT"}
    (environment,) = re.findall(r"```sh\n(DAGSTER_HOME=.*?)```", PAGE, re.DOTALL)
    assert {*needed, "DAGSTER_HOME"} <= set(re.findall(r"^(\w+)=", environment, re.MULTILINE))
    for name, service in written("compose.yaml")["services"].items():
        assert name == "postgres" or needed <= set(service["environment"])


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_dagster_takes_the_options_of_each_command(command):
    """``--help`` comes after the options have been looked at."""
    program, *arguments = command
    answer = CliRunner().invoke(COMMANDS[program], [*arguments, "--help"])
    assert answer.exit_code == 0, answer.output
    wrong = CliRunner().invoke(COMMANDS[program], [*arguments, "--no-such-option", "--help"])
    assert wrong.exit_code == 2


def test_compose_takes_its_file(tmp_path):
    assert fits_compose(FILES / "compose.yaml")
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FILES / "compose.yaml").read_text().replace("restart:", "restarts:"))
    assert not fits_compose(wrong)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_takes_the_units(tmp_path):
    for unit in UNITS:
        here = unit.read_text().replace("/srv/weir/.venv/bin", str(Path(sys.executable).parent))
        (tmp_path / unit.name).write_text(here.replace("WorkingDirectory=/srv/weir", f"WorkingDirectory={tmp_path}"))
    found = verified(sorted(tmp_path.iterdir()))
    assert (found.returncode, found.stderr) == (0, "")
    wrong = tmp_path / UNITS[0].name
    wrong.write_text(wrong.read_text().replace("KillMode=", "KilMode="))
    assert "KilMode" in verified([wrong]).stderr


def test_the_image_copies_what_is_there():
    copied = re.findall(r"^COPY (?:--\S+ )?(.*) \S+$", (FILES / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == {"dist/*.whl", "dagster.yaml", "workspace.yaml"}
    assert {name for name in names if name.endswith(".yaml")} <= {path.name for path in FILES.iterdir()}
