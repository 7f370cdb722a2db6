"""Spark Structured Streaming with the native operators of DataFrames: ``scripts/spark_jobs.py`` has the jobs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench.peers.peer import Guarantee, NotRunError, Run
from bench.peers.python import SCRIPTS
from weir.infra.jars import JarsError, fetch
from weir.infra.java import MissingJavaError
from weir.infra.kafka.files import JAVA_CLIENT

_STATE = "spark.sql.streaming.stateStore"
_BATCH = "200000"


class SparkPeer:
    """The Spark that Weir's own environment has, with Spark's connector for Kafka; each micro-batch is a commit."""

    name = "spark"
    title = "Spark Structured Streaming"
    guarantee: Guarantee = "at least once"
    jobs = frozenset(
        (
            "sum_per_key",
            "repartition_sum",
            "window_final",
            "hopping_final",
            "session_sum",
            "table_join_sum",
        )
    )
    settings: Mapping[str, str] = MappingProxyType(
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "2",
            f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
            f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
            "spark.sql.ansi.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
        }
    )

    def __init__(self) -> None:
        self._jars: list[Path] = []

    def install(self, folder: Path) -> None:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                self._jars = fetch("spark-kafka")
        except (JarsError, MissingJavaError) as error:
            raise NotRunError(str(error)) from error

    def command(self, run: Run) -> list[str]:
        login = str(run.client.with_name(JAVA_CLIENT))
        own = {
            "spark.driver.extraClassPath": ":".join(map(str, self._jars)),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={run.state}",
            "spark.local.dir": str(run.state),
        }
        settings = [f"{key}={value}" for key, value in {**self.settings, **own}.items()]
        places = [login, run.topic, run.output, str(run.state), _BATCH]
        return [sys.executable, str(SCRIPTS / "spark_jobs.py"), run.job, *places, *settings]
