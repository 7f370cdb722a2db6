"""The command ``dg`` itself, in a project of its own: what it scaffolds, checks and lists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.dagster, pytest.mark.slow]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dagster.md").read_text()
(SCAFFOLD,) = re.findall(r"^dg (scaffold defs .*)$", PAGE, re.MULTILINE)
PROJECT = """
[project]
name = "orders-project"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "orders_project"
"""
DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
PROGRAM = """
from weir import Application, Count, StreamsBuilder, String

builder = StreamsBuilder()
builder.stream("orders", key=String("customer"), value=String("item")).group_by_key().agg("totals", n=Count())
app = Application("shop", builder)
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """The folder of a project of ``dg`` that has a program, and no definitions yet."""
    folder = tmp_path / "project"
    for name, text in (
        ("pyproject.toml", PROJECT),
        ("src/orders_project/__init__.py", ""),
        ("src/orders_project/definitions.py", DEFINITIONS),
        ("src/orders_project/defs/__init__.py", ""),
        ("src/my_jobs/shop.py", PROGRAM),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def dg(project, tmp_path):
    """``dg("list defs")`` is that command's exit code and everything that it prints."""
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PYTHONPATH": str(project / "src"),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "COLUMNS": "300",
    }

    def call(arguments: str) -> tuple[int, str, str]:
        command = [Path(sys.executable).with_name("dg"), *arguments.split()]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return call


def test_an_application_is_scaffolded_checked_and_listed(project, dg):
    code, listed, errors = dg("list components --json")
    assert code == 0, errors
    assert "weir.dagster.WeirApplication" in listed
    code, _, errors = dg(SCAFFOLD)
    assert code == 0, errors
    written = (project / "src/orders_project/defs/shop/defs.yaml").read_text()
    assert written == "type: weir.dagster.WeirApplication\n\nattributes:\n  program: my_jobs.shop:app\n"
    code, said, errors = dg("check defs")
    assert code == 0, said + errors
    code, listed, errors = dg("list defs --json")
    assert code == 0, errors
    found = json.loads(listed)
    assert {"shop/ingest", "shop/changelog/totals", "shop/checkpoints"} <= {
        each["asset_key"] for each in found["assets"]
    }
    assert "weir_restore" in {each["name"] for each in found["jobs"]}


def test_a_program_that_is_not_there_and_an_attribute_that_nobody_knows_are_named(project, dg):
    defs = project / "src/orders_project/defs/shop/defs.yaml"
    assert dg(SCAFFOLD)[0] == 0
    defs.write_text("type: weir.dagster.WeirApplication\n\nattributes:\n  program: my_jobs.shops:app\n")
    code, said, errors = dg("check defs")
    assert code == 1
    assert "my_jobs.shops" in said + errors
    defs.write_text("type: weir.dagster.WeirApplication\n\nattributes:\n  program: my_jobs.shop:app\n  slot: 2\n")
    code, said, errors = dg("check yaml")
    assert code == 1
    assert "slot" in said + errors
