"""What runs inside a Spark Python worker: a slot's tasks, one after another, with caches kept between epochs.

A new worker rebuilds the caches (the topology, consumers, store environments); nothing depends on them.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Self

from weir.infra.environment import rack_here, state_dir_here
from weir.infra.kafka.reader import PartitionReader
from weir.infra.spark.executors import executor_id
from weir.pipelines.application import Application, load_application, load_step_hook
from weir.pipelines.backfill.files import SliceReader
from weir.pipelines.backfill.kept_topics import KeptReader
from weir.pipelines.backfill.shadow import shadow_application
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.spark.program import require_same
from weir.pipelines.spark.signs import Asks, Signs
from weir.pipelines.tasks.epoch import DriverGoneError, EpochRunner, NotWantedError, TaskSettings
from weir.pipelines.tasks.plan import OffsetRange, Receipt, Renewal, TaskPlan
from weir.state.storage.places import folder_at
from weir.state.types import StateId, TaskId


def weir_version() -> str:
    """Of the Weir that is installed here."""
    return version("weir-streams")


class OtherVersionError(Exception):
    """An executor has another Weir than the driver."""

    def __init__(self, wanted: str, installed: str) -> None:
        super().__init__(wanted, installed)
        self.wanted, self.installed = wanted, installed

    def __str__(self) -> str:
        return (
            f"the driver is of Weir {self.wanted}, but {self.installed} is installed on {socket.gethostname()}, where "
            "an executor runs; install the same version on all hosts"
        )


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What a worker needs to run any task of an application. Plain values: it travels with every job."""

    reference: str
    """``MODULE:APP``, imported by the worker."""
    tasks: TaskSettings
    kafka: Mapping[str, object] = field(repr=False)
    """Client properties, secrets included: never printed."""
    slices: str | None = None
    """The folder of what is read instead of topics (``weir.pipelines.backfill.files``)."""
    schema_registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the registry's client, secrets included."""
    on_step: str | None = None
    """``MODULE:FUNCTION`` that is called with the name of each step; fault tests kill the process there."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The names of stores and edges that the commits know by others than the program's (``Topology.names``)."""
    topics: tuple[str, ...] = ()
    """What the program's patterns stand for (``Topology.read``)."""
    backfill: str = ""
    """The backfill that runs it; "" for the application itself."""
    is_on_cluster: bool = False
    """Whether it may run on another host than the driver, with local state in a folder of its own."""
    version: str = weir_version()
    """Of the driver's Weir."""
    program: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Hashes of the driver's program (``weir.pipelines.spark.program``); none on a single host."""

    def application(self) -> Application:
        """The application, imported here.

        Raises:
            OtherModuleError: It is another one than the driver's.
        """
        application = load_application(self.reference).under(self.names, self.topics)
        require_same(self.reference, self.program)
        return shadow_application(application, self.backfill) if self.backfill else application

    def here(self) -> Self:
        """The same with the state folder of this host, which its ``WEIR_DIR`` names.

        Raises:
            OtherVersionError: Another Weir is installed here than where the driver runs.
        """
        if not self.is_on_cluster:
            return self
        if (installed := weir_version()) != self.version:
            raise OtherVersionError(self.version, installed)
        state_folder = state_dir_here() / Path(self.tasks.state_folder).name
        return replace(self, tasks=replace(self.tasks, state_folder=str(state_folder)), is_on_cluster=False)


@dataclass(frozen=True, kw_only=True)
class SettleRequest:
    """Asks an idle task to drop its undo log, since its current state is committed; ``close`` is for a clean stop."""

    task: TaskId
    instance: str
    generation: int
    committed: StateId
    close: bool


@dataclass(frozen=True, kw_only=True)
class CopyRequest:
    """Asks for an executor's copies of global tables to reach the end of each range, for a driver's generation."""

    ranges: tuple[OffsetRange, ...]
    generation: int


@dataclass(frozen=True)
class Failure:
    """Sent in place of the answers that are still due."""

    reason: str


@dataclass
class Worker:
    """The caches of one worker process for one application."""

    settings: WorkerSettings
    readers: dict[tuple[str, int], PartitionReader | SliceReader | KeptReader] = field(default_factory=dict)
    renewal: Callable[[TaskPlan], Renewal | None] = lambda plan: None
    """Asks the driver, if the task must ask before it writes."""

    def __post_init__(self) -> None:
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS, 50, 50)
        application = self.settings.application()
        self.topics = {
            sub_topology.index: [source.topic for source in sub_topology.sources]
            for sub_topology in application.topology.sub_topologies
        }
        self.topics_with_headers = {
            source.topic
            for sub_topology in application.topology.sub_topologies
            for source in sub_topology.sources
            if source.has_headers
        }
        self.kept = {table.source.topic for table in application.topology.global_tables if self.settings.backfill}
        """The topics of which a backfill reads what was kept."""
        connect_serdes(application.topology.serdes(), self.settings.schema_registry)
        self.sampling = None
        if self.settings.tasks.is_profiled:
            from weir.pipelines.spark.flame_graph import Sampling

            self.sampling = Sampling()
        self.epochs = EpochRunner(
            application.topology,
            self.settings.tasks,
            self.reader,
            load_step_hook(self.settings.on_step),
            application.error_handling,
            lambda plan: self.renewal(plan),
        )

    def reader(self, topic: str, partition: int) -> PartitionReader | SliceReader | KeptReader:
        found = self.readers.get((topic, partition))
        if found is None:
            found = self.readers[topic, partition] = self._new_reader(topic, partition)
        return found

    def _new_reader(self, topic: str, partition: int) -> PartitionReader | SliceReader | KeptReader:
        if topic in self.kept:
            return KeptReader(folder_at(self.settings.tasks.application_folder), topic, partition)
        if self.settings.slices is not None:
            return SliceReader(Path(self.settings.slices), topic, partition)
        with_headers = topic in self.topics_with_headers
        return PartitionReader(self.settings.kafka, topic, partition, with_headers=with_headers)

    def fetch_ahead(self, plans: Sequence[TaskPlan]) -> None:
        """Have what ``plans`` read first fetched in the background."""
        self.epochs.wait_for_readers()
        for wanted in islice((each for plan in plans for each in plan.ranges), AHEAD):
            reader = self.reader(wanted.topic, wanted.partition)
            if isinstance(reader, PartitionReader):
                reader.fetch_ahead(wanted.start)

    def warm_up(self, task: TaskId) -> None:
        """Connect the consumers of ``task``."""
        for topic in self.topics[task.sub_topology]:
            self.reader(topic, task.partition).connect()

    def settle(self, request: SettleRequest) -> tuple[TaskId, bool]:
        """Answer ``request``; closing also gives the consumers back."""
        if request.close:
            self.close()
        return request.task, self.epochs.settle(
            request.task,
            request.instance,
            generation=request.generation,
            committed=request.committed,
            close=request.close,
        )

    def leave(self, task: TaskId) -> None:
        """Close the store and the consumers of ``task``, which runs in another slot from now on."""
        self.epochs.leave(task)
        for topic in self.topics[task.sub_topology]:
            if (reader := self.readers.pop((topic, task.partition), None)) is not None:
                reader.close()

    def rest(self) -> bool:
        """Have consumers that are at the end of their partitions ask for no more until they are needed; whether all
        do."""
        self.epochs.wait_for_readers()
        self.epochs.rest()
        return all([reader.rest() for reader in self.readers.values() if isinstance(reader, PartitionReader)])

    def close(self) -> None:
        """Give the consumers back; new ones are made when they are needed."""
        self.epochs.wait_for_readers()
        for reader in self.readers.values():
            reader.close()
        self.readers.clear()


REST_AFTER_S = 1.0
"""A worker that has not been asked for anything for so long has its consumers rest."""
AHEAD = 16
"""Topic partitions that are fetched ahead of the plans that read them, where not all fetch all the time."""
GC_ALLOCATIONS = 50_000
"""Allocations between garbage collections. With Python's 700 the objects of an epoch are walked hundreds of times; that
cost 30 % of reading when each record was an object (1.43 against 1.02 µs); reference counting frees them anyway."""

_workers: list[tuple[WorkerSettings, Worker]] = []
"""At most one, with the settings that it was asked for with."""


def worker_for(settings: WorkerSettings) -> Worker:
    """This process's worker; a new one when the settings differ, including those of the brokers."""
    if not _workers or _workers[0][0] != settings:
        for _, worker in _workers:
            worker.close()
        _workers[:] = [(settings, Worker(settings.here()))]
    return _workers[0][1]


def run_warm_up(settings: WorkerSettings, tasks: Sequence[TaskId]) -> Iterator[TaskId]:
    """Make a slot ready for its tasks, so that their first epoch takes no longer than others."""
    worker = worker_for(settings)
    for task in tasks:
        worker.warm_up(task)
        yield task


def run_plans(settings: WorkerSettings, plans: Sequence[TaskPlan]) -> Iterator[Receipt]:
    """One slot's share of an epoch."""
    worker = worker_for(settings)
    for number, plan in enumerate(plans):
        worker.fetch_ahead(plans[number : number + AHEAD])
        with nullcontext() if worker.sampling is None else worker.sampling.sampled():
            receipt = worker.epochs.run(plan)
        yield receipt


def run_samples(settings: WorkerSettings, slots: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What was sampled in a profiled run, for the one slot of ``slots`` that this process is."""
    sampling = worker_for(settings).sampling
    for _ in slots:
        yield {} if sampling is None else sampling.result()


def run_settles(settings: WorkerSettings, requests: Sequence[SettleRequest]) -> Iterator[tuple[TaskId, bool]]:
    """One slot's share of a settling job."""
    return map(worker_for(settings).settle, requests)


def run_copies(settings: WorkerSettings, requests: Sequence[CopyRequest]) -> Iterator[bool]:
    """Have copies of global tables brought on; whether they could be."""
    worker = worker_for(settings)
    for request in requests:
        yield worker.epochs.bring_on(request.ranges, request.generation)


def run_departures(settings: WorkerSettings, tasks: Sequence[TaskId]) -> Iterator[TaskId]:
    """Have a slot close what it has open for tasks that have moved to another one."""
    for task in tasks:
        worker_for(settings).leave(task)
        yield task


def serve(
    settings: WorkerSettings, slot: int, address: tuple[str, int], key: bytes, rows: Iterable[object]
) -> Iterator[object]:
    """The Spark task of ``slot``: answer what the driver at ``address`` asks, until it closes the connection.

    ``rows`` is drained because PySpark ends a worker that leaves input unread.
    """
    list(rows)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # PySpark lets it through, and the driver ends the worker
    worker = worker_for(settings)
    with Client(address, authkey=key) as driver:
        send_at_once(driver)
        sending = threading.Lock()

        def send(message: object) -> None:
            with sending:
                driver.send(message)

        send((slot, executor_id(), rack_here()))
        with closing(Signs(send, worker.epochs.spare)) as signs:

            def renewal(plan: TaskPlan) -> Renewal | None:
                if not signs.must_ask():
                    return None
                try:
                    worker.epochs.spare()  # a commit that waits may be long, too
                    send(Asks(plan.task))
                    renewed: Renewal | None = driver.recv()
                except (EOFError, ConnectionError) as error:
                    raise DriverGoneError from error
                if renewed is None:
                    raise NotWantedError
                return renewed

            worker.renewal = renewal
            while True:
                try:
                    is_at_rest = False
                    while not driver.poll(None if is_at_rest else REST_AFTER_S):
                        is_at_rest = worker.rest()
                    work, items = driver.recv()
                except (EOFError, ConnectionError):  # the driver has closed, or has another worker for this slot
                    return iter(())
                signs.begin(asks=any(isinstance(item, TaskPlan) and item.asks for item in items))
                try:
                    answers = iter(work(settings, items))
                    for item in items:
                        with signs.at_work(str(getattr(item, "task", item))):
                            answer = next(answers)
                        send(answer)
                except DriverGoneError:
                    return iter(())
                except Exception as error:
                    send(Failure(f"{type(error).__name__}: {error}"))
                    raise  # Spark starts a new worker, without these caches


def send_at_once(connection: Connection) -> None:
    """Have ``connection`` wait for no acknowledgement between the parts of a message, which would take 40 ms."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
