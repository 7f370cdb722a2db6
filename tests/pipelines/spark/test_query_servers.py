"""The servers of executors: begun once each, known as long as they are there, begun again where they die."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_for
from weir.infra.control.rows import QueryServerRow
from weir.infra.spark.executors import Executor
from weir.pipelines.queries.contract import Question
from weir.pipelines.queries.remote import RemoteStores
from weir.pipelines.spark import query_servers
from weir.pipelines.spark.query_servers import QueryServers
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.epoch import TaskSettings
from weir.state.types import IsolationLevel


@dataclass
class Cluster:
    """Executors that are processes of this host, without Spark: a job runs at once, in the thread that asks."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    told: list[list[QueryServerRow]] = field(default_factory=list)

    def join(self, executor: str) -> None:
        self.processes[executor] = subprocess.Popen(["sleep", "600"])

    def lose(self, executor: str) -> None:
        process = self.processes.pop(executor)
        process.kill()
        process.wait()

    def executors(self) -> list[str]:
        return list(self.processes)

    def executor_at(self, wanted: str) -> Executor | None:
        return Executor(wanted, "127.0.0.1") if wanted in self.processes else None

    def servers(self, reference: str = "tests.pipelines.queries.market:app", **options: object) -> QueryServers:
        worker = WorkerSettings(
            reference=reference,
            kafka={},
            tasks=TaskSettings(
                application_folder=str(self.folder / "warehouse" / "market"),
                state_folder=str(self.folder / "state" / "market"),
                partition_counts={},
            ),
        )
        given = {"at": "", "first_port": 0, **options}
        return QueryServers(None, worker, self, self.told.append, **given)


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)

    def run_there(job, pool) -> list[QueryServerRow]:
        work, executor = job
        process = cluster.processes[executor.id].pid if executor.id in cluster.processes else 0
        monkeypatch.setattr(query_servers, "executor_process", lambda: (executor.id, process))
        return list(work([0]))

    monkeypatch.setattr(query_servers, "bound", lambda context, work, executor: (work, executor))
    monkeypatch.setattr(query_servers, "collect", run_there)
    monkeypatch.setattr(query_servers, "LOOK_EVERY_S", 0.0)
    yield cluster
    for executor in cluster.executors():
        cluster.lose(executor)


def processes() -> list[psutil.Process]:
    """The servers that are there."""
    found = []
    for each in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if query_servers.PROCESS in each.cmdline():
                found.append(each)
    return found


def test_each_executor_has_a_server_as_long_as_it_is_there(cluster, caplog):
    servers = cluster.servers()
    cluster.join("1")

    def known() -> list[str]:
        servers.keep()
        return [row.executor for row in cluster.told[-1]]

    try:
        wait_for(lambda: known() == ["1"], "it answers")
        (first,) = cluster.told[-1]
        question = Question(look="range", store="sums", isolation=IsolationLevel.READ_COMMITTED)
        stores = RemoteStores(first.executor, first.host, first.port, first.token)
        assert not stores.answer(question, ["sales_0"])[0].has_state
        (process,) = processes()
        for _ in range(3):
            known()
        assert processes() == [process], "one is enough"

        with caplog.at_level(logging.WARNING):
            process.kill()
            wait_for(lambda: known() == ["1"] and cluster.told[-1] != [first], "another one answers")
        assert "executor 1 answers no queries any more; its server begins again" in caplog.text
        assert cluster.told[-1][0].token != first.token

        cluster.lose("1")
        assert known() == []
        wait_for(lambda: not processes(), "it has ended with its executor")
        cluster.join("2")
        wait_for(lambda: known() == ["2"], "the next one answers")
    finally:
        servers.close()
    wait_for(lambda: not processes(), "it has ended with the run")


def test_one_that_does_not_start_is_told_in_the_log_and_tried_again_later(cluster, caplog):
    servers = cluster.servers("tests.pipelines.queries.market:nothing")
    cluster.join("1")
    with caplog.at_level(logging.WARNING):
        wait_for(lambda: servers.keep() or "executor 1 answers no queries: " in caplog.text, "it has failed")
        for _ in range(3):
            servers.keep()
    servers.close()
    assert caplog.text.count("answers no queries") == 1
    assert "ended with code 1, and the executor's stderr says why" in caplog.text


def test_executors_of_one_host_take_ports_one_after_another(cluster):
    servers = cluster.servers(first_port=41_730, at="127.0.0.1")
    cluster.join("1")
    cluster.join("2")
    try:
        wait_for(lambda: servers.keep() or len(cluster.told[-1]) == 2, "both answer")
        ports = sorted(row.port for row in cluster.told[-1])
        assert ports[0] >= 41_730
        assert ports[1] <= 41_745
        assert len(set(ports)) == 2
    finally:
        servers.close()
