"""The files of docs/cluster.md, each checked by what reads it; nobody here has a Kubernetes to run them."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pyspark
import pytest
import typer
import yaml
from click.testing import CliRunner

from weir.infra.settings import Settings
from weir.pipelines.cli.app import app

DOCS = Path(__file__).resolve().parent.parent / "docs"
FILES, PAGE = DOCS / "kubernetes", (DOCS / "cluster.md").read_text()
VERSION = "1.37"
EXECUTOR = "org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend$.class"


def resources() -> Iterator[dict[str, Any]]:
    for name in ("weir.yaml", "executor.yaml"):
        yield from yaml.safe_load_all((FILES / name).read_text())


def test_the_page_names_each_file():
    assert set(re.findall(r"\(kubernetes/([\w.-]+)\)", PAGE)) == {path.name for path in FILES.iterdir()}


@pytest.mark.parametrize("resource", list(resources()), ids=lambda each: each["kind"])
def test_kubernetes_takes_each_resource(resource):
    kubernetes_validate.validate(resource, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**resource, "specs": {}}, VERSION, strict=True)


def test_the_settings_are_those_of_a_run_on_kubernetes(monkeypatch):
    monkeypatch.chdir(FILES)
    found = Settings.load()
    assert (found.master, found.executors, found.slots) == ("k8s://https://kubernetes.default.svc", 3, 12)
    mount = found.spark["spark.kubernetes.executor.volumes.persistentVolumeClaim.weir.mount.path"]
    assert Path(found.spark["spark.kubernetes.executor.podTemplateFile"]).name == "executor.yaml"
    (template,) = yaml.safe_load_all((FILES / "executor.yaml").read_text())
    assert {"name": "WEIR_DIR", "value": mount} in template["spec"]["containers"][0]["env"]


def test_weir_takes_the_options_of_the_driver():
    (deployment,) = (each for each in resources() if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    assert program == "weir"
    command = typer.main.get_command(app)
    answer = CliRunner().invoke(command, [*arguments, "--help"])
    assert answer.exit_code == 0, answer.output
    assert CliRunner().invoke(command, [*arguments, "--no-such-option", "--help"]).exit_code == 2
    given = {name for each in arguments for name in re.findall(r"\$\((\w+)\)", each)}
    assert given <= {each["name"] for each in container["env"]}


def test_an_executor_starts_with_options_that_spark_knows(tmp_path):
    script = FILES / "executor.sh"
    java = tmp_path / "java"
    java.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    given = {
        "SPARK_JAVA_OPT_10": "-Dlast=1",
        "SPARK_JAVA_OPT_0": "-Dfirst=with spaces",
        "SPARK_EXECUTOR_MEMORY": "700m",
        **dict.fromkeys(
            re.findall(r"\$(SPARK_EXECUTOR_(?!MEMORY)\w+|SPARK_(?!EXECUTOR|JAVA)\w+)", script.read_text()), "7"
        ),
    }
    said = subprocess.run(
        ["/bin/bash", str(script)],
        env={"PATH": f"{tmp_path}:{Path(pyspark.__file__).parents[4] / 'bin'}:/usr/bin:/bin"} | given,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said[:4] == ["-Dfirst=with spaces", "-Dlast=1", "-Xms700m", "-Xmx700m"]
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    code = zipfile.ZipFile(jar).read(EXECUTOR)
    assert EXECUTOR.removesuffix("$.class").replace("/", ".") in said
    assert all(option.encode() in code for option in said if option.startswith("--"))
