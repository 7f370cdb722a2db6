"""Turns applications into everything that Dagster shows and does for them: one call, the same for every application."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from functools import cache
from types import ModuleType

import dagster as dg

from weir.orchestration.assets.backfill import backfill_assets
from weir.orchestration.assets.ingest import ingest_assets
from weir.orchestration.assets.maintenance import maintenance_assets
from weir.orchestration.assets.program import about_topic
from weir.orchestration.checks.commits import commit_checks
from weir.orchestration.checks.files import file_checks
from weir.orchestration.checks.lag import lag_check
from weir.orchestration.checks.quarantine import quarantine_check
from weir.orchestration.checks.running import running_check
from weir.orchestration.checks.sinks import sink_checks
from weir.orchestration.checks.state import state_checks
from weir.orchestration.jobs.backfills import backfills_job, discard_backfill_job, swap_backfill_job
from weir.orchestration.jobs.checks import audit_job, verify_job
from weir.orchestration.jobs.compaction import compaction_job
from weir.orchestration.jobs.dead_letters import dead_letters_job, discard_job, replay_job
from weir.orchestration.jobs.ingest import ingest_job
from weir.orchestration.jobs.migration import migration_jobs
from weir.orchestration.jobs.rebuild import rebuild_job
from weir.orchestration.jobs.repartition import repartition_job
from weir.orchestration.jobs.requests import request_jobs
from weir.orchestration.jobs.restore import restore_job
from weir.orchestration.jobs.sinks import sink_jobs
from weir.orchestration.jobs.snapshot import snapshot_job
from weir.orchestration.on_lag import OnLag
from weir.orchestration.resources import WeirResource, driver_pipes
from weir.orchestration.schedules.maintenance import audit_schedule, compaction_schedule
from weir.orchestration.sensors.alerts import alerts_sensor
from weir.orchestration.sensors.commits import commits_sensor
from weir.orchestration.sensors.compaction import compaction_sensor
from weir.orchestration.sensors.health import health_sensor
from weir.orchestration.sensors.lag import lag_sensor
from weir.orchestration.sensors.repair import repair_sensor
from weir.orchestration.sensors.reports import reports_sensor
from weir.orchestration.sensors.restart import restart_sensor
from weir.orchestration.sensors.retention import retention_sensor
from weir.orchestration.sensors.stalled import stalled_sensor
from weir.orchestration.sensors.uncommitted import uncommitted_sensor
from weir.orchestration.sensors.workers import workers_sensor
from weir.orchestration.supervised import FIRST_DAY, Supervised
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.application import Application
from weir.pipelines.operations.registry import imported_from

SENSORS = (
    "alerts",
    "commits",
    "compaction_due",
    "health",
    "lag",
    "repair",
    "reports",
    "retention",
    "stalled",
    "succession",
    "uncommitted",
)
SCHEDULES = ("hourly_audit", "nightly_compaction")
"""By name, without ``weir_``, like the sensors."""


def supervise(
    application: Application,
    reference: str | None = None,
    *,
    topics: Mapping[str, dg.AssetsDefinition | dg.AssetKey] | None = None,
    thresholds: Thresholds | None = None,
    on_lag: OnLag | None = None,
    first_day: date = FIRST_DAY,
    end_day: date | None = None,
    owners: Sequence[str] = (),
    unwatched: Collection[str] = (),
) -> Supervised:
    """How Dagster looks after an application, for ``definitions``.

    Args:
        application: The application.
        reference: ``module:attribute``, from which drivers load it; found by itself where a module that is loaded has
            the application as an attribute.
        topics: Your own assets, each with one key, for source topics that something here fills; or the keys of assets
            that are defined elsewhere. Every other topic is an external asset ``kafka/<topic>``, shared by all
            applications that read it.
        thresholds: The limits at which sensors act and checks fail.
        on_lag: What the sensor ``weir_lag`` may do when the application lags, and at which measures.
        first_day: No earlier day of event time is offered for backfills, whatever the topics hold.
        end_day: Nor this one or a later one; today if not given.
        owners: Shown with the assets, jobs, sensors and schedules: e-mail addresses, or ``team:name``.
        unwatched: Sensors and schedules that leave the application alone, such as ``succession``.

    Raises:
        ValueError: No module has the application as an attribute, or no sensor or schedule has a name of
            ``unwatched``.
    """
    if unknown := set(unwatched) - {*SENSORS, *SCHEDULES}:
        known = ", ".join((*SENSORS, *SCHEDULES))
        raise ValueError(f"no sensor or schedule is called {min(unknown)}; these are: {known}")
    reference = reference or _references([application])[0]
    keys = {topic: asset if isinstance(asset, dg.AssetKey) else asset.key for topic, asset in (topics or {}).items()}
    return Supervised(
        application=application,
        reference=reference,
        import_from=_import_from(reference),
        thresholds=thresholds or Thresholds(),
        on_lag=on_lag or OnLag(),
        owners=owners,
        topic_assets=[asset for asset in (topics or {}).values() if not isinstance(asset, dg.AssetKey)],
        topics={topic: keys.get(topic, _external_key(topic)) for topic in application.topology.topics()},
        first_day=first_day,
        end_day=end_day,
        unwatched=unwatched,
    )


def definitions(*applications: Application | Supervised, weir: WeirResource | None = None) -> dg.Definitions:
    """Everything for ``applications``: assets, checks, jobs, schedules, sensors, and the resources ``weir`` and
    ``pipes``. One call holds all applications of a code location, because its sensors and jobs are for all of them;
    merge it with definitions of your own (``dg.Definitions.merge``), but not with those of a second call, which Dagster
    refuses (``different resources with same key 'weir'``).

    ``weir`` says where Weir works; without it, ``WEIR_*`` variables and ``weir.toml`` do.

    Raises:
        ValueError: Two applications have the same id, or see ``supervise``.
    """
    references = iter(_references([each for each in applications if not isinstance(each, Supervised)]))
    supervised = [each if isinstance(each, Supervised) else supervise(each, next(references)) for each in applications]
    own = [own_definitions(each) for each in supervised]
    return dg.Definitions.merge(*own, shared_definitions(list(zip(supervised, own, strict=True)), weir))


def shared_definitions(
    applications: Sequence[tuple[Supervised, dg.Definitions]], weir: WeirResource | None = None
) -> dg.Definitions:
    """What a code location has once, for all its applications, each given with its own definitions.

    Raises:
        ValueError: Two applications have the same id.
    """
    supervised = [each for each, _ in applications]
    names = [each.name for each in supervised]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two applications are called {min(twice)} here; give each an id of its own")
    external = {
        _external_key(topic): _external_topic(
            topic,
            about_topic(each.application.topology.source(topic)),
            is_pattern=topic in each.application.topology.open_patterns,
        )
        for each in supervised
        for topic, key in each.topics.items()
        if key == _external_key(topic)
    }
    ingests, audit = [ingest_job(each) for each in supervised], audit_job(supervised)
    compaction, restore, verify = compaction_job(supervised), restore_job(supervised), verify_job(supervised)
    checks = {
        each.id: [key for made in own.asset_checks or () for key in made.check_keys] for each, own in applications
    }
    return dg.Definitions(
        assets=list(external.values()),
        jobs=[
            *ingests,
            *request_jobs(supervised),
            restore,
            snapshot_job(supervised),
            compaction,
            audit,
            verify,
            dead_letters_job(supervised),
            replay_job(supervised),
            discard_job(supervised),
            *sink_jobs(supervised),
            rebuild_job(supervised),
            backfills_job(supervised),
            swap_backfill_job(supervised),
            discard_backfill_job(supervised),
            *migration_jobs(supervised),
            repartition_job(supervised),
        ],
        schedules=[compaction_schedule(supervised, compaction), audit_schedule(supervised, audit)],
        sensors=[
            commits_sensor(supervised),
            reports_sensor(supervised),
            health_sensor(supervised),
            lag_sensor(supervised),
            uncommitted_sensor(supervised),
            restart_sensor(supervised, ingests),
            retention_sensor(supervised),
            compaction_sensor(supervised, compaction),
            stalled_sensor(supervised),
            repair_sensor(supervised, checks, restore, verify, audit),
            alerts_sensor(supervised, checks),
            workers_sensor(supervised),
        ],
        resources={"weir": weir or WeirResource(), "pipes": driver_pipes()},
    )


def own_definitions(supervised: Supervised) -> dg.Definitions:
    """Its assets and their checks."""
    return dg.Definitions(
        assets=[
            *supervised.topic_assets,
            ingest_assets(supervised),
            *backfill_assets(supervised),
            maintenance_assets(supervised),
        ],
        asset_checks=[
            running_check(supervised),
            lag_check(supervised),
            commit_checks(supervised),
            quarantine_check(supervised),
            *sink_checks(supervised),
            *state_checks(supervised),
            *file_checks(supervised),
        ],
    )


def _references(applications: Sequence[Application]) -> list[str]:
    """Of each, rather in its own module than in one that is about Dagster, which drivers would load for nothing."""
    found: dict[int, list[tuple[ModuleType, str]]] = {id(application): [] for application in applications}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name != "__main__":
            for attribute, value in list(vars(module).items()):
                if id(value) in found:
                    found[id(value)].append((module, attribute))
    is_about_dagster = cache(_is_about_dagster)
    references = []
    for application in applications:
        if not found[id(application)]:
            raise ValueError(
                f"no module that is loaded has the application {application.id} as an attribute, so that its drivers "
                f'could not load it: give it a name in its module, or pass supervise(app, "module:attribute")'
            )
        module, attribute = min(found[id(application)], key=lambda each: is_about_dagster(each[0]))
        references.append(f"{module.__name__}:{attribute}")
    return references


def _import_from(reference: str) -> list[str]:
    """Where this code location finds modules while it is loaded: its ``working_directory`` is among the folders, that
    of a ``python_file`` need not be."""
    folders = [os.path.abspath(entry) for entry in sys.path]
    own = imported_from(reference)
    return folders if own is None or str(own) in folders else [str(own), *folders]


def _is_about_dagster(module: ModuleType) -> bool:
    names = [getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(module).values()]
    return any(str(name).startswith(("dagster", "weir.dagster", "weir.orchestration")) for name in names)


def _external_key(topic: str) -> dg.AssetKey:
    return dg.AssetKey(["kafka", re.sub(r"[^A-Za-z0-9._-]+", "_", topic)])


@cache
def _external_topic(topic: str, about: str, *, is_pattern: bool) -> dg.AssetSpec:
    """One object per topic, so that applications can share it; a pattern is one object, whatever it matches."""
    what = f"Kafka topics that match {topic}" if is_pattern else f"Kafka topic {topic}"
    return dg.AssetSpec(
        _external_key(topic),
        kinds={"kafka"},
        group_name="kafka",
        description=f"{about} The {what}, filled elsewhere.".strip(),
    )
