"""Spark's peer without Spark: its command line, and how long its batches took."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.peers import python, spark
from bench.peers.peer import NotRunError, Run
from weir.infra.jars import JarsError

PEER = spark.SparkPeer()


@pytest.fixture
def jobs(monkeypatch):
    """The program, which imports what lies beside it."""
    monkeypatch.syspath_prepend(python.SCRIPTS)
    return importlib.import_module("spark_jobs")


def test_the_command_line_has_the_settings_and_the_jars(monkeypatch):
    monkeypatch.setattr(spark, "fetch", lambda name: [Path(f"/jars/{name}-{number}.jar") for number in (1, 2)])
    PEER.install(Path("/classes"))
    run = Run(
        job="sum_per_key", client=Path("/b/client"), topic="events", output="out", state=Path("/state"), closed_by_ms=5
    )
    command = PEER.command(run)
    assert command[2:7] == ["sum_per_key", "/b/client-java.properties", "events", "out", "/state"]
    assert {f"{key}={value}" for key, value in PEER.settings.items()} <= set(command[8:])
    assert "spark.driver.extraClassPath=/jars/spark-kafka-1.jar:/jars/spark-kafka-2.jar" in command


def test_without_its_jars_it_is_not_run(monkeypatch):
    def fetch(name):
        raise JarsError(name, "no network")

    monkeypatch.setattr(spark, "fetch", fetch)
    with pytest.raises(NotRunError, match="Java jars 'spark-kafka': no network"):
        PEER.install(Path("/classes"))


def test_a_run_lasts_from_the_work_of_the_first_batch_to_the_end_of_the_last(jobs):
    first = {"triggerExecution": 5_000, "addBatch": 3_500, "commitOffsets": 500}
    batches = [
        SimpleNamespace(timestamp="2026-09-21T14:00:00.000Z", durationMs=first),
        SimpleNamespace(timestamp="2026-09-21T14:00:07.500Z", durationMs={"triggerExecution": 400}),
    ]
    assert jobs.seconds(batches[:1]) == 4.0
    assert jobs.seconds(batches) == 6.9
