"""The executors of a Spark cluster, and jobs of one row that run on a certain one.

PySpark knows of no executors: who is there is asked from the driver's block manager in Java, and a row goes where an
RDD of Scala's ``makeRDD`` prefers it to be. In local mode there is none but the driver itself, with the id ``DRIVER``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import BatchedSerializer, CPickleSerializer

from weir.infra.spark import DRIVER

CORES_PER_SLOT = 3
"""Of an executor: for a slot itself, for restores and snapshots, and for a slot of an executor that is lost."""
LOOK_EVERY_S = 0.1
_ID_FLAG = b"--executor-id"
"""How every cluster manager's Java process of an executor is told its id."""


@dataclass(frozen=True, order=True)
class Executor:
    """An executor that has registered and was not lost."""

    id: str
    host: str
    is_leaving: bool = field(default=False, compare=False)
    """Whether Spark decommissions it: it gets no more tasks, and ends once it has none."""


class NoExecutorError(Exception):
    """The cluster has given the run no executor."""

    def __init__(self, master: str, limit_s: float) -> None:
        super().__init__(master, limit_s)
        self.master, self.limit_s = master, limit_s

    def __str__(self) -> str:
        return (
            f"Spark at {self.master} has given no executor within {self.limit_s:g} s: its workers are not there, or "
            "have no cores or memory left, or executors cannot reach the driver at driver_host; its own page says which"
        )


def most_slots_of_executor(context: SparkContext) -> int:
    """How many slots an executor of a cluster has cores for, one at least."""
    return max(1, int(context.getConf().get("spark.executor.cores") or 0) // CORES_PER_SLOT)


def executors(context: SparkContext) -> list[Executor]:
    """Those that are there now, by id; none in local mode."""
    spark = context._jsc.sc()
    known, scheduler = spark.env().blockManager().master().getMemoryStatus().keysIterator(), spark.taskScheduler()
    found = []
    while known.hasNext():
        each = known.next()
        if not each.isDriver():
            id, host = str(each.executorId()), str(each.host())
            found.append(Executor(id=id, host=host, is_leaving=scheduler.isExecutorDecommissioned(id)))
    return sorted(found, key=lambda executor: (len(executor.id), executor.id))


def executors_once_there(
    context: SparkContext, count: int, limit_s: float, goes_on: Callable[[], bool] = lambda: True
) -> list[Executor]:
    """As soon as there are ``count`` that are not leaving, or those that there are after ``limit_s``; none if it is not
    to go on.

    Raises:
        NoExecutorError: There is none by then.
    """
    until_s = time.monotonic() + limit_s
    while goes_on():
        found = [each for each in executors(context) if not each.is_leaving]
        if len(found) >= count or (found and time.monotonic() > until_s):
            return found
        if time.monotonic() > until_s:
            raise NoExecutorError(context.master or "", limit_s)
        time.sleep(LOOK_EVERY_S)
    return []


def row_at(context: SparkContext, executor: Executor | None) -> RDD[int]:
    """One row, whose job prefers to run on ``executor``: it runs elsewhere once that is lost. Anywhere if None."""
    if executor is None:
        return context.parallelize([0], 1)
    jvm: Any = context._jvm
    places = jvm.java.util.ArrayList()
    places.add(f"executor_{executor.host}_{executor.id}")
    serializer = BatchedSerializer(CPickleSerializer())
    rows = jvm.java.util.ArrayList()
    rows.add(jvm.scala.Tuple2(bytearray(serializer.serializer.dumps([0])), _sequence(jvm, places)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    placed = context._jsc.sc().makeRDD(_sequence(jvm, rows), tag)
    return RDD(placed.toJavaRDD(), context, serializer)


def _sequence(jvm: Any, items: Any) -> Any:
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq()


def executor_id() -> str:
    """The executor that the worker runs on that asks this: told by the command line of the Java process above it."""
    found = executor_process()
    return DRIVER if found is None else found[0]


def executor_process() -> tuple[str, int] | None:
    """The same with the pid of that process; None in local mode."""
    pid = os.getpid()
    while pid > 1:
        words = _read(pid, "cmdline").split(b"\0")
        if _ID_FLAG in words[:-1]:
            return words[words.index(_ID_FLAG) + 1].decode(), pid
        pid = int(_read(pid, "stat").rpartition(b")")[2].split()[1])
    return None


def _read(pid: int, name: str) -> bytes:
    return Path("/proc", str(pid), name).read_bytes()
