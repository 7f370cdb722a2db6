"""The bank on a Spark cluster whose parts are killed: its outputs equal the truth, and tasks keep their stores."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pyspark
import pytest
from typer.testing import CliRunner

from tests.cluster.bank import (
    JOINED_LIMIT_S,
    ROOT,
    RUNS_LIMIT_S,
    TASKS,
    executors,
    executors_of,
    is_running,
    log_of,
)
from tests.faults.bank import PARTITIONS, VISITS, app
from tests.faults.bank_run import BankRun, bank
from tests.faults.traffic import Traffic
from tests.waiting import wait_for
from weir import Query, StateReader
from weir.infra.control import ControlDatabase
from weir.infra.control.rows import QueryServerRow
from weir.infra.settings import Settings
from weir.infra.spark.session import cores_of_executor
from weir.infra.spark.standalone import StandaloneCluster
from weir.pipelines.cli.app import app as weir

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.slow]
EXECUTORS, SLOTS, WITH_STORES = 2, 4, 6
WITHOUT_STORES = "0_"
SHARES = [4, 5]
STANDBYS_LIMIT_S, FROZEN_LIMIT_S = 120.0, 90.0
PATIENT = Query(timeout=timedelta(seconds=60))
DECOMMISSIONED_LIMIT_S = 90.0
WARM_UPS = 1
SUBMIT = (
    str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    "--conf",
    f"spark.pyspark.python={sys.executable}",
)
SUBMITTED_LIMIT_S = 30.0
MORE_KILLS = int(os.environ.get("FAULT_KILLS", 0)) // 20
"""How many more at random, before one of each."""


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster", Settings(dir=tmp_path / "driver", slots=SLOTS), EXECUTORS) as cluster:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the bank is
        configure(cluster, standby_replicas=1)
        yield cluster


def configure(cluster: StandaloneCluster, **settings: int) -> None:
    """What the next driver finds; one executor may join beyond those that are planned."""
    given = cluster.settings
    spark = {**given.spark, "spark.cores.max": (EXECUTORS + 1) * cores_of_executor(given)}
    Path("weir.toml").write_text(
        f'master = "{given.master}"\nexecutors = {EXECUTORS}\nprobing_interval_s = 2\n'
        + "".join(f"{name} = {value}\n" for name, value in settings.items())
        + "[spark]\n"
        + "".join(f'"{name}" = "{value}"\n' for name, value in spark.items())
    )


@pytest.fixture
def running(cluster, tmp_path) -> Iterator[tuple[BankRun, Traffic]]:
    """A bank whose driver runs, with traffic."""
    with bank(Settings(dir=tmp_path / "driver", slots=SLOTS), tmp_path / "driver.log", seed=7, per_second=100) as (
        run,
        traffic,
    ):
        run.start()
        wait_for(lambda: is_running(run), "the driver runs", RUNS_LIMIT_S)
        traffic.start()
        wait_for(lambda: run.difference(traffic.truth) != "there are no outputs yet", "outputs", RUNS_LIMIT_S)
        yield run, traffic


def kill_executor(cluster: StandaloneCluster, run: BankRun) -> None:
    executors(cluster, 0)[0].kill()


def freeze_executor(cluster: StandaloneCluster, run: BankRun) -> None:
    """Until it counts as lost; then it goes on, as far as it is still there."""
    frozen, seen = [executors(cluster, 1)[0], *executors(cluster, 1)[0].children(recursive=True)], len(log_of(run))
    for each in frozen:
        each.suspend()
    try:
        wait_for(lambda: " is lost; slot" in log_of(run)[seen:], "it counts as lost", FROZEN_LIMIT_S)
    finally:
        for each in frozen:
            with suppress(psutil.NoSuchProcess):
                each.resume()


def kill_host(cluster: StandaloneCluster, run: BankRun) -> None:
    """A worker with its executors, as a host goes; the host comes back."""
    process = cluster.workers.pop(0)
    doomed = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in doomed:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    cluster.start_worker(0)


def decommission_host(cluster: StandaloneCluster, run: BankRun) -> None:
    """Its executor ends by itself once its tasks, and no others, have been taken over; the host comes back."""
    executor, before, seen = executors(cluster, 0)[0], executors_of(run), len(log_of(run))
    words = executor.cmdline()
    id_ = words[words.index("--executor-id") + 1]
    os.kill(cluster.workers[0].pid, signal.SIGPWR)
    wait_for(lambda: not executor.is_running(), "the executor has ended", DECOMMISSIONED_LIMIT_S)
    said = log_of(run)[seen:]
    assert f"executor {id_} is lost" not in said
    assert set(re.findall(r"task (\S+): its executor is decommissioned; it restores", said)) == {
        task for task, its_executor in before.items() if its_executor == id_
    }
    assert said.count("it restores into") == said.count("its executor is decommissioned; it restores into")
    process = cluster.workers.pop(0)
    process.terminate()
    process.wait()
    cluster.start_worker(0)


def kill_master(cluster: StandaloneCluster, run: BankRun) -> None:
    cluster.master.kill()
    cluster.master.wait()
    cluster.start_master()


def kill_driver(cluster: StandaloneCluster, run: BankRun) -> None:
    """The Java process of ``spark-submit``, with which the driver ends."""
    assert run.driver is not None
    drivers = psutil.Process(run.driver.pid).children()
    assert drivers
    run.driver.kill()
    run.driver.wait()
    _, left = psutil.wait_procs(drivers, SUBMITTED_LIMIT_S)
    assert not left, "the driver has ended, too"
    run.start()
    wait_for(lambda: is_running(run), "the next driver runs", RUNS_LIMIT_S)


VICTIMS = {
    "executor": kill_executor,
    "frozen executor": freeze_executor,
    "worker": kill_host,
    "decommissioned worker": decommission_host,
    "master": kill_master,
    "driver": kill_driver,
}
SEVERAL = ("decommissioned worker", "worker", "master", "driver")
"""What ``make test`` kills: an executor is lost with its worker, and by itself in ``test_object_store``."""
LOSE_EXECUTORS = ("executor", "frozen executor", "worker", "decommissioned worker")


def are_shared(run: BankRun, executors: int = EXECUTORS) -> bool:
    """Whether each executor has its share of the tasks of every sub-topology, so that none are about to move."""
    counts = Counter((task.partition("_")[0], executor) for task, executor in executors_of(run).items())
    share, more = divmod(PARTITIONS, executors)
    return sorted(counts.values()) == sorted(
        ([share] * (executors - more) + [share + 1] * more) * (TASKS // PARTITIONS)
    )


def all_run(run: BankRun) -> bool:
    """Whether no task restores."""
    status = ControlDatabase(run.settings.control_database_url).application_status("bank")
    return status is not None and {task.status for task in status.tasks} == {"running"}


def scale(cluster: StandaloneCluster, run: BankRun) -> None:
    """A worker is added, whose executor brings two slots; three of all end, by a command; then the worker leaves and
    takes one with it. There are no standbys."""
    seen = len(log_of(run))

    def said(text: str) -> None:
        wait_for(lambda: text in log_of(run)[seen:], text, JOINED_LIMIT_S)

    before = set(executors_of(run).values())
    cluster.start_worker(EXECUTORS)
    said("6 slots instead of 4, on 3 executors")
    wait_for(lambda: are_shared(run, EXECUTORS + 1) and all_run(run), "each has its share of the tasks", JOINED_LIMIT_S)
    (joined,) = set(executors_of(run).values()) - before
    check_warm_ups(run, joined)
    answer = CliRunner().invoke(weir, ["scale", "bank", "--slots", "3", "--dir", str(run.settings.dir)])
    assert answer.stdout.startswith("bank: 3 slots instead of 6; moved: "), answer.output
    said("slot 3 has ended")
    refused = CliRunner().invoke(weir, ["scale", "bank", "--slots", "7", "--dir", str(run.settings.dir)])
    assert "there can be at most 6 slots on 3 executors" in " ".join(refused.stderr.split()), refused.output
    (leaves,) = executors(cluster, EXECUTORS)
    os.kill(cluster.workers[EXECUTORS].pid, signal.SIGPWR)
    said("2 slots instead of 3, on 2 executors")
    said("slot 2 has ended")
    wait_for(lambda: set(executors_of(run).values()) == before and all_run(run), "its tasks have left", JOINED_LIMIT_S)
    wait_for(lambda: not leaves.is_running(), "its executor has ended", DECOMMISSIONED_LIMIT_S)


def check_warm_ups(run: BankRun, joined: str) -> None:
    """Tasks with stores have come to an executor only once these were warmed up there, one after another; the others
    have come at once."""
    rows = ControlDatabase(run.settings.control_database_url).assignments("bank")
    (*_, begins) = (number for number, row in enumerate(rows) if row.reason == "a run begins")
    warm, come = set[str](), list[str]()
    for row in rows[begins:]:
        warm |= {move["task"] for move in row.moves if (move["role"], move["target"]) == ("warm-up", joined)}
        for move in row.moves:
            at = [(place or "").partition("/")[0] for place in (move["source"], move["target"])]
            if move["role"] == "active" and at[0] != joined == at[1]:
                assert move["task"] in warm or move["task"].startswith(WITHOUT_STORES), row
                come.append(move["task"])
    assert len(come) == len(set(come)) == TASKS // (EXECUTORS + 1), come
    said, behind = log_of(run).rpartition("a run begins")[2], set[str]()
    for begun, done in re.findall(rf"(\S+) warm-up -> {joined}:|task (\S+): has a standby on executor {joined}", said):
        behind = behind | {begun} if begun else behind - {done}
        assert len(behind) <= WARM_UPS, said
    for task in warm:
        warmed, went = f"task {task}: has a standby on executor {joined}", f"task {task}: goes to executor {joined}"
        assert 0 <= said.find(warmed) < said.find(went), task
        assert re.search(rf"task {task}: restored \d+ rows in \S+ s from its standby of", said), task


def standbys_of(run: BankRun) -> set[str]:
    """The tasks with a standby on another executor than their own."""
    status = ControlDatabase(run.settings.control_database_url).application_status("bank")
    assert status is not None
    return {task.task for task in status.tasks if set(task.standbys or {}) - {task.executor}}


def stores(cluster: StandaloneCluster) -> Counter[int]:
    """How many tasks have a store where, by worker."""
    return Counter(
        number for number in range(EXECUTORS) for _ in (cluster.dir_of(number) / "state" / "bank").glob("*/CURRENT")
    )


def test_nothing_is_lost_or_doubled_whatever_is_killed(cluster, running):
    """A worker that is decommissioned, one with its executor, the master, the driver; in ``make faults`` an executor,
    too, and one that is frozen. Then, without standbys, an executor joins that was not planned, slots end, and it
    leaves."""
    run, traffic = running
    assert sorted(stores(cluster).values()) == SHARES
    assert not (run.settings.state_dir / "bank").exists(), "the driver's host has no state"
    query_under_way(run)
    start_again(cluster, run)
    rng = random.Random(MORE_KILLS)
    *victims, last = [*rng.choices(list(VICTIMS), k=MORE_KILLS), *(VICTIMS if MORE_KILLS else SEVERAL)]
    for victim in victims:
        survive(victim, cluster, run, traffic)
        run.check_under_way(traffic.truth, traffic.given)
    configure(cluster, standby_replicas=0, max_warmup_replicas=WARM_UPS)
    survive(last, cluster, run, traffic)
    scale(cluster, run)
    run.check_under_way(traffic.truth, traffic.given)
    traffic.stop()
    run.wait_until_equal(traffic.truth)
    query_everything(run, traffic)
    run.stop()


def reader_of(run: BankRun) -> StateReader:
    """On the driver's host, which has no stores."""
    return StateReader(run.settings.dir, app)


def query_under_way(run: BankRun, *, allow_stale: bool = False) -> None:
    """Every count that executors answer is the number of its newest visit, and was read from all of its partitions."""
    if not allow_stale:
        wait_for(lambda: len(answering(run)) == EXECUTORS, "both executors answer queries")
    answer = reader_of(run).range("visits", query=replace(PATIENT, allow_stale=allow_stale))
    assert (answer.rows["visits"] == answer.rows["newest"]).all()
    assert answer.position[VISITS].keys() == set(range(PARTITIONS))
    assert not answer.rows.is_empty()


def query_everything(run: BankRun, traffic: Traffic) -> None:
    """Each account has the balance that the truth has, behind a repartition; the command line says the same of one."""
    reader, balances = reader_of(run), traffic.truth.balances()
    answer = reader.range("balances", query=PATIENT)
    columns = answer.rows.select("key", "balance", "postings").rows()
    assert {key: (balance, postings) for key, balance, postings in columns} == balances
    for account, wanted in list(balances.items())[::5]:  # each reads the commit log on both executors
        known = reader.get("balances", account, query=replace(PATIENT, at_least=answer.position))
        assert known.rows.select("balance", "postings").rows() == [wanted]
    account, (balance, _) = next(iter(balances.items()))
    shown = CliRunner().invoke(weir, ["query", "bank", "balances", account, "--json", "--dir", str(run.settings.dir)])
    assert json.loads(shown.stdout)["rows"][0]["balance"] == balance, shown.output


def answering(run: BankRun) -> list[QueryServerRow]:
    return ControlDatabase(run.settings.control_database_url).query_servers("bank")[0]


def start_again(cluster: StandaloneCluster, run: BankRun) -> None:
    """By ``spark-submit``, as in cluster mode. Each task with stores is where they are, and none of them is restored;
    the others may go where there is less to do."""
    before, seen = stores(cluster), len(log_of(run))
    run.stop()
    run.start(by=[*SUBMIT, "--master", cluster.settings.master, str(ROOT / "docs" / "kubernetes" / "submitted.py")])
    wait_for(lambda: is_running(run), "the driver runs again", RUNS_LIMIT_S)
    said = log_of(run)[seen:]
    (begun,) = re.findall(r"a run begins\. .* Moves: (.*)", said)
    moved = set(re.findall(r"(\d+_\d+) active", begun))
    assert all(task.startswith(WITHOUT_STORES) for task in moved), begun
    assert set(re.findall(r"task (\d+_\d+): restored", said)) <= moved
    assert stores(cluster) >= before
    for rack in ("worker-0", "worker-1"):
        assert f" in {rack}" in said


def survive(victim: str, cluster: StandaloneCluster, run: BankRun, traffic: Traffic) -> None:
    wait_for(lambda: len(standbys_of(run)) == WITH_STORES, "tasks with stores have standbys", STANDBYS_LIMIT_S)
    given, seen = traffic.given, len(log_of(run))
    wait_for(lambda: len(answering(run)) == EXECUTORS, "both executors answer queries")
    VICTIMS[victim](cluster, run)
    if victim in ("executor", "worker"):
        query_under_way(run, allow_stale=True)
    wait_for(lambda: traffic.given > given + 500, "there is traffic")
    if victim in LOSE_EXECUTORS:
        for told in ("from its standby of", "slots go to other executors"):
            wait_for(lambda told=told: told in log_of(run)[seen:], f"{victim}: {told!r}", JOINED_LIMIT_S)
        wait_for(lambda: "goes to executor" in log_of(run)[seen:], "the assignor has moved them", JOINED_LIMIT_S)
        wait_for(lambda: are_shared(run), "both have tasks of all kinds", JOINED_LIMIT_S)
    query_under_way(run)
