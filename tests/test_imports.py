"""Who may import whom, and where imports belong (docs/architecture.md); each test names the offending line."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("orchestration", "pipelines", "state", "infra")
EXEMPT_FROM_BARE_NAMES = ("test_imports.py", "test_registry.py", "test_wheel.py", "flink.py")
"""These tests have projects with folders of the same names, or references as earlier versions stored them; Flink has
settings whose names begin like that."""

FORBIDDEN: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    # what a folder may not import, and the folders below it that may
    (
        "state",
        (
            "weir.infra",
            "weir.pipelines",
            "weir.orchestration",
            "pyspark",
            "delta",
            "confluent_kafka",
            "dagster",
            "sqlalchemy",
        ),
        (),
    ),
    ("infra", ("weir.state", "weir.pipelines", "weir.orchestration", "dagster"), ()),
    ("pipelines", ("weir.orchestration", "dagster"), ()),
    (
        "pipelines",
        ("weir.infra",),
        ("pipelines/spark", "pipelines/cli", "pipelines/operations", "pipelines/publishing", "pipelines/queries"),
    ),
    ("pipelines", ("pyspark",), ("pipelines/spark",)),
    ("infra", ("pyspark", "delta"), ("infra/spark",)),
    ("pipelines", ("weir.pipelines.cli",), ("pipelines/cli",)),
    ("orchestration", ("weir.pipelines.cli",), ()),
    ("pipelines", ("typer", "rich"), ("pipelines/cli",)),
    ("pipelines", ("weir.pipelines.operations",), ("pipelines/cli", "pipelines/operations")),
    ("pipelines", ("weir.pipelines.examples",), ("pipelines/cli", "pipelines/examples")),
    ("pipelines", ("weir.pipelines.testing",), ("pipelines/testing",)),
    *((package, ("bench", "tests"), ("pipelines/cli",)) for package in PACKAGES),
    *((package, ("weir.api", "weir.testing", "weir.dagster"), ("pipelines/examples",)) for package in PACKAGES),
    (
        "pipelines/operators",
        ("sqlalchemy", "weir.pipelines.dsl", "weir.pipelines.tasks", "weir.pipelines.topology", "weir.pipelines.spark"),
        (),
    ),
    (
        "pipelines/serdes",
        (
            "weir.pipelines.dsl",
            "weir.pipelines.operators",
            "weir.pipelines.topology",
            "weir.pipelines.tasks",
            "weir.pipelines.spark",
        ),
        (),
    ),
    ("pipelines/tasks", ("sqlalchemy", "weir.pipelines.dsl", "weir.pipelines.spark"), ()),
    ("pipelines/dsl", ("weir.pipelines.tasks", "weir.pipelines.spark"), ()),
    ("pipelines/topology", ("weir.pipelines.dsl", "weir.pipelines.tasks", "weir.pipelines.spark"), ()),
]

LATE_IMPORT_FOLDER = "pipelines/cli/"
"""May import inside functions what a command needs when it runs, but would make ``weir --help`` slow."""
LATE_IMPORTS = (
    "fastavro",
    "confluent_kafka.schema_registry",
    "weir.infra.prometheus",
    "weir.pipelines.spark.flame_graph",
    "weir.pipelines.spark.merging",
    "weir.pipelines.spark.profiled_run",
    "weir.pipelines.queries.cluster",
    "weir.pipelines.queries.remote",
)
"""May be imported inside functions anywhere: packages of an optional extra, a server that starts on request, a profiler
that a run asks for, the Spark job of compactions, without which Dagster's definitions load no Spark, and what only a
cluster needs."""


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(), str(path))))


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of every import, anywhere in the file; ``from a import b`` gives ``a.b`` too."""
    found: list[tuple[int, str]] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.lineno, node.module))
            found += ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    return found


def offences(root: Path) -> list[str]:
    found = set()
    for folder, forbidden, exempt in FORBIDDEN:
        for path in sorted((root / folder).rglob("*.py")):
            where = path.relative_to(root).as_posix()
            if where.startswith(tuple(f"{each}/" for each in exempt)):
                continue
            for line, name in imports_of(path):
                for module in forbidden:
                    if name == module or name.startswith(f"{module}."):
                        found.add(f"{where}:{line} imports {name}: {folder} must not import {module}")
    return sorted(found)


def test_imports_follow_the_dependency_direction():
    assert offences(ROOT) == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("state/x.py", "from weir.infra.kafka import reader"),
        ("pipelines/tasks/x.py", "import sqlalchemy.orm"),
        ("pipelines/dsl/x.py", "def f():\n    from weir.pipelines import tasks"),
        ("pipelines/spark/x.py", "import dagster"),
        ("orchestration/x.py", "def f():\n    from weir.pipelines.cli.render import console"),
        ("pipelines/operations/x.py", "from weir.pipelines.cli import render"),
        ("pipelines/operations/x.py", "import typer"),
        ("pipelines/operations/x.py", "from rich.console import Console"),
        ("pipelines/spark/x.py", "from weir.pipelines.operations.drive import drive"),
    ],
)
def test_an_offending_line_is_named(tmp_path, path, code):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(code)
    (found,) = {line.split(" imports ")[0] for line in offences(tmp_path)}
    assert found == f"{path}:{len(code.splitlines())}"


def test_an_exempt_folder_may_reach_into_infra(tmp_path):
    (tmp_path / "pipelines/spark").mkdir(parents=True)
    (tmp_path / "pipelines/spark/x.py").write_text("import weir.infra.kafka.reader\nimport pyspark")
    assert offences(tmp_path) == []


def late_imports(root: Path) -> list[str]:
    """Imports inside functions that no rule allows."""
    return sorted(
        {
            f"{where}:{node.lineno} imports {name} inside a function"
            for package in PACKAGES
            for path in (root / package).rglob("*.py")
            if not (where := path.relative_to(root).as_posix()).startswith(LATE_IMPORT_FOLDER)
            for function in nodes(path)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
            if name not in LATE_IMPORTS
        }
    )


def test_imports_are_at_the_top_of_their_file():
    assert late_imports(ROOT) == []


def test_an_import_inside_a_function_is_named(tmp_path):
    code = "class A:\n    def f(self):\n        import fastavro\n        from weir.state import types"
    for folder in ("state", "pipelines/cli"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.py").write_text(code)
    assert late_imports(tmp_path) == ["state/x.py:4 imports weir.state inside a function"]


def circle(root: Path) -> list[str]:
    """Modules that import each other in a circle, the first one found; imports inside functions count, and so do those
    for the type checker alone."""
    paths = {
        "weir." + ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    graph = {}
    for module, path in paths.items():
        imported = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                imported.update(name if name in paths else node.module for name in names)
        graph[module] = imported & paths.keys()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle():
    assert circle(ROOT) == []


@pytest.mark.parametrize(
    "code",
    [
        "import weir.state.x",
        "def f():\n    from weir.state import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from weir.state.x import X",
    ],
)
def test_a_circle_is_named(tmp_path, code):
    (tmp_path / "state").mkdir()
    for name, text in (("x", "from weir.state.y import Y"), ("y", "import weir.state.z"), ("z", code)):
        (tmp_path / "state" / f"{name}.py").write_text(text)
    assert sorted({*circle(tmp_path)}) == ["weir.state.x", "weir.state.y", "weir.state.z"]


def test_workers_and_commands_start_without_packages_that_they_do_not_need():
    """Whether imported directly or not, each costs time and memory at the start."""
    code = (
        "import sys, weir.pipelines.spark.worker, weir.pipelines.spark.held, weir.pipelines.spark.restore_jobs\n"
        "import weir.pipelines.spark.snapshot_jobs, weir.pipelines.spark.standby_jobs\n"
        "print(*{'dagster', 'sqlalchemy', 'pydantic', 'typer', 'rich', 'pandas', 'pyarrow'} & sys.modules.keys())\n"
        "import weir.pipelines.cli.app, weir.pipelines.spark.runner\n"
        "print(*{'textual', 'pyinstrument'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_command_line_is_read_before_what_takes_long_to_load():
    """Java starts meanwhile (``weir.infra.spark.session.java_ahead``)."""
    code = (
        "import sys, weir.pipelines.cli.app\n"
        "print(*{'polars', 'numpy', 'deltalake', 'pyspark', 'pydantic', 'sqlalchemy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_only_the_settings_read_the_environment():
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") for node in nodes(path))
    }
    # The others pass it on: to servers they start, and to PySpark, which takes some settings in no other way.
    assert found == {
        "infra/settings.py",
        "infra/environment.py",
        "pipelines/cli/keeper.py",
        "infra/spark/java_process.py",
        "infra/spark/session.py",
        "infra/spark/standalone.py",
        "infra/class_archives.py",
    }


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a file with the last part of what is called."""
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.func.id if isinstance(node.func, ast.Name) else node.func.attr, node


BY_PATH = {"open", "read_bytes", "write_bytes", "read_text", "write_text", "glob", "rglob", "iterdir", "scandir"}
BY_PATH |= {
    "unlink",
    "mkdir",
    "rename",
    "link",
    "fsync",
    "stat",
    "exists",
    "is_file",
    "is_dir",
    "rmtree",
    "replace_file",
}
LOCAL = {"state/changelog/restore.py", "state/changelog/snapshot.py"}
"""These make instances of local stores."""


def test_tables_and_the_commit_log_are_read_and_written_through_the_storage_alone():
    found = {
        f"{path.relative_to(ROOT)}:{call.lineno} calls {name}"
        for folder in ("state/commit", "state/changelog")
        for path in (ROOT / folder).rglob("*.py")
        if path.relative_to(ROOT).as_posix() not in LOCAL
        for name, call in calls(path)
        if name in BY_PATH
    }
    assert found == set()
    opening = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(name == "DeltaTable" for name, _ in calls(path))
    }
    assert opening == {"state/storage/places.py", "pipelines/backfill/files.py"}, "the second opens tables of others"


def test_nobody_takes_the_warehouse_for_a_folder_of_the_local_disk():
    """It may be a URI, which only ``folder_at`` tells from a path."""
    found = set()
    for package in PACKAGES[:2]:
        for path in (ROOT / package).rglob("*.py"):
            held = {id(arg) for name, call in calls(path) if name in ("folder_at", "str") for arg in call.args}
            held |= {id(node.value) for node in nodes(path) if isinstance(node, ast.keyword | ast.FormattedValue)}
            found |= {
                f"{path.relative_to(ROOT)}:{node.lineno}"
                for node in nodes(path)
                if isinstance(node, ast.Attribute)
                and node.attr == "warehouse"
                and "settings" in ast.unparse(node.value)
                and id(node) not in held
            }
    assert found == set()


def test_the_four_folders_are_imported_only_through_weir():
    """A module that is also loaded under a bare name exists twice, and its classes differ from themselves."""
    bare = re.compile(rf"(\b(from|import) |-m |[\"'`])({'|'.join(PACKAGES)})((\.[a-z_]+)+|(?= import ))")
    sources = [
        *(ROOT / "weir").glob("*.py"),
        ROOT / "pyproject.toml",
        ROOT / "workspace.yaml",
        ROOT / "Makefile",
        *(ROOT / "tools").iterdir(),
        *(
            path
            for folder in (*PACKAGES, "bench", "tests", "docs")
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".md", ".sh")
        ),
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in sources
        if path.name not in EXEMPT_FROM_BARE_NAMES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in bare.finditer(line)
    ]
    assert found == []


def test_relative_imports_are_not_used():
    relative = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []
