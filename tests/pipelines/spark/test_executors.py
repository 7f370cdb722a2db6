"""What a worker of a cluster finds on its host, and executors that are waited for."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from weir.infra.spark import executors as module
from weir.infra.spark.executors import Executor, NoExecutorError, executor_id, executor_process, executors_once_there
from weir.pipelines.spark.program import OtherModuleError, digests
from weir.pipelines.spark.worker import OtherVersionError, WorkerSettings, weir_version
from weir.pipelines.tasks.epoch import TaskSettings

ON_DRIVER = WorkerSettings(
    reference="shop:app",
    kafka={},
    tasks=TaskSettings(
        application_folder="/warehouse/shop", state_folder="/driver/.weir/state/shop", partition_counts={}
    ),
    names={},
    topics={},
    is_on_cluster=True,
)


def test_a_worker_of_a_cluster_has_its_state_where_its_host_says(monkeypatch, tmp_path):
    monkeypatch.setenv("WEIR_DIR", str(tmp_path))
    assert ON_DRIVER.here().tasks.state_folder == f"{tmp_path}/state/shop"
    monkeypatch.delenv("WEIR_DIR")
    monkeypatch.chdir(tmp_path)
    assert ON_DRIVER.here().tasks.state_folder == f"{tmp_path}/.weir/state/shop"
    on_one_host = replace(ON_DRIVER, is_on_cluster=False)
    assert on_one_host.here() is on_one_host


def test_an_executor_with_another_weir_is_refused():
    wanted = f"the driver is of Weir 0.0.1, but {weir_version()} is installed on "
    with pytest.raises(OtherVersionError, match=re.escape(wanted)):
        replace(ON_DRIVER, version="0.0.1").here()


def test_an_executor_with_another_program_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / "shop_of_executors"
    folder.mkdir()
    (folder / "__init__.py").touch()
    prices = tmp_path / "prices_of_executors.py"
    prices.write_text("unit = 'cents'\n")
    (folder / "app.py").write_text("import prices_of_executors\nfrom tests.faults.bank import app\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = replace(ON_DRIVER, reference="shop_of_executors.app:app", topics=())
    settings.application()
    on_driver = digests(settings.reference)
    assert {"shop_of_executors", "shop_of_executors.app", "prices_of_executors", "tests.faults.bank"} <= set(on_driver)
    assert not [name for name in on_driver if name.startswith(("weir", "polars", "__main__", "json"))]
    replace(settings, program={**on_driver, "shop_of_executors.of_the_driver_alone": "0"}).application()
    prices.write_text("unit = 'euros'\n")
    with pytest.raises(OtherModuleError, match=r"the module 'prices_of_executors' on .* is not the driver's"):
        replace(settings, program=on_driver).application()


@pytest.mark.parametrize(("there", "found"), [(1, 1), (2, 2), (3, 3)])
def test_a_run_begins_with_the_executors_that_are_there_in_time(monkeypatch, there, found):
    joined = [Executor(id=str(number), host="a") for number in range(there)]
    monkeypatch.setattr(module, "executors", lambda context: joined)
    assert len(executors_once_there(SimpleNamespace(master="spark://a:7077"), 2, 0.2)) == found


def test_a_run_does_not_begin_on_an_executor_that_leaves(monkeypatch):
    there = [Executor(id="0", host="a", is_leaving=True), Executor(id="1", host="a")]
    monkeypatch.setattr(module, "executors", lambda context: there)
    assert executors_once_there(SimpleNamespace(master="spark://a:7077"), 2, 0.2) == there[1:]


def test_a_cluster_that_gives_no_executor_is_named(monkeypatch):
    monkeypatch.setattr(module, "executors", lambda context: [])
    context = SimpleNamespace(master="spark://a:7077")
    with pytest.raises(NoExecutorError, match=r"Spark at spark://a:7077 has given no executor within 0.1 s"):
        executors_once_there(context, 2, 0.1)
    assert executors_once_there(context, 2, 0.1, lambda: False) == []


def test_a_process_that_no_executor_has_started_is_the_drivers():
    assert executor_id() == "driver"
    assert executor_process() is None


def test_a_process_below_an_executor_knows_its_id_and_its_process():
    asks = "from weir.infra.spark.executors import executor_id, executor_process as p; print(executor_id(), *p())"
    starts = (
        f"import os, subprocess, sys; print(os.getpid(), flush=True); subprocess.run([sys.executable, '-c', {asks!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", starts, "--executor-id", "7", "--cores", "3"], capture_output=True, text=True, check=True
    )
    process, *answered = done.stdout.split()
    assert answered == ["7", "7", process]
