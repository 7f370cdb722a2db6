"""The jars that set-up fetched: complete, in the versions asked for, without those that PySpark has."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weir.infra import jars
from weir.infra.java import MissingJavaError, class_archive, java_executable
from weir.pipelines.cli.app import app


def test_every_default_set_is_complete_after_set_up():
    names = {name: {jar.name for jar in jars.jars(name)} for name in jars.DEFAULT_SETS}
    assert "delta-spark_4.2_2.13-4.4.0.jar" in names["delta"]
    assert "kafka_2.13-4.3.1.jar" in names["kafka"]


def test_delta_adds_no_second_copy_of_what_pyspark_has():
    present = {jars._artifact(jar) for jar in jars._pyspark_jars().glob("*.jar")}
    assert not present & {jars._artifact(jar) for jar in jars.jars("delta")}


def test_a_set_with_other_versions_counts_as_missing_and_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(jars.sys, "prefix", str(tmp_path))
    folder = tmp_path / "share" / "weir" / "jars" / "kafka"
    folder.mkdir(parents=True)
    (folder / "versions.json").write_text('["org.apache.kafka:kafka_2.13:4.0.0"]')
    with pytest.raises(jars.JarsError, match=r"not fetched yet; run `weir setup`"):
        jars.jars("kafka")


def test_an_unknown_set_is_refused(capsys):
    assert jars.main(["zookeeper"]) == 1
    assert "choose from delta, s3, kafka, streams" in capsys.readouterr().err


@pytest.mark.slow
def test_a_set_that_could_not_be_fetched_is_fetched_by_the_same_command_when_the_network_is_back(tmp_path, monkeypatch):
    """Of a single small jar, through a proxy that does not answer, with nothing in Ivy's cache."""
    monkeypatch.setattr(jars.sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(jars, "SETS", {"small": ("org.slf4j:slf4j-api:1.7.36",)})
    monkeypatch.setattr(jars, "DEFAULT_SETS", ("small",))
    monkeypatch.setattr(jars, "_ATTEMPTS", 1)
    for program in ("spark", "kafka"):  # archives of their classes are not made again
        class_archive(program).parent.mkdir(parents=True, exist_ok=True)
        class_archive(program).touch()
    with pytest.raises(jars.JarsError) as missing:
        jars.jars("small")
    (command,) = re.findall("`weir ([^`]+)`", str(missing.value))
    with monkeypatch.context() as patch, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port}")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        failed = CliRunner().invoke(app, command.split())
    assert failed.exit_code == 1
    assert "check the network, then run `weir setup` again" in " ".join(failed.stderr.split())
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    assert [jar.name for jar in jars.jars("small")] == ["slf4j-api-1.7.36.jar"]


def test_another_set_is_fetched_by_its_own_command(tmp_path, monkeypatch):
    monkeypatch.setattr(jars.sys, "prefix", str(tmp_path))
    with pytest.raises(jars.JarsError, match=r"run `\S+ -m weir.infra.jars streams`"):
        jars.jars("streams")


def test_a_java_that_is_installed_is_found_on_the_path_or_in_java_home(tmp_path, monkeypatch):
    java = java_executable()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingJavaError, match="neither JAVA_HOME nor java on the PATH"):
        java_executable()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(Path(java).resolve())
    for name, value in (("PATH", tmp_path / "bin"), ("JAVA_HOME", tmp_path)):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(value))
            found = subprocess.run([java_executable(), "-version"], capture_output=True, text=True, check=True)
            assert int(re.findall(r'version "(\d+)', found.stderr)[0]) >= 17
