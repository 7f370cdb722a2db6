"""Turns an application into everything that Dagster shows and does of it: one call, the same for every application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache

import dagster as dg

from weir.orchestration.audits import audit_checks, audit_jobs, audit_schedule, state_checks
from weir.orchestration.backfill import backfill_assets
from weir.orchestration.checks import lag_check
from weir.orchestration.commits import commits_sensor
from weir.orchestration.compaction import compaction_job, compaction_schedule, compaction_sensor
from weir.orchestration.health import health_sensor
from weir.orchestration.ingest import continuous_job, ingest_assets
from weir.orchestration.migration import migration_job
from weir.orchestration.rebuild import rebuild_job
from weir.orchestration.repair import repair_sensor
from weir.orchestration.retention import retention_sensor
from weir.orchestration.stalled import stalled_sensor
from weir.orchestration.steering import restore_job, steering_jobs
from weir.orchestration.succession import succession_sensor
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds
from weir.orchestration.uncommitted import uncommitted_sensor
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

    ``topics`` are assets of your own, each with one key, for the source topics that something here fills; every other
    topic is an external asset ``kafka/<topic>``, the same one for all applications that read it. ``first_day`` is the
    first day of event time that a backfill may be asked for, ``end_day`` the one after the last, today when left out.
    ``owners`` are shown with the assets: addresses of people, or ``team:name``.
    Merge the result with a ``weir`` and a ``pipes`` resource (``weir.orchestration.definitions``).
    """
    own = topics or {}
    external = {topic: _external_topic(topic) for topic in application.topology.topics() if topic not in own}
    supervised = Supervised(
        application=application,
        reference=reference,
        thresholds=thresholds or Thresholds(),
        owners=owners,
        topics={
            topic: own[topic].key if topic in own else external[topic].key for topic in application.topology.topics()
        },
    )
    compaction, restore, (verify, audit) = compaction_job(supervised), restore_job(supervised), audit_jobs(supervised)
    return dg.Definitions(
        assets=[
            *own.values(),
            *external.values(),
            ingest_assets(supervised),
            *backfill_assets(supervised, first_day, end_day),
        ],
        asset_checks=[lag_check(supervised), audit_checks(supervised), *state_checks(supervised)],
        jobs=[
            continuous_job(supervised),
            *steering_jobs(supervised),
            restore,
            verify,
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
            succession_sensor(supervised),
            retention_sensor(supervised),
            compaction_sensor(supervised, compaction),
            stalled_sensor(supervised),
            repair_sensor(supervised, restore),
        ],
    )


@cache
def _external_topic(topic: str) -> dg.AssetSpec:
    """One object a topic, so that applications may share it."""
    return dg.AssetSpec(
        ["kafka", topic], kinds={"kafka"}, group_name="kafka", description=f"The Kafka topic {topic}, filled elsewhere."
    )
