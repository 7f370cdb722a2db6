"""Folders of orchestration are named for what Dagster calls their contents (docs/architecture.md)."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

MADE_IN = {
    "AssetsDefinition": "assets",
    "AssetChecksDefinition": "checks",
    "JobDefinition": "jobs",
    "AssetJob": "jobs",
    "ScheduleDefinition": "schedules",
    "SensorDefinition": "sensors",
}
ROOT_FILES = {
    "advice.py",
    "application.py",
    "component.py",
    "definitions.py",
    "guide.py",
    "on_lag.py",
    "partitions.py",
    "resources.py",
    "runs.py",
    "supervised.py",
    "thresholds.py",
}
FOLDERS = {*MADE_IN.values(), "drivers", "examples"}


@pytest.fixture
def orchestration(pytestconfig):
    return pytestconfig.rootpath / "orchestration"


def test_every_module_is_in_a_known_folder_or_a_known_root_file(orchestration):
    found = {path.relative_to(orchestration) for path in orchestration.rglob("*.py") if path.name != "__init__.py"}
    assert {path.name for path in found if len(path.parts) == 1} == ROOT_FILES
    assert {path.parts[0] for path in found if len(path.parts) > 1} == FOLDERS
    assert max(len(path.parts) for path in found) == 2


def test_each_kind_of_definition_is_made_in_the_folder_of_its_name(orchestration):
    """The examples are separate code locations, and make several kinds."""

    def made(folder: str) -> Iterator[tuple[str, str, str]]:
        for path in (orchestration / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.returns is not None:
                    for name in re.findall(r"\w+", ast.unparse(node.returns)):
                        if name in MADE_IN:
                            yield f"{folder}/{path.name}", node.name, MADE_IN[name]

    found = [each for folder in FOLDERS - {"examples"} for each in made(folder)]
    assert {kind for _, _, kind in found} == set(MADE_IN.values())
    assert [(path, name) for path, name, kind in found if not path.startswith(f"{kind}/")] == []


@pytest.mark.slow
def test_drivers_start_without_dagster(orchestration):
    """Directly or not: it would cost each of them a second and much memory."""
    modules = [f"weir.orchestration.drivers.{path.stem}" for path in (orchestration / "drivers").glob("[!_]*.py")]
    assert len(modules) == 4
    code = f"import sys, {', '.join(modules)}\nprint(*{{'dagster', 'dagster_pipes'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["dagster_pipes"]
