"""A Spark standalone cluster on this host, from the jars of PySpark: a master and workers, each a process.

All of them share this host and nothing else: a worker's executors have their local state in a folder of its own. For
the demo and for tests; a cluster of several hosts is started by whoever runs these.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from weir.infra.java import java_executable
from weir.infra.process import end_with_parent
from weir.infra.settings import Settings
from weir.infra.spark.session import EXECUTOR_MEMORY, cores_of_executor

HOST = "127.0.0.1"
START_LIMIT_S = 60.0
_HOME = Path(pyspark.__file__).parent
_POLL_S = 0.1
_AT = re.compile(r"Starting Spark master at spark://[^:\s]+:(\d+)")
_IS_UP = "I have been elected leader"


class ClusterStartError(Exception):
    """The master did not start; the text names its log."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.log = log

    def __str__(self) -> str:
        return f"Spark's master did not start within {START_LIMIT_S:g} s; {self.log} says why"


class StandaloneCluster:
    """A master and ``workers`` below ``folder``, of which each has room for one executor of ``settings``.

    Its processes end when the block ends, and when whoever started them does.

    Raises:
        ClusterStartError: The master did not start.
        MissingJavaError: There is no Java.
    """

    def __init__(self, folder: Path, settings: Settings, workers: int) -> None:
        self._folder, self._port = folder, 0
        self._given, self._count = settings, workers
        self._secret = secrets.token_hex(16)
        self.workers = dict[int, subprocess.Popen[bytes]]()

    def __enter__(self) -> Self:
        recovery = self._folder / "recovery"
        recovery.mkdir(parents=True, exist_ok=True)
        self._properties = self._folder / "spark.properties"
        self._properties.touch(0o600)
        self._properties.write_text(
            "spark.authenticate true\n"
            f"spark.authenticate.secret {self._secret}\n"
            "spark.decommission.enabled true\n"
            "spark.deploy.recoveryMode FILESYSTEM\n"
            f"spark.deploy.recoveryDirectory {recovery}\n"
        )
        self.start_master()
        for number in range(self._count):
            self.start_worker(number)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers.values(), self.master):
            process.terminate()
        for process in (*self.workers.values(), self.master):
            process.wait()

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self._port}"

    @property
    def settings(self) -> Settings:
        """Those given, with which a run has its slots on this cluster."""
        login = {"spark.authenticate": "true", "spark.authenticate.secret": self._secret}
        return self._given.model_copy(
            update={"master": self.url, "executors": self._count, "spark": {**self._given.spark, **login}}
        )

    def dir_of(self, number: int) -> Path:
        """The folder with the local state of a worker's executors."""
        return self._folder / f"worker-{number}"

    def start_master(self) -> None:
        """At the port where it was before, if it was killed; returns once it is there."""
        log = self._folder / "master.log"
        begin = log.stat().st_size if log.exists() else 0
        self.master = self._start(log, "master.Master", "--host", HOST, "--port", self._port, "--webui-port", 0)
        until_s = time.monotonic() + START_LIMIT_S
        while _IS_UP not in (text := log.read_text(errors="replace")[begin:]):
            if self.master.poll() is not None or time.monotonic() > until_s:
                self.master.kill()
                raise ClusterStartError(log)
            time.sleep(_POLL_S)
        if found := _AT.search(text):
            self._port = int(found[1])

    def start_worker(self, number: int) -> None:
        """Begin, also again after it was killed; whoever asks for executors waits until it is there."""
        place = self.dir_of(number)
        place.mkdir(exist_ok=True)
        self.workers[number] = self._start(
            self._folder / f"worker-{number}.log",
            "worker.Worker",
            *("--host", HOST, "--port", 0, "--webui-port", 0, "--work-dir", place / "work"),
            *("--cores", cores_of_executor(self.settings), "--memory", EXECUTOR_MEMORY),
            self.url,
            WEIR_DIR=str(place),
            WEIR_RACK=place.name,
            SPARK_LOCAL_DIRS=str(place / "local"),
        )

    def _start(self, log: Path, kind: str, *arguments: object, **variables: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [
                    *(java_executable(), "-cp", f"{_HOME / 'jars'}/*", "-Xmx256m", "-XX:TieredStopAtLevel=1"),
                    *(f"org.apache.spark.deploy.{kind}", "--properties-file", str(self._properties)),
                    *map(str, arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the driver, which ends them in its own time
                preexec_fn=end_with_parent(),
                env={
                    **os.environ,
                    "SPARK_HOME": str(_HOME),
                    "SPARK_SCALA_VERSION": "2.13",
                    "SPARK_LOCAL_IP": HOST,
                    "PYSPARK_PYTHON": sys.executable,
                    **variables,
                },
            )
