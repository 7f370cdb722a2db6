"""Turns an application into everything that Dagster shows and does for it: one call, the same for every application."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache

import dagster as dg

from weir.orchestration.assets.backfill import backfill_assets
from weir.orchestration.assets.ingest import ingest_assets
from weir.orchestration.checks.commits import commit_checks, lag_check
from weir.orchestration.checks.files import file_checks
from weir.orchestration.checks.quarantine import quarantine_check
from weir.orchestration.checks.sinks import sink_checks
from weir.orchestration.checks.state import state_checks
from weir.orchestration.jobs.asset_jobs import audit_job, continuous_job, verify_job
from weir.orchestration.jobs.compaction import compaction_job
from weir.orchestration.jobs.dead_letters import dead_letters_job, replay_job
from weir.orchestration.jobs.migration import migration_job
from weir.orchestration.jobs.rebuild import rebuild_job
from weir.orchestration.jobs.requests import request_jobs
from weir.orchestration.jobs.restore import restore_job
from weir.orchestration.schedules.maintenance import audit_schedule, compaction_schedule
from weir.orchestration.sensors.commits import commits_sensor
from weir.orchestration.sensors.compaction import compaction_sensor
from weir.orchestration.sensors.health import health_sensor
from weir.orchestration.sensors.repair import repair_sensor
from weir.orchestration.sensors.restart import restart_sensor
from weir.orchestration.sensors.retention import retention_sensor
from weir.orchestration.sensors.stalled import stalled_sensor
from weir.orchestration.sensors.uncommitted import uncommitted_sensor
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.application import Application

FIRST_DAY = date(2020, 1, 1)


def weir_assets(
    application: Application,
    reference: str,
    *,
    topics: Mapping[str, dg.AssetsDefinition] | None = None,
    thresholds: Thresholds | None = None,
    first_day: date = FIRST_DAY,
    end_day: date | None = None,
    owners: Sequence[str] = (),
) -> dg.Definitions:
    """Assets, checks, jobs, schedules and sensors of an application; drivers load it from ``reference``
    (``module:attribute``).

    ``topics`` are your own assets, each with one key, for source topics that something here fills; every other
    topic is an external asset ``kafka/<topic>``, shared by all applications that read it. ``first_day`` is the
    first day of event time that a backfill may ask for, ``end_day`` the day after the last; the default is today.
    ``owners`` are shown with the assets: e-mail addresses, or ``team:name``.
    Merge the result with a ``weir`` and a ``pipes`` resource (``weir.orchestration.definitions``).
    """
    own = topics or {}
    patterns = application.topology.open_patterns
    external = {
        topic: _external_topic(topic, is_pattern=topic in patterns)
        for topic in application.topology.topics()
        if topic not in own
    }
    supervised = Supervised(
        application=application,
        reference=reference,
        thresholds=thresholds or Thresholds(),
        owners=owners,
        topics={
            topic: own[topic].key if topic in own else external[topic].key for topic in application.topology.topics()
        },
    )
    audit, compaction, restore = audit_job(supervised), compaction_job(supervised), restore_job(supervised)
    return dg.Definitions(
        assets=[
            *own.values(),
            *external.values(),
            ingest_assets(supervised),
            *backfill_assets(supervised, first_day, end_day),
        ],
        asset_checks=[
            lag_check(supervised),
            commit_checks(supervised),
            quarantine_check(supervised),
            *sink_checks(supervised),
            *state_checks(supervised),
            *file_checks(supervised),
        ],
        jobs=[
            continuous_job(supervised),
            *request_jobs(supervised),
            dead_letters_job(supervised),
            replay_job(supervised),
            restore,
            verify_job(supervised),
            audit,
            compaction,
            rebuild_job(supervised),
            migration_job(supervised),
        ],
        schedules=[compaction_schedule(supervised, compaction), audit_schedule(supervised, audit)],
        sensors=[
            commits_sensor(supervised),
            health_sensor(supervised),
            uncommitted_sensor(supervised),
            restart_sensor(supervised),
            retention_sensor(supervised),
            compaction_sensor(supervised, compaction),
            stalled_sensor(supervised),
            repair_sensor(supervised, restore),
        ],
    )


@cache
def _external_topic(topic: str, *, is_pattern: bool) -> dg.AssetSpec:
    """One object per topic, so that applications can share it; a pattern is one object, whatever it matches."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", topic)
    what = f"Kafka topics that match {topic}" if is_pattern else f"Kafka topic {topic}"
    return dg.AssetSpec(
        ["kafka", name], kinds={"kafka"}, group_name="kafka", description=f"The {what}, filled elsewhere."
    )
