"""The servers that answer queries on the executors of a cluster: a process beside each, which a job there starts.

What such a server does is in ``weir.pipelines.queries.server``. It is apart from the workers: these come and go, and a
process may open an LMDB environment only once.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

import msgspec
from pyspark import SparkContext

from weir.infra.control.rows import QueryServerRow
from weir.infra.process import start_ticks
from weir.infra.spark.executors import Executor, executor_process
from weir.pipelines.queries.started import Ready, ServerSettings
from weir.pipelines.spark.background import bound, collect, first_line
from weir.pipelines.spark.rounds import Rounds
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings

log = logging.getLogger("weir.driver")

POOL = "queries"
PROCESS = "weir.pipelines.queries.server"
LOOK_EVERY_S = 2.0
"""How often it is looked for executors that have joined, and whether each server is there."""
PAUSE_S = 30.0
"""How long an executor is left alone on which none has started."""
_READY = msgspec.json.Decoder(Ready)
LOOK_LIMIT_S, START_LIMIT_S, END_LIMIT_S = 1.0, 60.0, 1.0


class QueryServerError(Exception):
    """The server of an executor did not start; the text says why, and reaches the driver's log alone."""


def run_server(
    settings: WorkerSettings, executor: str, host: str, at: str, first_port: int, token: str, rows: Iterable[object]
) -> Iterator[QueryServerRow]:
    """Inside a Spark task: start the server of ``executor``, which outlives the worker and ends with the executor.

    Raises:
        QueryServerError: It does not start, or this is another executor.
    """
    list(rows)
    settings, process = settings.here(), executor_process()
    if process is None or process[0] != executor:
        raise QueryServerError(f"executor {executor} is lost")
    told = ServerSettings(
        reference=settings.reference,
        names=dict(settings.names),
        topics=settings.topics,
        application_folder=settings.tasks.application_folder,
        state_folder=settings.tasks.state_folder,
        host=at or host,
        first_port=first_port,
        token=token,
        process=process[1],
        process_start=start_ticks(process[1]),
    )
    server = subprocess.Popen(
        [sys.executable, "-m", PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # PySpark's daemon hangs up on its own
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server.stdout:
        with suppress(BrokenPipeError), server.stdin:  # it has ended already
            server.stdin.write(msgspec.json.encode(told) + b"\n")
        has_answered, _, _ = select.select([server.stdout], [], [], START_LIMIT_S)
        line = server.stdout.readline() if has_answered else b""
    if not line:
        server.kill()
        raise QueryServerError(f"it has ended with code {server.wait()}, and the executor's stderr says why")
    ready = _READY.decode(line)
    yield QueryServerRow(
        executor=executor, host=host, port=ready.port, token=token, machine=ready.machine, folder=ready.folder
    )


class QueryServers:
    """Has a server on each executor, and tells where they are; ``weir.pipelines.spark.parts.QueryExecutor``."""

    def __init__(
        self,
        spark_context: SparkContext,
        settings: WorkerSettings,
        slots: SlotPool,
        tell: Callable[[Sequence[QueryServerRow]], None],
        *,
        at: str,
        first_port: int,
    ) -> None:
        """``at`` is the address to answer at, "" for that by which Spark knows an executor."""
        self._context, self._settings, self._slots, self._tell = spark_context, settings, slots, tell
        self._at, self._first_port = at, first_port
        self._threads = ThreadPoolExecutor(thread_name_prefix=POOL)
        self._starting: dict[str, Future[list[QueryServerRow]]] = {}
        self._servers: dict[str, QueryServerRow] = {}
        self._looks: dict[str, Future[bool]] = {}
        self._rounds = Rounds(slots, LOOK_EVERY_S)

    def keep(self) -> None:
        """Start those that are not there; it looks now and then, however often it is called."""
        if not self._rounds.begins():
            return
        self._take_up()
        there = self._slots.executors()
        self._servers = {executor: server for executor, server in self._servers.items() if executor in there}
        for home in self._rounds.executors({*self._servers, *self._starting}):
            self._start(home)
        for executor, server in self._servers.items():
            if executor not in self._looks:
                self._looks[executor] = self._threads.submit(_is_gone, server)
        self._tell(list(self._servers.values()))

    def close(self) -> None:
        """Have the servers end."""
        for start in self._starting.values():
            start.cancel()
        wait([self._threads.submit(_end, server) for server in self._servers.values()], END_LIMIT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, home: Executor) -> None:
        work = partial(
            run_server, self._settings, home.id, home.host, self._at, self._first_port, secrets.token_urlsafe(32)
        )
        self._starting[home.id] = self._threads.submit(collect, bound(self._context, work, home), POOL)

    def _take_up(self) -> None:
        for executor in [executor for executor, start in self._starting.items() if start.done()]:
            start = self._starting.pop(executor)
            if (error := start.exception()) is not None:
                self._rounds.leave_alone(executor, PAUSE_S)
                log.warning("executor %s answers no queries: %s", executor, first_line(error))
                continue
            (server,) = start.result()
            self._servers[executor] = server
            log.info("executor %s answers queries at %s:%s", executor, server.host, server.port)
        for executor in [executor for executor, look in self._looks.items() if look.done()]:
            if self._looks.pop(executor).result() and self._servers.pop(executor, None) is not None:
                log.warning("executor %s answers no queries any more; its server begins again", executor)


def _is_gone(server: QueryServerRow) -> bool:
    """Whether nobody listens where a server was; one that cannot be reached from here may be there."""
    try:
        socket.create_connection((server.host, server.port), LOOK_LIMIT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _end(server: QueryServerRow) -> None:
    from weir.pipelines.queries.remote import RemoteStores

    RemoteStores(server.executor, server.host, server.port, server.token).end()
