"""One sensor per concern looks at all applications of a code location: their number adds no ticks.

A concern is a function: what it sees of one application is a ``Look``, what it answers a ``Found``.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import dagster as dg
from dagster._core.definitions.target import ExecutableDefinition  # has no public name
from dagster._core.storage.tags import RUN_KEY_TAG

from weir.infra.control import ApplicationStatus, ControlDatabase, ControlDatabaseError
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.broker import broker_of
from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.partitions import PartitionsChange
from weir.orchestration.resources import WeirResource
from weir.orchestration.runs import newest_asset_runs
from weir.orchestration.supervised import Supervised, owners_of

LIMIT_S = 40.0
"""Dagster ends a tick after a minute, and drops what it has found. The next tick begins with those that were left."""
ANSWER_LIMIT_S = 2.0
"""How long a look waits for a broker."""
FAILED_RUNS = 50
"""How many failed runs are looked through at most, for each application that is looked at; the newest."""
LATE_S = 60.0
"""A failure is stored this long after it at most: clocks of hosts differ, and storing takes time."""
NAMED = 3
"""A skipped tick names the applications of which it says the same thing up to this many, and counts more."""

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


class Tick:
    """What the looks of one tick share: a question that all of them have is asked once, by the first."""

    def __init__(
        self,
        watched: Sequence[Supervised],
        instance: dg.DagsterInstance,
        settings: Settings,
        database: ControlDatabase,
    ) -> None:
        self.instance, self.settings, self.database = instance, settings, database
        self._watched = watched
        self._failed_runs: tuple[float, Sequence[dg.RunRecord]] | None = None

    @cached_property
    def statuses(self) -> Mapping[str, ApplicationStatus]:
        """``ControlDatabase.application_status`` of each application that it knows, by id."""
        return self.database.application_statuses([each.id for each in self._watched])

    @cached_property
    def drivers(self) -> Mapping[str, ApplicationStatus]:
        """The same of the newest driver of each."""
        return self.database.application_statuses([each.id for each in self._watched], of_driver=True)

    @cached_property
    def materializations(self) -> Mapping[dg.AssetKey, dg.EventLogEntry | None]:
        """The newest materialization of each ingest."""
        storage = self.instance.event_log_storage
        return storage.get_latest_materialization_events([each.ingest for each in self._watched])

    @cached_property
    def asset_runs(self) -> Sequence[dg.RunRecord]:
        """``newest_asset_runs``."""
        return newest_asset_runs(self.instance)

    def failed_runs(self, since_s: float) -> Sequence[dg.RunRecord]:
        """Runs of any job that have failed since then, in seconds since 1970, or shortly before; the newest first."""
        if self._failed_runs is None or since_s < self._failed_runs[0]:
            from_s = since_s - LATE_S
            failed = dg.RunsFilter(
                statuses=[dg.DagsterRunStatus.FAILURE],
                updated_after=datetime.fromtimestamp(max(from_s, 0.0), UTC),
            )
            limit = FAILED_RUNS * len(self._watched)
            self._failed_runs = from_s, self.instance.get_run_records(failed, limit=limit)
        return self._failed_runs[1]

    @property
    def kafka(self) -> KafkaAdmin | None:
        """None while the embedded broker is down: a look must not start it.

        Raises:
            BrokerUnreachableError: No broker answers; the first look has waited ``ANSWER_LIMIT_S`` for it.
        """
        if isinstance(self._kafka, BrokerUnreachableError):
            raise self._kafka
        return self._kafka

    @cached_property
    def _kafka(self) -> KafkaAdmin | BrokerUnreachableError | None:
        found = broker_of(self.settings)
        if found is None:
            return None
        bootstrap_servers, settings = found
        admin = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
        try:
            admin.check_reachable()
        except BrokerUnreachableError as error:
            return error
        return admin


@dataclass(frozen=True, kw_only=True)
class Look:
    """One application at one tick."""

    supervised: Supervised
    tick: Tick
    cursor: str | None
    """What the concern last remembered of this application."""

    @property
    def id(self) -> str:
        return self.supervised.id

    @property
    def instance(self) -> dg.DagsterInstance:
        return self.tick.instance

    @property
    def settings(self) -> Settings:
        return self.tick.settings

    @property
    def database(self) -> ControlDatabase:
        return self.tick.database

    @property
    def status(self) -> ApplicationStatus | None:
        """Its newest life as of this tick, with or without a driver."""
        return self.tick.statuses.get(self.id)

    @property
    def driver(self) -> ApplicationStatus | None:
        """Its newest driver as of this tick."""
        return self.tick.drivers.get(self.id)

    def requested_run(self, run_key: str) -> dg.DagsterRun | None:
        """The run that was requested under that key; None if Dagster has not made it yet."""
        return next(iter(self.instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: run_key}), limit=1)), None)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a concern answers for one application."""

    said: str = "all is well"
    """Shown with a tick that requests no run."""
    cursor: str | None = None
    """To be remembered; None keeps what is."""
    events: Sequence[Event] = ()
    run_requests: Sequence[dg.RunRequest] = ()
    partitions: Sequence[PartitionsChange] = ()


Concern = Callable[[Look], Found]


def watch(
    name: str,
    concern: Concern,
    applications: Sequence[Supervised],
    *,
    every_s: int,
    description: str,
    jobs: Sequence[ExecutableDefinition] = (),
    is_noted: bool = False,
) -> dg.SensorDefinition:
    """The sensor ``weir_<name>``. Its cursor holds that of each application, by id.

    An application that cannot be looked at keeps none of the others waiting: its error is in the log of the tick. With
    ``is_noted`` the control database learns of each look, so that ``weir status`` can tell when there are none.
    """

    watched = deque(each for each in applications if name not in each.unwatched)

    @dg.sensor(
        name=f"weir_{name}",
        jobs=jobs or None,
        minimum_interval_seconds=every_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
        owners=owners_of(applications),
    )
    def look_at_all(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        settings = weir.settings()
        tick = Tick(list(watched), context.instance, settings, ControlDatabase(settings.control_database_url))
        cursors: dict[str, str] = json.loads(context.cursor or "{}")
        found: dict[str, Found] = {}
        began_s, waiting = time.monotonic(), len(watched)
        while watched and waiting and time.monotonic() - began_s < LIMIT_S:
            supervised, waiting = watched[0], waiting - 1
            watched.rotate(-1)
            try:
                look = Look(supervised=supervised, tick=tick, cursor=cursors.get(supervised.id))
                found[supervised.id] = concern(look)
            except Exception as error:  # whatever is wrong with one, the others are looked at
                context.log.exception("%s could not be looked at", supervised.id)
                found[supervised.id] = Found(said=f"could not look: {error}")
        if is_noted:
            with contextlib.suppress(ControlDatabaseError):  # which the looks themselves have met
                tick.database.note_watched(sorted(found))
        for supervised in list(watched)[:waiting]:
            found[supervised.id] = Found(said=f"not looked at: the others took {LIMIT_S:.0f} s; it is the next")
        return _answer(found, cursors)

    return look_at_all


def _answer(found: Mapping[str, Found], cursors: Mapping[str, str]) -> dg.SensorResult | dg.SkipReason:
    now = {**cursors, **{id_: each.cursor for id_, each in found.items() if each.cursor is not None}}
    events = [event for each in found.values() for event in each.events]
    requests = [request for each in found.values() for request in each.run_requests]
    partitions = [request for each in found.values() for request in each.partitions]
    said = _said({id_: in_dagster(each.said, id_) for id_, each in found.items() if not each.run_requests})
    if now == cursors and not (events or requests or partitions):
        return dg.SkipReason(said)
    return dg.SensorResult(
        cursor=json.dumps(now),
        asset_events=events,
        run_requests=requests or None,
        skip_reason=None if requests else dg.SkipReason(said),
        dynamic_partitions_requests=partitions,
    )


def _said(sentences: Mapping[str, str]) -> str:
    """One line per sentence, with the applications of which it holds; those of few applications come first."""
    of: dict[str, list[str]] = {}
    for id_, sentence in sentences.items():
        of.setdefault(sentence, []).append(id_)
    return (
        "\n".join(f"{_named(ids)}: {sentence}" for sentence, ids in sorted(of.items(), key=lambda each: len(each[1])))
        or "there is no application to look at"
    )


def _named(ids: Iterable[str]) -> str:
    known = list(ids)
    return ", ".join(known) if len(known) <= NAMED else f"{len(known)} applications"
