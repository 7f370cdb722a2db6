"""The bank on a Spark cluster that shares nothing but an object store, whose executors Spark adds and removes as it
likes: results equal the truth when one is killed, and nobody sees the store's secret."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress

import psutil
import pytest
import requests

from tests.cluster.bank import JOINED_LIMIT_S, ROOT, RUNS_LIMIT_S, executors, executors_of, is_running, log_of
from tests.faults.bank_run import bank
from tests.waiting import wait_for
from weir.infra.settings import Settings
from weir.infra.spark.standalone import HOST, StandaloneCluster
from weir.state.storage.places import folder_at

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.slow]
SLOTS, EXECUTORS, LIMIT_S = 2, 2, 240.0
LOGIN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL")
SECRET = f"spark.executorEnv.{LOGIN[1]}"
DYNAMIC = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.executorIdleTimeout": "3s"}
PAGE_LIMIT_S = 30.0


@pytest.fixture
def cluster(tmp_path) -> Iterator[StandaloneCluster]:
    """Its hosts have no login."""
    settings = Settings(dir=tmp_path / "driver", slots=SLOTS)
    with StandaloneCluster(tmp_path / "cluster", settings, EXECUTORS) as cluster:
        yield cluster


@pytest.fixture
def ui_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture
def warehouse(cluster, s3_bucket, ui_port, tmp_path, monkeypatch) -> str:
    """On the store, whose login ``weir.toml`` has."""
    ui = {"spark.ui.enabled": "true", "spark.ui.port": str(ui_port)}
    login = {f"spark.executorEnv.{name}": os.environ[name] for name in LOGIN}
    spark = {**cluster.settings.spark, **login, **DYNAMIC, **ui}
    warehouse = f"{s3_bucket}/warehouse"
    (tmp_path / "weir.toml").write_text(
        f'master = "{cluster.url}"\nexecutors = {EXECUTORS}\nwarehouse = "{warehouse}"\n[spark]\n'
        + "".join(f'"{name}" = "{value}"\n' for name, value in spark.items())
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the bank is
    return warehouse


def shown_of_the_driver(port: int) -> str:
    """The environment, as the page of the driver's Spark gets it."""
    applications = f"http://{HOST}:{port}/api/v1/applications"
    (application,) = requests.get(applications, timeout=PAGE_LIMIT_S).json()
    return requests.get(f"{applications}/{application['id']}/environment", timeout=PAGE_LIMIT_S).text


def shown_of_the_cluster(ports: Sequence[int]) -> str:
    """What the pages of the master and its workers show."""
    urls = [f"http://{HOST}:{port}/{page}" for port in ports for page in ("", "json/")]
    return "".join(requests.get(url, timeout=PAGE_LIMIT_S).text for url in urls)


def command_lines() -> list[str]:
    found = list[str]()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def test_an_executor_is_lost_and_the_truth_is_on_the_store_and_its_secret_nowhere_else(
    cluster, warehouse, ui_port, tmp_path
):
    settings, secret = Settings(dir=tmp_path / "driver", slots=SLOTS, warehouse=warehouse), os.environ[LOGIN[1]]
    with bank(settings, tmp_path / "driver.log", seed=7, per_second=50) as (run, traffic):
        run.start()
        wait_for(lambda: is_running(run), "the driver runs", RUNS_LIMIT_S)
        traffic.start()
        wait_for(lambda: run.difference(traffic.truth) != "there are no outputs yet", "outputs", LIMIT_S)

        doomed = executors(cluster, 0)[0]
        logs = "".join(path.read_text() for path in (tmp_path / "cluster").glob("*.log"))
        ports = [int(port) for port in re.findall(r"WebUI.* started at http://[^:]+:(\d+)", logs)]
        assert len(ports) == 1 + EXECUTORS, "of the master and its workers"
        shown = shown_of_the_driver(ui_port)
        assert SECRET in shown
        assert secret not in shown + shown_of_the_cluster(ports)
        assert any("--executor-id" in line for line in command_lines())
        assert not any(secret in line for line in command_lines())

        seen, given = len(log_of(run)), traffic.given
        doomed.kill()
        wait_for(lambda: "slots go to other executors" in log_of(run)[seen:], "another one joins", JOINED_LIMIT_S)
        wait_for(lambda: len(set(executors_of(run).values())) == EXECUTORS, "both have tasks", LIMIT_S)
        wait_for(lambda: traffic.given > given + 200, "there is traffic")
        run.check_under_way(traffic.truth, traffic.given)
        traffic.stop()
        run.wait_until_equal(traffic.truth)
        run.stop()
    assert "bank" in folder_at(warehouse).folders()
    assert not list(tmp_path.rglob("_delta_log")), "the hosts share no folder"
    logs = [path for name in ("*.log", "*.out", "stderr") for path in tmp_path.rglob(name)]
    assert not [path for path in logs if secret in path.read_text(errors="replace")]
