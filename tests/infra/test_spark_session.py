"""Spark sessions: within the folder, quiet, and gone with the process that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import polars as pl
import psutil
import pyspark
import pytest
from deltalake import write_deltalake

from tests.waiting import wait_for
from weir.infra.java import class_archive, java_executable
from weir.infra.settings import Settings
from weir.infra.spark.java_process import MAIN, command, spark_home
from weir.infra.spark.session import driver_host, slot_context, stop_context

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(shared_spark, tmp_path_factory):
    """A context of its own, in which nobody else has started workers."""
    context = slot_context(Settings(dir=tmp_path_factory.mktemp("spark"), slots=2), "tests")
    yield context
    stop_context(context)


def describe_worker(_, rows):
    list(rows)
    yield (
        os.environ["POLARS_MAX_THREADS"],
        os.environ["PYTHONPATH"].split(os.pathsep),
        sys.executable,
        os.getpid(),
        pyspark.__file__,
    )


def test_slots_run_with_the_properties_that_the_protocol_asks_for(spark):
    conf = spark.getConf()
    assert conf.get("spark.master") == "local[4,4]"
    assert conf.get("spark.python.task.killTimeout") == "0"
    assert conf.get("spark.speculation") == "false"
    assert conf.get("spark.scheduler.mode") == "FAIR"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"


def test_a_driver_that_spark_has_started_is_reached_at_the_address_of_its_host(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.7")
    assert driver_host(Settings(master="yarn")) == "127.0.0.1"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "50000")
    assert driver_host(Settings(master="yarn")) == "10.0.0.7"
    assert driver_host(Settings(master="yarn", driver_host="10.0.0.5")) == "10.0.0.5"
    assert driver_host(Settings()) == "127.0.0.1", "nobody else has to reach a local run"


def test_who_connects_to_spark_has_to_know_its_secret(spark):
    """Which Spark itself makes for each context; nobody else has it."""
    manager = spark._jvm.org.apache.spark.SparkEnv.get().securityManager()
    assert manager.isAuthenticationEnabled()
    assert len(manager.getSecretKey()) >= 32
    assert "secret" not in " ".join(name for name, _ in spark.getConf().getAll())


def test_java_uses_the_archive_of_classes(spark):
    if not class_archive("spark").is_file():
        pytest.skip("set-up made no archive of Spark's classes: this Java has no jcmd")
    pid = spark._gateway.jvm.java.lang.ProcessHandle.current().pid()
    assert str(class_archive("spark").resolve()) in Path(f"/proc/{pid}/maps").read_text()


def test_workers_import_from_the_current_folder_with_one_polars_thread(spark):
    slots = spark.parallelize(range(2), 2)
    for threads, path, python, _, its_pyspark in slots.mapPartitionsWithIndex(describe_worker).collect():
        assert threads == "1"
        assert str(Path.cwd()) in path
        assert python == sys.executable
        assert its_pyspark == pyspark.__file__, "an archive has no bytecode"


def test_a_worker_outlives_its_job_and_is_reused(spark):
    slots = spark.parallelize(range(2), 2)
    first = {row[3] for row in slots.mapPartitionsWithIndex(describe_worker).collect()}
    again = {row[3] for _ in range(5) for row in slots.mapPartitionsWithIndex(describe_worker).collect()}
    assert again & first
    assert len(again | first) <= 2


BUSY_DRIVER = textwrap.dedent("""
    import os, sys, time
    from weir.infra.settings import Settings
    from weir.infra.spark.session import slot_context

    folder = sys.argv[1]
    def busy(_, rows, folder=folder):
        list(rows)
        open(f"{folder}/worker-{os.getpid()}", "w").close()
        time.sleep(600)
        yield 0

    context = slot_context(Settings(dir=folder + "/weir", slots=2), "killed")
    context.parallelize(range(2), 2).mapPartitionsWithIndex(busy).collect()
""")


def test_java_and_workers_end_with_a_driver_that_is_killed_in_mid_job(tmp_path):
    (tmp_path / "tmp").mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-c", BUSY_DRIVER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    wait_for(lambda: len(list(tmp_path.glob("worker-*"))) == 2, "the workers are busy")
    children = psutil.Process(driver.pid).children(recursive=True)
    assert len(children) >= 4  # Java, the workers' parent, two workers
    driver.send_signal(signal.SIGKILL)
    output = driver.communicate()[0].decode()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, [" ".join(process.cmdline()) for process in alive]
    assert output == ""


STARTED_TWICE = textwrap.dedent("""
    import sys, time
    import psutil
    from weir.infra.settings import Settings
    from weir.infra.spark.session import SparkStartError, java_ahead, slot_context, stop_context

    def its_child():
        while not (children := psutil.Process().children()):
            time.sleep(0.01)
        return children[0]

    settings = Settings(dir=sys.argv[1], slots=1)
    try:
        slot_context(settings.model_copy(update=dict(spark={"spark.driver.memory": "1k"})), "small")
    except SparkStartError as error:
        print(error)
    with java_ahead(settings):
        java = its_child()  # before anybody has asked for a context
        stop_context(slot_context(settings, "large"))
    print("started", java.is_running(), *{"pandas", "pyarrow"} & sys.modules.keys())
    with java_ahead(settings):
        java = its_child()
    print("ended", java.is_running())
""")


def test_a_java_that_ends_at_once_is_quoted_and_one_that_is_started_ahead_serves_or_ends(tmp_path):
    ran = subprocess.run([sys.executable, "-c", STARTED_TWICE, str(tmp_path)], capture_output=True, text=True)
    refused, started, ended = ran.stdout.splitlines()
    assert refused.startswith("Spark did not start: its Java process ended before it was ready (its last words: '")
    assert "heap" in refused
    assert str(tmp_path / "logs" / "spark.out") in refused
    assert "heap" in (tmp_path / "logs" / "spark.out").read_text()
    assert (started, ended) == ("started False", "ended False")


FROZEN_JAVA = textwrap.dedent("""
    import os, signal, sys, threading, time
    from pathlib import Path
    import psutil
    from weir.infra.settings import Settings
    from weir.infra.spark import session

    session.JAVA_END_LIMIT_S = 1.0
    folder = Path(sys.argv[1])
    settings = Settings(dir=folder / "weir", slots=1)

    def holds(_, rows, busy=str(folder / "busy")):
        import ctypes
        list(rows)
        open(busy, "w").close()
        ctypes.PyDLL(None).sleep(600)
        yield 0

    def answers(_, rows):
        yield sum(rows)

    context = session.slot_context(settings, "frozen")
    job = context.parallelize(range(2), 1).mapPartitionsWithIndex(holds)
    threading.Thread(target=job.collect, daemon=True).start()
    while not (folder / "busy").exists():
        time.sleep(0.05)
    below = psutil.Process().children(recursive=True)
    os.kill(context._gateway.proc.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    session.stop_context(context)
    print(time.monotonic() - began_s)
    print(len(psutil.wait_procs(below, timeout=10)[1]))
    with session.java_ahead(settings):
        context = session.slot_context(settings, "another")
    print(*context.parallelize([20, 22], 1).mapPartitionsWithIndex(answers).collect())
    session.stop_context(context)
""")


def test_a_java_process_that_does_not_end_is_killed_with_its_workers_and_another_can_be_started(tmp_path):
    run = subprocess.run([sys.executable, "-c", FROZEN_JAVA, str(tmp_path)], capture_output=True, text=True, timeout=90)
    assert run.returncode == 0, run.stderr
    seconds, alive, answer = run.stdout.split()[-3:]
    assert 1.0 <= float(seconds) < 10.0
    assert (alive, answer) == ("0", "42")


SQL_READER = textwrap.dedent("""
    import sys
    from weir.infra.settings import Settings
    from weir.infra.spark.session import sql_session, stop_session

    session = sql_session(Settings(dir=sys.argv[1] + "/weir", slots=2))
    rows = session.sql(f"SELECT sum(n) AS total FROM delta.`{sys.argv[1]}/table`").collect()
    print(rows[0].total)
    stop_session(session)
""")


def test_sql_reads_a_delta_table_and_leaves_nothing_outside_the_folder(tmp_path):
    write_deltalake(str(tmp_path / "table"), pl.DataFrame({"n": [1, 2, 39]}).to_arrow())
    elsewhere, sockets = tmp_path / "elsewhere", tmp_path / "tmp"
    elsewhere.mkdir()
    sockets.mkdir()
    environment = {**os.environ, "TMPDIR": str(sockets), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", SQL_READER, str(tmp_path)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines() == ["42"]
    assert done.stderr == ""
    assert list(elsewhere.iterdir()) == []
    assert list(sockets.iterdir()) == []


def test_java_is_started_as_the_launcher_of_spark_would():
    """Which reads the same options, and takes a Java process of its own for it."""
    properties = {
        "spark.driver.memory": "700m",
        "spark.driver.extraClassPath": "/x/y",
        "spark.jars": "/a/b.jar",
        "spark.driver.extraJavaOptions": '"-Dfolder=a b" -XX:+UseSerialGC',
    }
    home, given = spark_home(), (("--conf", f"{name}={value}") for name, value in properties.items())
    said = subprocess.run(
        [
            *(java_executable(), "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main"),
            *(MAIN, *(word for pair in given for word in pair), "pyspark-shell"),
        ],
        env={"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    theirs = said.partition("\n")[2].split("\0")[1:-1]
    mine = list(command(home, properties))[1:]
    java = theirs.index(MAIN)
    assert mine[:java] == theirs[:java]
    assert sorted(mine[java:]) == sorted(theirs[java:])
