"""One sensor per concern looks at all applications of a code location: their number adds no ticks.

A concern is a function: what it sees of one application is a ``Look``, what it answers a ``Found``.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.target import ExecutableDefinition  # has no public name
from dagster._core.storage.tags import RUN_KEY_TAG

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.partitions import PartitionsChange
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised

LIMIT_S = 40.0
"""Dagster ends a tick after a minute, and drops what it has found. The next tick begins with those that were left."""
NAMED = 3
"""A skipped tick names the applications of which it says the same thing up to this many, and counts more."""

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


@dataclass(frozen=True, kw_only=True)
class Look:
    """One application at one tick."""

    supervised: Supervised
    instance: dg.DagsterInstance
    settings: Settings
    database: ControlDatabase
    cursor: str | None
    """What the concern last remembered of this application."""

    @property
    def id(self) -> str:
        return self.supervised.id

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
) -> dg.SensorDefinition:
    """The sensor ``weir_<name>``. Its cursor holds that of each application, by id.

    An application that cannot be looked at keeps none of the others waiting: its error is in the log of the tick.
    """

    watched = deque(each for each in applications if name not in each.unwatched)

    @dg.sensor(
        name=f"weir_{name}",
        jobs=jobs or None,
        minimum_interval_seconds=every_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def look(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        settings = weir.settings()
        database = ControlDatabase(settings.control_database_url)
        cursors: dict[str, str] = json.loads(context.cursor or "{}")
        found: dict[str, Found] = {}
        began_s, waiting = time.monotonic(), len(watched)
        while watched and waiting and time.monotonic() - began_s < LIMIT_S:
            supervised, waiting = watched[0], waiting - 1
            watched.rotate(-1)
            try:
                found[supervised.id] = concern(
                    Look(
                        supervised=supervised,
                        instance=context.instance,
                        settings=settings,
                        database=database,
                        cursor=cursors.get(supervised.id),
                    )
                )
            except Exception as error:  # whatever is wrong with one, the others are looked at
                context.log.exception("%s could not be looked at", supervised.id)
                found[supervised.id] = Found(said=f"could not look: {error}")
        for supervised in list(watched)[:waiting]:
            found[supervised.id] = Found(said=f"not looked at: the others took {LIMIT_S:.0f} s; it is the next")
        return _answer(found, cursors)

    return look


def _answer(found: Mapping[str, Found], cursors: Mapping[str, str]) -> dg.SensorResult | dg.SkipReason:
    now = {**cursors, **{id_: each.cursor for id_, each in found.items() if each.cursor is not None}}
    events = [event for each in found.values() for event in each.events]
    requests = [request for each in found.values() for request in each.run_requests]
    partitions = [request for each in found.values() for request in each.partitions]
    said = _said({id_: each.said for id_, each in found.items() if not each.run_requests})
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
