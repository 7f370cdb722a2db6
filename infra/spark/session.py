"""Spark: a context whose slots run epochs, and a session that reads Delta tables by SQL.

Without a master, both are local and use only the loopback. They write nothing outside the settings' folder except a
short-lived folder for sockets (paths of Unix sockets are limited to 108 bytes), print nothing, and end with the Python
process that started them, even after ``kill -9``: the Java process notices the end of its standard input, its workers
the end of theirs. Where ``spark-submit`` has started Java, and that this process, they end together, too.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from weir.infra.jars import jars
from weir.infra.java import MissingJavaError, java_executable, shared_classes
from weir.infra.settings import Settings, environment_value, is_secret
from weir.infra.spark import archives
from weir.infra.spark.executors import CORES_PER_SLOT
from weir.infra.spark.java_process import JavaEndedError, JavaProcess

DRIVER_MEMORY = EXECUTOR_MEMORY = "700m"
TASK_TRIES = 4
ON_S3 = "s3://"
"""How the URIs of object stores begin that a session can read."""
JAVA_END_LIMIT_S = 4.0
"""How long a context may take to stop, with its Java process; then that is killed. A run that is told to stop has ten
seconds for everything."""
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
_GATEWAY_SECRET = "PYSPARK_GATEWAY_SECRET"
"""By these variables ``spark-submit`` tells a program where its Java process is."""
_SOCKETS, _SOCKETS_PREFIX = "spark.python.unix.domain.socket.dir", "weir-sockets-"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_LOCK = "owner.lock"
_LONGEST_BASE_BYTES = 40
"""A socket's path has at most 107 bytes; the folder's own name and PySpark's name for the socket need the rest."""
_QUICK_JAVA = ("-XX:TieredStopAtLevel=1",)
_SMALL_JAVA = (*_QUICK_JAVA, "-Xmn64m")
"""For a Java process that schedules but computes nothing: after every start the second compiler would take 5 s of the
slots' cores (12.6 instead of 6.8 s of CPU over a run), and a large young generation 80 MB."""
_SHORT_JAVA = (*_QUICK_JAVA, "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""For the Java process that only composes the other's command line: 0.25 s instead of 0.43."""
WORKER_VARIABLES = {
    "POLARS_MAX_THREADS": "1",
    # Arenas of many threads, and memory that allocators keep for later, would hold on to what the largest epoch needed.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:0,narenas:1",  # polars allocates by jemalloc
}
"""Variables of the environment of workers."""
_LOG4J = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.1
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
"""


_ahead: _Java | None = None
"""What ``java_ahead`` has started, until ``slot_context`` takes it."""


class SparkStartError(Exception):
    """Spark's Java process has ended before it was ready."""

    def __init__(self, log: Path, last_line: str) -> None:
        super().__init__(log, last_line)
        self.log, self.last_line = log, last_line

    def __str__(self) -> str:
        said = f"its last words: {self.last_line!r}" if self.last_line else "it said nothing"
        return (
            f"Spark did not start: its Java process ended before it was ready ({said}; {self.log} has all of them); "
            "start again once the cause is gone"
        )


def slot_context(settings: Settings, application_id: str) -> SparkContext:
    """The context that runs an application's epochs: one thread per slot; each task is tried four times.

    As many threads again are for restores and snapshots, which run beside the epochs in separate FAIR pools and never
    occupy a slot (PROTOCOL 27); where there are fewer slots than cores, there is also one for each that may be added.
    The Java process takes about a second and a half to start; each Python process has one, so stop it
    (``stop_context``) before starting the next. Nothing of Spark SQL is loaded in Java, which would cost another second
    at the start and one at the end.

    Raises:
        MissingJavaError: No Java.
        SparkStartError: Java has ended before it was ready.
    """
    global _ahead
    ahead, _ahead = _ahead, None
    if ahead is None:
        conf = _slots_conf(settings)
        gateway = _gateway(conf, settings)
    else:
        conf, gateway = ahead.conf, ahead.gateway()
        if _WORKER_PATH not in settings.spark:
            conf.set(_WORKER_PATH, _worker_path())  # the program, which has been loaded since, may have added to it
    _without_numpy(gateway)
    return _context(conf.setAppName(f"weir-{application_id}"), gateway)


def _without_numpy(gateway: JavaGateway) -> None:
    """Pass no numbers or arrays of NumPy to Java: to look whether one is passed, PySpark loads pandas and pyarrow."""
    client = gateway._gateway_client
    client.converters = [
        each for each in client.converters if not isinstance(each, NumpyScalarConverter | NumpyArrayConverter)
    ]


def _slots_conf(settings: Settings) -> SparkConf:
    cores = len(os.sched_getaffinity(0))
    place = (
        _on_cluster(settings)
        if settings.master
        else {"spark.master": f"local[{settings.slots + max(settings.slots, cores)},{TASK_TRIES}]"}
    )
    return _conf(
        settings,
        {
            **place,
            "spark.scheduler.mode": "FAIR",
            "spark.speculation": "false",
            # Workers and Java talk by files of the sockets' folder instead of ports, which took 76 ms a job, not 32.
            "spark.python.unix.domain.socket.enabled": "true",
            # A cancelled task must not live on beside its successor (PROTOCOL 6).
            "spark.python.task.killTimeout": "0",
            "spark.python.worker.reuse": "true",
        },
        java_options=_SMALL_JAVA,
        python=archives.PYTHON if settings.master and settings.archive else sys.executable,
    )


@contextmanager
def java_ahead(settings: Settings) -> Iterator[None]:
    """Start the Java process of the ``slot_context`` that the block will ask for, with the same settings, while the
    block loads what else it needs. If the block asks for none, the process is ended after it. Starts nothing for a
    cluster, or in a process that has a context or a Java process already."""
    global _ahead
    if SparkContext._active_spark_context is not None or settings.master or is_submitted():
        yield
        return
    with suppress(MissingJavaError, OSError):  # ``slot_context`` says so
        conf = _slots_conf(settings)
        _ahead = _Java(conf, settings)
    try:
        yield
    finally:
        unused, _ahead = _ahead, None
        if unused is not None:
            unused.end()


def is_submitted() -> bool:
    """Whether ``spark-submit`` has started this process, as in Spark's cluster mode: with a Java process that there is
    before this one, and ends after it."""
    return environment_value(_GATEWAY_PORT) is not None


def driver_host(settings: Settings) -> str:
    """The address at which executors reach this process."""
    own = socket.gethostbyname(socket.gethostname()) if settings.master and is_submitted() else "127.0.0.1"
    return settings.driver_host or own


def cores_of_executor(settings: Settings) -> int:
    """How many of Spark's cores an executor of a cluster has: one for each of its slots, and as many each for restores
    and snapshots, and for the slots of one that is lost."""
    return CORES_PER_SLOT * -(-settings.slots // settings.executors)


def _on_cluster(settings: Settings) -> dict[str, str]:
    """Executors, and jobs that wait for the one that they belong to, since its state is there, and go elsewhere once
    that is gone."""
    cores = cores_of_executor(settings)
    packed = {"spark.archives": f"{settings.archive}#{archives.NAME}", _WORKER_PATH: ""}
    return {
        **(packed if settings.archive else {}),
        "spark.master": settings.master,
        "spark.executor.cores": str(cores),
        "spark.cores.max": str(cores * settings.executors),
        "spark.executor.instances": str(settings.executors),
        "spark.task.maxFailures": str(TASK_TRIES),
        "spark.locality.wait": "1h",
        "spark.decommission.enabled": "true",
        # An executor with a slot is never idle; but Spark would not put another one in the place of one that is lost.
        "spark.dynamicAllocation.minExecutors": str(settings.executors),
        "spark.executor.heartbeatInterval": "5s",
        "spark.network.timeoutInterval": "5s",
        "spark.network.timeout": "30s",  # after that an executor that gives no sign is lost, not after two minutes
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.driver.host": driver_host(settings),
        "spark.driver.bindAddress": driver_host(settings),
    }


def sql_session(settings: Settings, name: str = "sql", *, java_options: Sequence[str] = ()) -> SparkSession:
    """A session with Delta's jars and extensions, for reading tables by SQL: for queries of seconds, not minutes.

    If the warehouse is on S3, it reads there, with the login and endpoint of the environment.

    Raises:
        JarsError, MissingJavaError: Set-up is incomplete; the text names the command.
        SparkStartError: Java has ended before it was ready.
    """
    is_on_s3 = str(settings.warehouse).startswith(ON_S3)
    conf = _conf(
        settings,
        {
            "spark.master": f"local[{settings.slots}]",
            "spark.jars": ",".join(map(str, [*jars("delta"), *(jars("s3") if is_on_s3 else ())])),
            **(_s3_properties() if is_on_s3 else {}),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # The default of 50 costs 15 s per query on a laptop.
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.shuffle.partitions": str(settings.slots),
        },
        java_options=(*_QUICK_JAVA, *java_options),
    )
    return SparkSession(_context(conf.setAppName(f"weir-{name}"), _gateway(conf, settings)))


def _s3_properties() -> dict[str, str]:
    """Hadoop's client finds the login in the environment by itself, and nothing else."""
    endpoint = environment_value("AWS_ENDPOINT_URL") or environment_value("AWS_ENDPOINT")
    region = environment_value("AWS_REGION") or environment_value("AWS_DEFAULT_REGION")
    return {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        **(
            {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
            if endpoint
            else {}
        ),
        **({"spark.hadoop.fs.s3a.endpoint.region": region} if region else {}),
    }


def stop_context(context: SparkContext) -> None:
    """Stop a context with its Java process and Python workers, so that another can be started."""
    _end_java(context.stop)


def stop_session(session: SparkSession) -> None:
    """Stop a session with its context, like ``stop_context``."""
    _end_java(session.stop)


def _end_java(stop: Callable[[], None] = lambda: None) -> None:
    """End the Java process that PySpark keeps for the next session: it has the old session's options. First ``stop``
    what runs in it."""
    if (gateway := SparkContext._gateway) is None:
        return
    process = gateway.proc
    if process is None:
        stop()
        return
    limit = threading.Timer(JAVA_END_LIMIT_S, process.kill)
    limit.start()
    try:
        with suppress(Py4JError, OSError):  # it has ended already, or is killed meanwhile
            stop()
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        process.stdin.close()
        process.wait()
    finally:
        limit.cancel()


def _conf(
    settings: Settings,
    properties: Mapping[str, str],
    java_options: Sequence[str] = (),
    python: str = sys.executable,
) -> SparkConf:
    """The configuration of a context; also sets the environment variables that Java is to inherit."""
    if SparkContext._active_spark_context is not None:
        raise RuntimeError("this process already has a Spark context; stop it before starting another")
    _end_java()
    java_executable()
    for folder in (settings.tmp, settings.logs, settings.dir / "spark"):
        folder.mkdir(parents=True, exist_ok=True)
    sockets = _sockets_folder()
    logging = settings.tmp / "log4j2.properties"
    logging.write_text(_LOG4J.format(log=settings.logs / "spark.log"), encoding="utf-8")
    os.environ.update(
        {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": driver_host(settings),
            "SPARK_LOCAL_DIRS": str(settings.tmp),
            "SPARK_LAUNCHER_OPTS": " ".join(_SHORT_JAVA),
        }
    )
    options = " ".join(
        f'"{option}"'  # paths may have spaces
        for option in (
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            f"-Djava.io.tmpdir={sockets}",
            f"-Dderby.system.home={settings.dir / 'spark'}",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            *java_options,
            *shared_classes("spark"),
        )
    )
    return SparkConf().setAll(
        [
            ("spark.driver.memory", DRIVER_MEMORY),
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            ("spark.driver.extraJavaOptions", options),
            *([("spark.authenticate", "true")] if not settings.master else ()),  # makes a secret, in memory
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.log.level", "ERROR"),
            ("spark.local.dir", str(settings.tmp)),
            *([(_SOCKETS, str(sockets))] if not settings.master else ()),
            ("spark.sql.warehouse.dir", str(settings.dir / "spark" / "warehouse")),
            ("spark.sql.session.timeZone", "UTC"),
            *((f"spark.executorEnv.{name}", value) for name, value in WORKER_VARIABLES.items()),
            (_WORKER_PATH, _worker_path()),
            *properties.items(),
            *settings.spark.items(),
        ]
    )


class _Java:
    """A Java process for a context with ``conf``, and what it says."""

    def __init__(self, conf: SparkConf, settings: Settings) -> None:
        self.conf, self._log = conf, settings.logs / "spark.out"
        with open(self._log, "ab") as output:
            self._begin = output.tell()
            place = Path(str(conf.get(_SOCKETS)), "connection")
            self._process = JavaProcess(dict(_without_secrets(conf).getAll()), output.fileno(), place)

    def gateway(self) -> JavaGateway:
        """Once it is ready.

        Raises:
            SparkStartError: It has ended before.
        """
        try:
            port, secret = self._process.connection()
        except JavaEndedError as error:
            raise _start_error(self._log, self._begin) from error
        os.environ.update({_GATEWAY_PORT: str(port), _GATEWAY_SECRET: secret})
        try:
            gateway = launch_gateway()
        finally:
            del os.environ[_GATEWAY_PORT], os.environ[_GATEWAY_SECRET]
        gateway.proc = self._process.process
        return gateway

    def end(self) -> None:
        self._process.end()


def _context(conf: SparkConf, gateway: JavaGateway) -> SparkContext:
    interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext(gateway=gateway, conf=conf)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # PySpark installs its own, which cancels the running epoch
    return context


def _gateway(conf: SparkConf, settings: Settings) -> JavaGateway:
    """Start the Java process, unless ``spark-submit`` has. On a cluster its scripts do, as they read what its manager
    needs."""
    if not settings.master and not is_submitted():
        return _Java(conf, settings).gateway()
    log = settings.logs / "spark.out"
    with open(log, "ab") as output:
        begin = output.tell()
        try:
            return launch_gateway(
                _without_secrets(conf), {"stdout": output, "stderr": output, "start_new_session": True}
            )
        except PySparkRuntimeError as error:
            raise _start_error(log, begin) from error


def _start_error(log: Path, begin: int) -> SparkStartError:
    with open(log, "rb") as said:
        said.seek(begin)
        lines = said.read().decode("utf-8", "replace").split("\n")
    return SparkStartError(log, next((line for line in reversed(lines) if line.strip()), ""))


def _without_secrets(conf: SparkConf) -> SparkConf:
    """What may stand in Java's arguments, where every user of the machine can read it; the context gets the rest by the
    connection to Java."""
    return SparkConf(loadDefaults=False).setAll([each for each in conf.getAll() if not is_secret(each[0])])


def _worker_path() -> str:
    """The driver's import path without the environment's packages, for workers; includes the folder it runs in."""
    own = tuple({os.path.join(prefix, "") for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)})
    entries = (os.path.abspath(entry or os.getcwd()) for entry in ("", *sys.path))
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if not entry.startswith(own)))


def _sockets_folder() -> Path:
    """A fresh folder in the system's temporary folder, removed at exit; those of killed processes are removed, too.

    The lock file stays open for the life of the process; the kernel releases it however the process ends.
    """
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > _LONGEST_BASE_BYTES:
        base = Path("/tmp")
    for left in base.glob(f"{_SOCKETS_PREFIX}*"):
        _remove_unless_owned(left)
    folder = Path(tempfile.mkdtemp(prefix=_SOCKETS_PREFIX, dir=base))
    owner = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(owner, fcntl.LOCK_EX)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_unless_owned(folder: Path) -> None:
    try:
        with open(folder / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # owned, or not one of ours
        return
