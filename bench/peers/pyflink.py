"""PyFlink: a Python function within Flink, whose connectors read, decode and write."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench.peers.flink import COMMON, STATE
from bench.peers.peer import Guarantee, NotRunError, Run
from bench.peers.python import SCRIPTS, environment, environment_python
from weir.infra.jars import JarsError, fetch
from weir.infra.java import MissingJavaError
from weir.infra.kafka.files import JAVA_CLIENT

_PACKAGES = ("apache-flink==2.2.1",)
_JARS = ("flink-connector-kafka-", "flink-connector-base-", "kafka-clients-")
"""Those that the package does not have."""


class PyFlinkPeer:
    """Its function runs in processes of its own, a bundle of records at a time, which is faster than in threads."""

    name = "pyflink"
    title = "PyFlink"
    guarantee: Guarantee = "exactly once"
    jobs = frozenset(("python_sum",))
    settings: Mapping[str, str] = MappingProxyType(
        {
            **COMMON,
            **STATE["heap"],
            "python.execution-mode": "process",
            "python.fn-execution.bundle.size": "100000",
            "python.fn-execution.bundle.time": "500",
            "python.state.cache-size": "100000",
        }
    )

    def __init__(self) -> None:
        self._jars: list[Path] = []

    def install(self, folder: Path) -> None:
        environment(self.name, _PACKAGES)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                self._jars = [jar for jar in fetch("flink") if jar.name.startswith(_JARS)]
        except (JarsError, MissingJavaError) as error:
            raise NotRunError(str(error)) from error

    def command(self, run: Run) -> list[str]:
        python = str(environment_python(self.name, _PACKAGES))
        login = str(run.client.with_name(JAVA_CLIENT))
        folders = {"execution.checkpointing.dir": f"file://{run.state}/checkpoints", "io.tmp.dirs": str(run.state)}
        settings = [f"{key}={value}" for key, value in {**self.settings, **folders}.items()]
        places = [login, run.topic, run.output, str(run.state), ",".join(map(str, self._jars))]
        return [python, str(SCRIPTS / "pyflink_sum.py"), *places, *settings]
