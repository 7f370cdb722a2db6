"""What is packed for executors: all that a program imports, and none of what only a driver does."""

from __future__ import annotations

import itertools
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from weir.pipelines.errors import ApplicationLoadError
from weir.pipelines.operations import package as module
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.package import Package, packaged

PROGRAM = """
import prices.list
from weir import Application, String, StreamsBuilder
builder = StreamsBuilder()
builder.stream("orders", key=String("customer"), value=String("item")).to_delta("orders")
app = Application("shop", builder)
"""
numbers = itertools.count()


@pytest.fixture
def program(tmp_path, monkeypatch) -> str:
    """The reference of a program that no other test has imported."""
    name, folder = f"shop_{next(numbers)}", tmp_path / "program"
    for path, text in {
        f"{name}.py": PROGRAM,
        "prices/__init__.py": "",
        "prices/list.py": "",
        "prices/more.json": "{}",
        "prices/.git/config": "",
        "prices/__pycache__/list.pyc": "",
        "unused.py": "",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    monkeypatch.syspath_prepend(folder)
    return f"{name}:app"


def files_of(monkeypatch, program: str, **arguments) -> tuple[Package, set[str]]:
    """What is packed, without the half gigabyte that it takes."""
    packed = dict[str, Path]()
    monkeypatch.setattr(module, "write_archive", lambda output, files, on_file: packed.update(files) or 0)
    written = packaged(program, **arguments)
    assert all(path.is_file() for path in packed.values())
    return written, set(packed)


def test_the_program_is_packed_with_weir_and_all_that_both_import(monkeypatch, program):
    written, packed = files_of(monkeypatch, program, also=["psutil"])
    name = program.removesuffix(":app")
    assert {f"{name}.py", "prices/__init__.py", "prices/list.py", "prices/more.json"} <= packed
    assert {f"weir_streams-{version('weir-streams')}.dist-info/METADATA", "weir/pipelines/spark/worker.py"} <= packed
    assert {
        "weir/infra/kafka/_columns.so",
        "polars/__init__.py",
        "psutil/__init__.py",
        "typing_extensions.py",
    } <= packed
    assert {path for path in packed if path.startswith(("prices/.", "pyspark/jars/", "unused", "dagster"))} == set()
    assert {path for path in packed if "__pycache__" in path} == set()
    assert {"prices", name} <= set(written.own)
    assert "lmdb" in written.distributions
    assert written.path == Path.cwd() / "shop.tar.gz"


def test_what_is_packed_is_all_that_a_worker_loads(monkeypatch, program, tmp_path):
    _, packed = files_of(monkeypatch, program)
    known = sorted({path.split("/")[0].removesuffix(".py") for path in packed})
    check = (
        "import sys\nbefore = set(sys.modules)\n"
        f"sys.path[:0] = {[str(tmp_path / 'program'), str(Path(module.__file__).parents[2])]!r}\n"
        f"import weir.pipelines.spark.worker, {program.removesuffix(':app')}\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names\n"
        f"print(sorted(each for each in loaded - set({known!r}) if not each.startswith('_')))"
    )
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_a_name_that_spark_does_not_unpack_is_refused_before_anything_is_packed(program, tmp_path):
    with pytest.raises(OperationError, match=r"Spark unpacks no 'shop.7z' .* as in `--output shop.tar.gz`"):
        packaged(program, tmp_path / "shop.7z")
    with pytest.raises(OperationError, match=r"there is no folder .*gone for the archive"):
        packaged(program, tmp_path / "gone" / "shop.tar.gz")
    assert not list(tmp_path.glob("shop*"))


def test_a_distribution_that_is_not_there_and_a_program_that_cannot_be_imported_are_named(program, tmp_path):
    with pytest.raises(OperationError, match=r"'sikit-learn' is not installed here; install it, or leave it out"):
        packaged(program, tmp_path / "shop.tar.gz", also=["sikit_learn"])
    with pytest.raises(ApplicationLoadError, match="there is no module 'no_shop'"):
        packaged("no_shop:app", tmp_path / "shop.tar.gz")
