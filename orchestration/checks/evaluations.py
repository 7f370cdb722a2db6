"""Evaluations of checks: from results that no check of a run has made, and the newest that there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (  # have no public names
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as EVALUATED,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

Check = Callable[[], Iterable[dg.AssetCheckResult]]


def evaluations_of(
    checks: Mapping[str, Check], on_error: Callable[[str, Exception], None]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Make every check; ``on_error`` is told which of them could not be made, and why."""
    for name, make in checks.items():
        try:
            yield from map(evaluation_of, make())
        except Exception as error:  # whatever is wrong with one, the others are made
            on_error(name, error)


def evaluation_of(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """A result that names its asset and its check, as an event."""
    if result.asset_key is None or result.check_name is None:
        raise ValueError("the result does not name its asset and its check")
    return dg.AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
    )


def newest_evaluations(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey]
) -> Iterator[tuple[dg.AssetCheckKey, int, dg.AssetCheckEvaluation]]:
    """Of each check that was ever evaluated: its key, the number of the record, which grows, and the evaluation. One
    that is only planned, by a run that has begun, does not hide the one before."""
    storage = instance.event_log_storage
    for key, newest in storage.get_latest_asset_check_execution_by_key(keys).items():
        records = [newest]
        if not isinstance(newest.evaluation, dg.AssetCheckEvaluation):
            records = list(storage.get_asset_check_execution_history(key, limit=1, status=EVALUATED))
        for record in records:
            if isinstance(record.evaluation, dg.AssetCheckEvaluation):
                yield key, record.id, record.evaluation


def planned_by(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey], run_ids: Collection[str]
) -> dict[dg.AssetCheckKey, int]:
    """The checks that one of these runs was the newest to plan, and has not made, with the numbers of the records."""
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return {
        key: record.id
        for key, record in newest.items()
        if record.status == AssetCheckExecutionRecordStatus.PLANNED and record.run_id in run_ids
    }
