"""``weir`` as users see it: light until a name is asked for, and each public name shown as it is imported."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
import traceback
from importlib import import_module
from pathlib import Path

import pytest

import weir

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("weir", "weir.testing", "weir.dagster")


def modules_after(code: str) -> set[str]:
    """The packages that a fresh process has imported after ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.slow
def test_importing_weir_loads_nothing_else_until_a_name_is_asked_for():
    heavy = {"polars", "numpy", "msgspec", "lmdb", "deltalake", "pyarrow", "pyspark", "dagster", "confluent_kafka"}
    assert not heavy & modules_after("import weir")
    assert "polars" in modules_after("from weir import KStream")


@pytest.mark.slow
def test_a_program_loads_neither_spark_nor_dagster_nor_a_kafka_client():
    assert not {"pyspark", "dagster", "confluent_kafka", "sqlalchemy", "typer"} & modules_after(
        "from weir import *; from weir.testing import *"
    )


@pytest.mark.parametrize("module", MODULES)
def test_public_names_say_where_they_are_imported_from_and_pickle_by_that_name(module):
    public = import_module(module)
    for name in public.__all__:
        item = getattr(public, name)
        assert f"{item.__module__}.{item.__qualname__}" == f"{module}.{name}"
        assert pickle.loads(pickle.dumps(item)) is item


def test_reprs_and_tracebacks_show_the_public_name():
    assert repr(weir.KStream) == "<class 'weir.KStream'>"
    assert repr(import_module("weir.testing").TopologyTestDriver) == "<class 'weir.testing.TopologyTestDriver'>"
    with pytest.raises(weir.TopologyError) as caught:
        weir.StreamsBuilder().stream("a b", key=weir.String(), value=weir.String())
    assert traceback.format_exception_only(caught.value)[-1].startswith("weir.TopologyError: ")


def test_a_star_import_gives_the_public_names_and_dir_shows_them():
    names: dict[str, object] = {}
    exec("from weir import *", names)
    assert sorted(names.keys() - {"__builtins__"}) == sorted(weir.__all__)
    assert sorted(dir(weir)) == sorted([*weir.__all__, "__version__"])


def test_an_unknown_name_is_refused_naming_weir():
    with pytest.raises(AttributeError, match="module 'weir' has no attribute 'Kstream'"):
        weir.Kstream  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Kstream' from 'weir'"):
        exec("from weir import Kstream")


def test_the_version_is_the_distributions():
    assert weir.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
