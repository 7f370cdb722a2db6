"""How far an ingest is behind its topics, as the brokers say, whether a driver runs or not.

A sensor reports it within seconds (``weir.orchestration.sensors.reports``); the audit makes the same check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import dagster as dg

from weir.infra.control import ApplicationStatus, ControlDatabase
from weir.infra.control.rows import MinuteRow
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.actions import ActionTaken, actions_of
from weir.pipelines.operations.positions import committed_lag, committed_positions
from weir.pipelines.operations.text import duration, utc_text
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at
from weir.state.types import Positions

LAG_CHECK = "lag"
SHOWN_PARTITIONS = 50
SHOWN_ACTIONS = 20
LEAST_PACE = 1.0
"""Records per second: an hour whose best minute had fewer was idle and does not show how fast lag is worked off."""
ACTION_COLUMNS = ("at", "sensor", "measured", "did", "brought")


def lag_check(supervised: Supervised) -> dg.AssetChecksDefinition:
    """Compares the offsets that were read with the ends of the topics."""
    max_records = supervised.thresholds.lag_max_records

    @dg.asset_check(
        asset=supervised.ingest,
        name=LAG_CHECK,
        description=f"There is a commit, and at most {max_records:,} records wait in the topics.",
    )
    def lag(weir: WeirResource) -> dg.AssetCheckResult:
        """Compare the offsets that were read with the topics' ends."""
        return current_lag(supervised, weir.settings())

    return lag


def current_lag(supervised: Supervised, settings: Settings) -> dg.AssetCheckResult:
    """``lag_result``, with a broker that is started if need be."""
    database = ControlDatabase(settings.control_database_url)
    status = database.application_status(supervised.id)
    with broker_for(settings) as (bootstrap_servers, settings):
        admin = KafkaAdmin(bootstrap_servers, settings.kafka)
        return lag_result(supervised, settings, status, admin, actions_of(database, supervised.id))


def lag_result(
    supervised: Supervised,
    settings: Settings,
    status: ApplicationStatus | None,
    admin: KafkaAdmin,
    actions: Sequence[ActionTaken] = (),
) -> dg.AssetCheckResult:
    """A warning if too much waits, if nothing was committed yet, or if no broker answers; with what sensors have done
    about it over the last hour."""
    newest = newest_commit(folder_at(settings.warehouse), supervised.id)
    max_records = supervised.thresholds.lag_max_records
    try:
        lags = committed_lag(_read(supervised, newest, status), admin)
    except BrokerUnreachableError as error:
        return unknown_lag(supervised, error)
    records = sum(lags.values())
    minutes = ControlDatabase(settings.control_database_url).last_hour(supervised.id) if records else []
    behind_s = work_s(records, minutes) if records else 0.0
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name=LAG_CHECK,
        passed=newest is not None and records <= max_records,
        severity=dg.AssetCheckSeverity.WARN,
        description=_sentence(records, behind_s, newest, status),
        metadata={
            "lag_records": records,
            **({} if behind_s is None else {"behind_s": round(behind_s, 1)}),
            "max_records": max_records,
            "committed_epoch": newest.epoch if newest else 0,
            "lag_by_partition": _greatest(lags),
            **({"actions": action_table(actions)} if actions else {}),
        },
    )


def action_table(actions: Sequence[ActionTaken]) -> dg.TableMetadataValue:
    """What sensors measured, had done, and what it brought."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "at": utc_text(datetime.fromtimestamp(action.at_ms / 1000, UTC)),
                    "sensor": action.by,
                    "measured": action.measured,
                    "did": action.did or "asked",
                    "brought": action.brought,
                }
            )
            for action in actions[:SHOWN_ACTIONS]
        ],
        dg.TableSchema(columns=[dg.TableColumn(name, "text") for name in ACTION_COLUMNS]),
    )


def nothing_arrives(supervised: Supervised, settings: Settings) -> dg.AssetCheckResult:
    """While the folder's own broker is down: what waits is as it was, and nobody can add to it."""
    newest = newest_commit(folder_at(settings.warehouse), supervised.id)
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name=LAG_CHECK,
        passed=newest is not None,
        severity=dg.AssetCheckSeverity.WARN,
        description="the folder's own broker does not run, so nothing arrives; the next run starts it"
        + ("" if newest else "; nothing was committed yet"),
        metadata={"max_records": supervised.thresholds.lag_max_records},
    )


def unknown_lag(supervised: Supervised, error: Exception) -> dg.AssetCheckResult:
    """A warning that says why nobody knows."""
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name=LAG_CHECK,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=in_dagster(f"the lag is unknown: {error}", supervised.id),
        metadata={"max_records": supervised.thresholds.lag_max_records},
    )


def _read(supervised: Supervised, newest: CommitRecord | None, status: ApplicationStatus | None) -> Positions:
    """Offsets as committed, and further where a running driver has read further."""
    positions = committed_positions(newest, supervised.topics)
    for task in status.tasks if status is not None and status.is_running else ():
        for topic, offsets in task.positions.items():
            known = positions.setdefault(topic, {})
            for partition, offset in offsets.items():
                known[int(partition)] = max(int(offset), known.get(int(partition), 0))
    return positions


def work_s(records: int, minutes: Sequence[MinuteRow]) -> float | None:
    """How many seconds of work wait, at the pace of the best of those minutes; None if they do not show it."""
    pace = max((minute.records_per_s for minute in minutes), default=0.0)
    return records / pace if pace >= LEAST_PACE else None


def _sentence(
    records: int, behind_s: float | None, newest: CommitRecord | None, status: ApplicationStatus | None
) -> str:
    who = "nobody reads them" if status is None or not status.is_running else f"the driver is {status.state}"
    waiting = f"{records:,} records wait" if records != 1 else "1 record waits"
    if records and behind_s is not None:
        waiting += f", {duration(1_000 * behind_s)} of work"
    return f"{waiting}, and {who}" + ("" if newest else "; nothing was committed yet")


def _greatest(lags: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Those partitions that are furthest behind."""
    greatest = sorted(lags.items(), key=lambda each: -each[1])[:SHOWN_PARTITIONS]
    return {f"{topic}-{number}": lag for (topic, number), lag in sorted(greatest)}
