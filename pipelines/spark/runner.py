"""Runs one generation of an application: takes the lease, checks what is committed, starts Spark, drives, cleans up.

The loop is ``weir.pipelines.spark.driver``; this module only puts the parts together and takes them apart again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext

from weir.infra.control.guard import DriverControl
from weir.infra.control.standby import control_once_free
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.arrivals import Arrivals
from weir.infra.settings import Settings
from weir.infra.spark.executors import Executor, executors_once_there
from weir.infra.spark.session import driver_host, slot_context, stop_context
from weir.pipelines.application import Application, load_application, load_step_hook
from weir.pipelines.publishing.checks import check_sinks
from weir.pipelines.publishing.process import PublishingSettings
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.spark.admission import (
    admit,
    committed_counts,
    require_commit_log,
    require_matches,
    require_topics_read,
)
from weir.pipelines.spark.afterwards import Afterwards
from weir.pipelines.spark.assignors import Assignors
from weir.pipelines.spark.brokers import ANSWER_LIMIT_S, RETRY_S, Brokers
from weir.pipelines.spark.cleanups import CleanUps
from weir.pipelines.spark.control import ControlPanel, lease
from weir.pipelines.spark.driver import TOPICS_EVERY_S, Driver, started_driver
from weir.pipelines.spark.errors import NoMatchingTopicError
from weir.pipelines.spark.garbage import short_collections
from weir.pipelines.spark.global_copies import GlobalCopies
from weir.pipelines.spark.mirror import offset_mirror
from weir.pipelines.spark.own_stores import feeding, followers
from weir.pipelines.spark.parts import READ_FROM_DISK, Control, Executors, Keeps, Listeners, RunSpec
from weir.pipelines.spark.placement import placed, slot_homes
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.profile import NOT_PROFILED
from weir.pipelines.spark.program import digests
from weir.pipelines.spark.progress import NEW_TOPICS, ROLLED_BACK, Progress, RunSummary
from weir.pipelines.spark.publishing import CAUGHT_UP_LIMIT_S, STOP_LIMIT_S, Publishers
from weir.pipelines.spark.query_servers import QueryServers
from weir.pipelines.spark.restore_jobs import RestoreJobs
from weir.pipelines.spark.slot_count import SlotCount
from weir.pipelines.spark.slots import LOOPBACK, SlotPool
from weir.pipelines.spark.snapshot_jobs import SnapshotJobs
from weir.pipelines.spark.standby_jobs import StandbyJobs
from weir.pipelines.spark.upserts import refreshing
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.run_metrics import MetricsLevel
from weir.state.commit.protocol import newest_commit
from weir.state.engine.environment import FREE_DISK_RESERVE_BYTES
from weir.state.engine.quarantine import QuarantineLimits
from weir.state.errors import DiskFullError
from weir.state.full_disk import DISK_FULL_WAIT_S, require_room
from weir.state.storage.places import folder_at, require_one_winner
from weir.state.types import TopicPartition

if TYPE_CHECKING:
    from weir.pipelines.spark.profiled_run import ProfiledRun

log = logging.getLogger("weir.driver")

QueryServersOf = Callable[[SlotPool], QueryServers]
EXECUTORS_LIMIT_S = 60.0
"""How long a run waits for the executors that it has asked its cluster for; then it begins with what is there."""
FIRST_ANSWER_LIMIT_S = 120.0
"""How long a run until caught up waits for brokers that have not answered yet; an endless run waits until stopped."""


def run(
    reference: str,
    settings: Settings,
    *,
    bootstrap_servers: str,
    until_caught_up: bool = False,
    take_over: bool = False,
    is_standby: bool = False,
    accept_state_loss: bool = False,
    accept_lost_records: bool = False,
    committed_partitions: bool = False,
    owner: str = "weir run",
    stop: Event | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_step: str | None = None,
    profile: Path | None = None,
    spark: SparkContext | None = None,
) -> RunSummary:
    """Run the application at ``reference`` (``MODULE:APP``) until ``stop`` is set or it has caught up.

    Blocks. ``stop`` ends it after the current epoch, with a commit. ``take_over`` starts although another driver
    holds the lease; the other one is fenced at its next commit. ``is_standby`` waits until nobody else drives the
    application, with Spark started unless it is a cluster's. ``accept_state_loss`` starts although another topology
    or partition count leaves stores empty, ``accept_lost_records`` although topics no longer hold what the
    positions belong to. With ``committed_partitions``, and until caught up only, partitions that no commit knows of
    topics that it knows are not read. ``owner`` is the name that the lease shows. ``on_step`` names a
    ``MODULE:FUNCTION`` that is called with the name of each step of the commit protocol, here and in the workers.
    ``profile`` is the folder into which it is written where the time goes (``weir.pipelines.spark.profiled_run``).
    ``spark`` lends a context that stays open afterwards; without it one is started and stopped.

    Raises:
        UnknownTopicError: Topics of the program do not exist.
        BrokerUnreachableError: With ``until_caught_up``, no broker answered within two minutes of the start.
        LeaseHeldError: Another driver runs the application; the text names it.
        TopologyChangedError, PartitionCountError: The committed state does not fit the program or its topics.
        KeysMovedError: Keys may have moved between the committed partitions.
        ConditionalPutError: The warehouse is on an object store that lets a second driver commit.
        CommitLogLostError: There is local state, or there are tables, but no commit log.
        SinkTableError: The table of a SQL sink does not take its rows.
        SinkAddressError: A SQL sink has no database.
        SinkHeaderError: A header of an HTTP sink is that of a variable that is not set.
        OffsetsLostError: A topic no longer holds what the positions belong to.
        BadRecordError, ExpectationViolatedError, TaskFailedError: A task cannot continue; earlier epochs are committed.
        FencedError: A newer driver has taken over.
    """
    application = load_application(reference)
    connect_serdes(application.topology.serdes(), settings.schema_registry)  # fails here as it would in the workers
    stop = stop or Event()
    with ExitStack() as stack:
        report = _reporting(settings, application, on_progress, stack)
        control: DriverControl | None
        if is_standby:
            if not settings.master:  # whose executors the other driver needs
                spark = spark or stack.enter_context(spark_context(settings, application))
            control = control_once_free(
                settings.control_database_url,
                application.id,
                owner=owner,
                stop=stop,
                say=lambda message: report(starting_report(application, message)),
            )
            if control is None:
                return _stopped_early(application)
        else:
            control = DriverControl(settings.control_database_url, application.id, owner=owner, take_over=take_over)
        stack.enter_context(lease(control, reference))
        generations = _Generations(
            application=application,
            reference=reference,
            settings=settings,
            bootstrap_servers=bootstrap_servers,
            control=control,
            stop=stop,
            report=report,
            stack=stack,
            until_caught_up=until_caught_up,
            accept_state_loss=accept_state_loss,
            accept_lost_records=accept_lost_records,
            committed_partitions=committed_partitions,
            on_step=on_step,
            profiled=None if profile is None else _profiled(profile, application, stack),
            spark=spark,
        )
        summary = generations.run()
        while summary.reason in (NEW_TOPICS, ROLLED_BACK):
            generations.accept_state_loss = generations.accept_lost_records = False  # they were about the start
            summary = summary.followed_by(generations.run())
        return summary


@dataclass(kw_only=True)
class _Generations:
    """The generations of one run: another one follows where there are topics to read that were not there before, or
    where one has ended without a commit."""

    application: Application
    reference: str
    settings: Settings
    bootstrap_servers: str
    control: DriverControl
    stop: Event
    report: Callable[[Progress], None]
    stack: ExitStack
    """Ends what they share when the run ends."""
    until_caught_up: bool
    accept_state_loss: bool
    accept_lost_records: bool
    committed_partitions: bool
    on_step: str | None
    profiled: ProfiledRun | None
    spark: SparkContext | None
    slot_count: SlotCount | None = None
    """How many slots the generation before was to have, which somebody may have changed."""

    def __post_init__(self) -> None:
        self._brokers = Brokers(self.settings, self.bootstrap_servers, self.application)
        self._tell_waiting: Callable[[str], None] = lambda reason: None

    def run(self) -> RunSummary:
        """One generation."""
        with ExitStack() as starting, ExitStack() as stack:
            self._tell_waiting = starting.enter_context(self.control.starting())
            settings, known = self.settings, self._topics()
            if known is None:
                return _stopped_early(self.application)
            self._tell_waiting("")
            # Both are checked again before and under the claim; Spark need not start for what is refused already.
            warehouse, state_folder = folder_at(settings.warehouse), settings.state_dir / self.application.id
            app_folder = warehouse / self.application.id
            require_one_winner(warehouse)
            require_commit_log(self.application, app_folder, state_folder)
            newest = newest_commit(warehouse, self.application.id)
            if not self.accept_lost_records:
                require_topics_read(self.application, newest, known)
            application = self.application.over(newest, known)
            counts = self._brokers.source_counts(application.topology, known)
            if self.committed_partitions:
                counts = committed_counts(application, newest, counts)
            admit(application, app_folder, newest, counts, self.accept_state_loss)
            check_sinks(application.topology.outside_sinks, settings.sql_url)
            wait = waiting_for_disk(self._wait, self.stop)
            if not has_room([settings.dir], f"application {application.id!r}", wait):
                return _stopped_early(application)
            self._tell_waiting("")
            self._say("starting Spark")
            executors = settings.executors if settings.master else 1
            counts_of_slots = self.slot_count or SlotCount(slots=settings.slots, executors=executors, planned=executors)
            arrivals = Arrivals({**settings.kafka, "bootstrap.servers": self.bootstrap_servers})
            stack.callback(arrivals.close)
            spec = RunSpec(
                application=application,
                source=self._brokers,
                source_counts=counts,
                warehouse=warehouse,
                state_folder=state_folder,
                limits=limits_of(settings, application),
                slots=counts_of_slots.slots,
                counts=counts_of_slots,
                wait_for_records=arrivals.wait,
                newest=newest,
                snapshot_rows=settings.snapshot_rows,
                assignors=Assignors.of(settings),
                keeps=kept_on_executors(settings) if settings.master else None,
                accept_state_loss=self.accept_state_loss,
                accept_lost_records=self.accept_lost_records,
                outbox_max_bytes=settings.outbox_max_bytes,
                metrics_level=MetricsLevel(settings.metrics_level),
                is_profiled=self.profiled is not None,
            )
            return self._drive(spec, starting, stack)

    def _topics(self) -> Mapping[str, int] | None:
        """All topics of the cluster, once there is one for each pattern; None when told to stop before."""
        limit_s = FIRST_ANSWER_LIMIT_S if self.until_caught_up else None
        while (known := self._brokers.topics_once_there(self.stop, self._wait, limit_s)) is not None:
            try:
                require_matches(self.application.over(None, known))
                return known
            except NoMatchingTopicError as error:
                if self.until_caught_up:
                    raise
                self._wait(f"{error}; looking again until stopped")
                self.stop.wait(TOPICS_EVERY_S)
        return None

    def _drive(self, spec: RunSpec, starting: ExitStack, stack: ExitStack) -> RunSummary:
        application, settings = spec.application, self.settings
        if self.spark is None:
            self.spark = self.stack.enter_context(spark_context(settings, application))
        kafka = {**settings.kafka, "bootstrap.servers": self.bootstrap_servers}
        worker = WorkerSettings(
            reference=self.reference,
            kafka=kafka,
            schema_registry=settings.schema_registry,
            on_step=self.on_step,
            tasks=spec.task_settings,
            names=application.topology.names,
            topics=application.topology.read,
            is_on_cluster=bool(settings.master),
            program=digests(self.reference) if settings.master else {},
        )
        homes = list[Executor]()
        if settings.master:
            self._say("waiting for executors")
            there = executors_once_there(
                self.spark, settings.executors, EXECUTORS_LIMIT_S, lambda: not self.stop.is_set()
            )
            if not there:
                return _stopped_early(application)
            if spec.counts is not None:
                spec = replace(spec, slots=spec.counts.at(len(there)))
            homes = slot_homes(there, spec.slots)
            spec = replace(spec, placement=placed(self.spark, worker, spec, homes))
        upserts, publishers = refreshing(application, folder_at(settings.warehouse) / application.id), Publishers()
        panel = ControlPanel(self.control)
        listeners = Listeners(
            control=panel,
            on_progress=self.report,
            on_commit=stack.enter_context(_afterwards(application, settings, self.bootstrap_servers, upserts)),
            publishing=publishers,
            profiling=self.profiled or NOT_PROFILED,
            wait_for_disk=waiting_for_disk(self._wait, self.stop),
            wait_for_brokers=waiting_for_brokers(self._wait, self.stop),
        )
        with (
            spark_driver(
                self.spark,
                worker,
                spec,
                listeners,
                homes,
                driver_host(settings),
                self._query_servers(worker, panel),
                None if self.profiled is None else self.profiled.collect,
            ) as driver,
            closing(publishers),
        ):
            starting.close()
            if application.topology.outside_sinks:
                publishers.start(
                    PublishingSettings(
                        driver=os.getpid(),
                        reference=self.reference,
                        warehouse=str(settings.warehouse),
                        kafka=kafka,
                        sql_url=settings.sql_url,
                        generation=driver.generation,
                        on_step=self.on_step,
                    )
                )
            for each in upserts:
                each(None)  # the claim has redone what a driver that died owed their updates
            sampled = nullcontext() if self.profiled is None else self.profiled.sampling.sampled()
            with panel.serving(), short_collections(), sampled:
                summary = driver.run(self.stop, until_caught_up=self.until_caught_up)
                self.slot_count = driver.slot_count
                limit_s = CAUGHT_UP_LIMIT_S if summary.reason == "caught_up" else STOP_LIMIT_S
                publishers.close(limit_s, self.stop, panel.tell_sinks)
            panel.report_sinks(publishers.states)
            waited_s = time.monotonic() - driver.last_commit_end_s if application.topology.outside_sinks else 0.0
            return replace(summary, publishing_s=waited_s if summary.commits else 0.0)

    def _query_servers(self, worker: WorkerSettings, panel: ControlPanel) -> QueryServersOf | None:
        """What has queries answered on a cluster."""
        context, settings = self.spark, self.settings
        if context is None or not settings.master:
            return None
        return lambda slots: QueryServers(
            context, worker, slots, panel.tell_query_servers, at=settings.query_host, first_port=settings.query_port
        )

    def _say(self, message: str) -> None:
        self.report(starting_report(self.application, message))

    def _wait(self, reason: str) -> None:
        """Say why the start waits, here and in the control database."""
        self._tell_waiting(reason)
        self._say(reason)


def has_room(folders: Sequence[Path], what: str, wait: Callable[[Exception], bool]) -> bool:
    """Wait while the disk of a folder has no room for what a start writes there; False when told to stop."""
    while True:
        try:
            for folder in folders:
                require_room(folder, what, FREE_DISK_RESERVE_BYTES)
            return True
        except DiskFullError as error:
            if not wait(error):
                return False


def waiting_for_disk(say: Callable[[str], None], stop: Event) -> Callable[[Exception], bool]:
    """What a start does while a disk is full, until ``stop``."""
    return _waiting(say, stop, "the start waits for space: {}", DISK_FULL_WAIT_S)


def waiting_for_brokers(say: Callable[[str], None], stop: Event) -> Callable[[Exception], bool]:
    """What a start does while brokers that have answered before are away, until ``stop``."""
    return _waiting(say, stop, "{}; trying again until stopped", RETRY_S)


def _waiting(say: Callable[[str], None], stop: Event, message: str, pause_s: float) -> Callable[[Exception], bool]:
    """Says why a start waits, and waits; False when told to stop. ``message`` has a place for the error."""

    def wait(error: Exception) -> bool:
        text = message.format(error)
        log.warning("%s", text)
        say(text)
        return not stop.wait(pause_s)

    return wait


@contextmanager
def spark_driver(
    context: SparkContext,
    worker: WorkerSettings,
    spec: RunSpec,
    listeners: Listeners,
    homes: Sequence[Executor] = (),
    host: str = LOOPBACK,
    query_servers_of: QueryServersOf | None = None,
    collect: Callable[[SlotPool, int], None] | None = None,
) -> Iterator[Driver]:
    """A started driver whose tasks run in slots of ``context``, with its workers ready; on a cluster, ``homes`` are the
    executors of the slots, ``host`` is where they reach the driver, and ``query_servers_of`` makes what has queries
    answered. ``collect`` gets the slots before they are closed, and the generation.

    Raises what ``Coordinator.start`` raises.
    """
    global_tables = [table.store.name for table in spec.application.topology.global_tables]
    with (
        closing(SlotPool(context, spec.slots, worker, spec.slot_of, homes, host)) as pool,
        closing(RestoreJobs(context, worker, pool, spec.application.topology.task_name)) as restores,
        closing(SnapshotJobs(context, worker, pool)) as snapshots,
        closing(StandbyJobs(context, worker, pool)) as standbys,
        closing(CleanUps(context, worker, pool, spec.keeps, global_tables)) as clean_up,
        ExitStack() as stack,
        closing(spec.committer(_on_step(listeners.control, load_step_hook(worker.on_step)))) as committer,
    ):
        queries = READ_FROM_DISK
        if query_servers_of is not None:
            queries = stack.enter_context(closing(query_servers_of(pool)))
        executors = Executors(
            slots=pool,
            restores=restores,
            snapshots=snapshots,
            standbys=standbys,
            queries=queries,
            clean_up=clean_up,
            copies=GlobalCopies(pool),
        )
        driver = started_driver(spec, committer, executors, listeners)
        pool.while_waiting = driver.while_waiting
        if collect is not None:
            stack.callback(collect, pool, driver.generation)
        yield driver


def _on_step(control: Control, hook: Callable[[str], None]) -> Callable[[str], None]:
    """Every step of a commit that takes long is progress."""

    def on_step(step: str) -> None:
        control.goes_on()
        hook(step)

    return on_step


def kept_on_executors(settings: Settings) -> Keeps:
    """What executors keep of local state that is not needed."""
    return Keeps(
        unneeded_s=settings.state_cleanup_delay_s,
        quarantine=QuarantineLimits(
            max_age_s=settings.quarantine_max_days * 86_400.0, max_bytes=settings.quarantine_max_bytes
        ),
    )


def limits_of(settings: Settings, application: Application) -> Limits:
    """The limits of an epoch."""
    return Limits.of(application, max_records=settings.max_epoch_records, max_bytes=settings.max_epoch_bytes)


def _reporting(
    settings: Settings, application: Application, on_progress: Callable[[Progress], None] | None, stack: ExitStack
) -> Callable[[Progress], None]:
    """``on_progress``; if the settings name a port, also readings for Prometheus, until ``stack`` closes."""
    report = on_progress or (lambda progress: None)
    if settings.metrics_port is None:
        return report
    from weir.infra.prometheus import PrometheusEndpoint

    endpoint = PrometheusEndpoint(application.id, settings.metrics_host, settings.metrics_port)
    stack.callback(endpoint.close)
    log.info("metrics of %r at http://%s:%s/metrics", application.id, settings.metrics_host, endpoint.port)

    def publish(progress: Progress) -> None:
        endpoint.publish(progress.readings)
        report(progress)

    return publish


def _profiled(folder: Path, application: Application, stack: ExitStack) -> ProfiledRun:
    """What writes a profile into ``folder``, until ``stack`` closes."""
    from weir.pipelines.spark.profiled_run import ProfiledRun

    return stack.enter_context(closing(ProfiledRun(folder, application.id)))


@contextmanager
def _afterwards(
    application: Application, settings: Settings, bootstrap_servers: str, upserts: Sequence[Afterwards[object]]
) -> Iterator[Callable[[Mapping[TopicPartition, int]], None]]:
    """What follows a commit: tables of upserts are refreshed, its positions go to the group that the settings name, and
    own stores are fed."""
    followed: list[Afterwards[Any]] = [*upserts]
    if settings.mirror_offsets_to_group is not None:
        admin = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
        followed.append(offset_mirror(admin, settings.mirror_offsets_to_group))
    if application.own_stores:
        followed.append(
            feeding(
                followers(
                    application, folder_at(settings.warehouse) / application.id, settings.state_dir / application.id
                )
            )
        )

    def on_commit(positions: Mapping[TopicPartition, int]) -> None:
        for each in followed:
            each(positions)

    try:
        yield on_commit
    finally:
        for each in followed:
            each.close()


@contextmanager
def spark_context(settings: Settings, application: Application) -> Iterator[SparkContext]:
    """A context of the application's own, stopped after the block."""
    context = slot_context(settings, application.id)
    try:
        yield context
    finally:
        stop_context(context)


def starting_report(application: Application, message: str) -> Progress:
    """A report of a run that has not claimed a generation yet."""
    return Progress(
        application=application.id,
        generation=0,
        epoch=0,
        committed_epoch=0,
        records_in=0,
        lag=0,
        records_per_s=0.0,
        commit_ms=0.0,
        state="starting",
        message=message,
    )


def _stopped_early(application: Application) -> RunSummary:
    return RunSummary(
        application=application.id,
        generation=0,
        epoch=0,
        commits=0,
        records_in=0,
        seconds=0.0,
        reason="stopped",
        totals={},
    )
