"""What is published: one package ``weir``, in a project that has folders of the names that Weir's repository has."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka import Producer
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "state/__init__.py": 'OWNER = "the project"\n',
    "infra/__init__.py": "",
    "orchestration/__init__.py": "",
    "pipelines/__init__.py": "",
    "pipelines/shop.py": """
from dataclasses import dataclass

from state import OWNER
from weir import Application, Count, Json, StreamsBuilder, String, Sum

assert OWNER == "the project"

@dataclass(frozen=True)
class Order:
    amount: int
    country: str

builder = StreamsBuilder()
orders = builder.stream("TOPIC", key=String("customer"), value=Json(Order))
orders.group_by("country").agg("by_country", orders=Count(), total=Sum("amount")).to_delta("country_totals")
app = Application("shop", builder)
""",
    "driver.py": """
from datetime import UTC, datetime

from pipelines.shop import Order, app
from weir.testing import TopologyTestDriver

with TopologyTestDriver(app) as driver:
    topic = driver.create_input_topic("TOPIC")
    topic.pipe_input("ann", Order(5, "NL"), timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    print(driver.create_output_table("country_totals").read_rows())
""",
    "definitions.py": """
from pipelines.shop import app
from weir.dagster import Thresholds, definitions, supervise

defs = definitions(supervise(app, thresholds=Thresholds()))
""",
}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, which is built from this clone."""
    target = tmp_path_factory.mktemp("dist")
    builder = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*builder, "--out-dir", str(target), str(ROOT)], check=True)
    [built] = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run(program, *arguments)`` in the project, with the programs of an environment that has the wheel alone, and
    links to the packages of this one that it requires."""
    base, project = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("project")
    environment = base / "environment"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    install = [*uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True)
    [packages] = environment.glob("lib/python*/site-packages")
    [installed] = metadata.distributions(path=[str(packages)])
    for package in required(installed):
        for name in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(package.locate_file(name))))
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WEIR_"))}

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / program), *arguments]
        return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True)

    return run


def required(package: metadata.Distribution, extras: frozenset[str] = frozenset()) -> Iterator[metadata.Distribution]:
    """What a package requires, and what that requires, in this environment; it has to have a version that will do."""
    for extra, line in product(extras | {""}, package.requires or ()):
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            found = metadata.distribution(wanted.name)
            assert wanted.specifier.contains(found.version, prereleases=True), f"{package.name}: {line}"
            yield found
            yield from required(found, frozenset(wanted.extras))


@pytest.fixture(scope="module")
def project(run: Run) -> Path:
    """The project's folder, with its files."""
    folder = Path(run("python", "-c", "import os; print(os.getcwd())").stdout.strip())
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_one_package_for_every_python(wheel):
    assert "-py3-none-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"weir", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    assert {"weir/py.typed", "weir/infra/kafka/_columns.so", "weir/orchestration/definitions.py"} <= set(names)
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    assert [name for name in names if name.endswith((".c", ".pyc"))] == []


@pytest.mark.spark
@pytest.mark.broker
def test_a_project_with_folders_of_our_names_runs_from_the_wheel(run, project, broker, topic, tmp_path):
    name = topic(partitions=2)
    for path in project.rglob("*.py"):
        path.write_text(path.read_text().replace("TOPIC", name))
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for number in range(100):
        producer.produce(name, f'{{"amount": {number}, "country": "{"NL" if number % 2 else "DE"}"}}', f"c{number}")
    assert producer.flush(10) == 0

    assert run("weir", "--version").stdout.startswith("weir ")
    assert "clone Weir's repository" in " ".join(run("weir", "bench").stderr.split())
    assert name in run("weir", "describe", "pipelines.shop:app").stdout
    tested = run("python", "driver.py")
    assert tested.stdout.strip() == "[{'country': 'NL', 'orders': 1, 'total': 5}]", tested.stderr

    ingest = ("weir", "run", "pipelines.shop:app", "--until-caught-up")
    early = run(*ingest)  # by the embedded broker, which is Java
    assert early.returncode == 1
    assert "run `weir setup`" in early.stderr
    ready = run("weir", "setup")
    assert ready.returncode == 0, ready.stderr
    assert "ready: start with `weir demo` or `weir run MODULE:APP`" in ready.stdout
    done = run(*ingest, "--bootstrap-servers", broker)
    assert done.returncode == 0, done.stderr
    assert '"orders": 50' in run("weir", "query", "shop", "by_country", "NL", "--json").stdout
    missing = run("weir", "demo", "--no-ui")
    assert 'pip install "weir-streams[demo]"' in " ".join(missing.stderr.split()), missing.stderr

    loaded = run("python", "-m", "dagster", "definitions", "validate", "-m", "definitions")
    assert loaded.returncode == 0, loaded.stderr[-2000:]
    python = str(Path(done.args[0]).with_name("python"))
    checker = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", str(tmp_path)]
    checked = subprocess.run([*checker, "driver.py", "definitions.py"], cwd=project, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
