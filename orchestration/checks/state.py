"""Checks that local state agrees with its changelogs and the commit log: the comparison of ``weir verify``.

A failure names the task, which is in doubt from then on, and blocks what is downstream in the same run. The check stays
failed until the task has been restored, whatever its rows say meanwhile.
"""

import dagster as dg

from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.doubts import InDoubtError
from weir.pipelines.operations.errors import OtherProgramError
from weir.pipelines.operations.verify import verify_application
from weir.state.changelog.verify import StateDifferenceError

FULL_CHECK, SAMPLED_CHECK = "state_equals_changelog", "sampled_state_equals_changelog"
TASK_ENTRY = "task"
"""In the metadata of a failed comparison: the task, as in ``0_3``."""
IN_DOUBT_ENTRY = "in_doubt"
"""In the same place: whether the task is in doubt, so that a driver restores it by itself."""


def state_checks(supervised: Supervised) -> list[dg.AssetChecksDefinition]:
    """Compare every row of every store on this host, and the same for a few random tasks, which is cheap enough to run
    every hour."""
    return [
        _state_check(supervised, FULL_CHECK, "Every store agrees with its changelog and the commit log."),
        _state_check(
            supervised,
            SAMPLED_CHECK,
            "The stores of a few random tasks agree with their changelogs and the commit log.",
        ),
    ]


def _state_check(supervised: Supervised, name: str, description: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=supervised.ingest, name=name, blocking=True, description=description)
    def state_equals_changelog(weir: WeirResource) -> dg.AssetCheckResult:
        """Compare the rows of stores, their changelogs and the commit log; a difference names its task."""
        return state_result(supervised, weir.settings(), name)

    return state_equals_changelog


def state_result(supervised: Supervised, settings: Settings, name: str) -> dg.AssetCheckResult:
    """The result of the check ``name``, one of the two."""
    sample = supervised.thresholds.sampled_tasks if name == SAMPLED_CHECK else None
    agreements, failure = [], None
    try:
        for agreement in verify_application(
            settings, supervised.application, found_by=f"the check {name}", sample=sample
        ):
            agreements.append(agreement)
    except (StateDifferenceError, InDoubtError, OtherProgramError) as error:
        failure = error
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name=name,
        passed=failure is None,
        description=None if failure is None else in_dagster(str(failure), supervised.id),
        metadata={"tasks_that_agree": len(agreements), **_found(failure)}
        if failure is not None
        else {
            "tasks": len(agreements),
            "rows": sum(agreement.rows for agreement in agreements),
            "rows_by_task": {agreement.task: agreement.rows for agreement in agreements},
        },
    )


def _found(error: Exception) -> dict[str, str | bool]:
    """The task that differs, and whether it is in doubt."""
    if isinstance(error, InDoubtError):
        return {TASK_ENTRY: error.doubt.task, IN_DOUBT_ENTRY: True}
    if isinstance(error, StateDifferenceError):
        return {TASK_ENTRY: error.task_id, IN_DOUBT_ENTRY: error.instance is not None}
    return {}
