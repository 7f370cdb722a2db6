"""The jars that set-up fetched: complete, in the versions asked for, without those that PySpark has."""

from __future__ import annotations

import pytest

from weir.infra import jars


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
    assert "choose from delta, kafka, streams" in capsys.readouterr().err
