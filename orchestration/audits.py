"""Checks of what an application has committed: offsets, rows, drops and state, against the commit log and the tables.

Those that find data in doubt are errors and hold back what is downstream in the same run; the others warn.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import (  # has no public name
    UnresolvedAssetJobDefinition as AssetJob,
)

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource
from weir.orchestration.sizes import size_text
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.positions import committed_totals
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS

if TYPE_CHECKING:
    from weir.state.commit.audit import CommitWindow

SHOWN_BREAKS = 20
FULL_CHECK, SAMPLED_CHECK = "state_equals_changelog", "sampled_state_equals_changelog"
TASK_ENTRY = "task"
"""In the metadata of a failed comparison: the task, as the restore job's partitions name it."""
HOURLY = "30 * * * *"


def audit_checks(supervised: Supervised) -> dg.AssetChecksDefinition:
    """One op over the newest commits: continuity of offsets, rates of late records and dead letters, rows of each
    output, uncommitted bytes."""
    thresholds, epochs = supervised.thresholds, supervised.thresholds.audited_epochs
    ingest, dead_letters = supervised.ingest, supervised.tables[DEAD_LETTERS.name]

    @dg.multi_asset_check(
        name=f"{supervised.name}_audit_commits",
        description=("Compare the newest commits with each other and with the tables."),
        specs=[
            dg.AssetCheckSpec(
                "offsets_continuous",
                asset=ingest,
                blocking=True,
                description=f"Over {epochs:,} epochs no offset was passed over or read twice.",
            ),
            dg.AssetCheckSpec(
                "late_record_rate",
                asset=ingest,
                description=(
                    f"Of the records of {epochs:,} epochs at most {thresholds.late_max_share:.1%} came "
                    "too late for their window."
                ),
            ),
            dg.AssetCheckSpec(
                "uncommitted_bytes",
                asset=ingest,
                description=(f"At most {size_text(thresholds.uncommitted_max_bytes)} of state is uncommitted."),
            ),
            dg.AssetCheckSpec(
                "dead_letter_rate",
                asset=dead_letters,
                description=(
                    f"Of the records of {epochs:,} epochs at most {thresholds.dead_letter_max_share:.1%} could "
                    "not be read."
                ),
            ),
            *(
                dg.AssetCheckSpec(
                    "rows_as_committed",
                    asset=key,
                    blocking=True,
                    description="The table has the rows that the commit log says, no more and no fewer.",
                )
                for key in supervised.outputs.values()
            ),
        ],
    )
    def audit(weir: WeirResource) -> Iterator[dg.AssetCheckResult]:
        from weir.state.commit.audit import newest_commits, row_count

        settings = weir.settings()
        window = newest_commits(settings.warehouse, supervised.id, epochs)
        yield _offsets(supervised, window)
        yield from _rates(supervised, window)
        yield _uncommitted(supervised, settings)
        for table, key in supervised.outputs.items():
            rows = row_count(settings.warehouse, supervised.id, table, window) if window else None
            metadata = (
                {}
                if rows is None
                else {
                    "first_epoch": rows.first_epoch,
                    "last_epoch": rows.last_epoch,
                    "committed_rows": rows.committed,
                    "found_rows": rows.found,
                }
            )
            yield dg.AssetCheckResult(
                asset_key=key,
                check_name="rows_as_committed",
                passed=rows is None or rows.is_right,
                metadata=metadata,
                description="nothing to compare yet" if rows is None else None,
            )

    return audit


def state_checks(supervised: Supervised) -> list[dg.AssetChecksDefinition]:
    """The comparison of ``weir verify``: every row of every store on this host, and the same for a few tasks that
    chance picks, which is cheap enough for every hour."""
    return [
        _state_check(supervised, FULL_CHECK, "Every store is what its changelog and the commit log say.", None),
        _state_check(
            supervised,
            SAMPLED_CHECK,
            "The stores of a few tasks are what their changelogs and the commit log say.",
            supervised.thresholds.sampled_tasks,
        ),
    ]


def _state_check(supervised: Supervised, name: str, description: str, sample: int | None) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=supervised.ingest, name=name, blocking=True, description=description)
    def state_equals_changelog(weir: WeirResource) -> dg.AssetCheckResult:
        """Compare the rows of stores, their changelogs and the commit log; a difference names its task."""
        from weir.pipelines.operations.verify import verify_application
        from weir.pipelines.spark.errors import TopologyChangedError
        from weir.state.changelog.verify import StateDifferenceError

        agreements = []
        try:
            for agreement in verify_application(weir.settings(), supervised.application, sample=sample):
                agreements.append(agreement)
        except (StateDifferenceError, TopologyChangedError) as error:
            task = (
                {TASK_ENTRY: str(supervised.application.topology.task_of(error.task))}
                if isinstance(error, StateDifferenceError)
                else {}
            )
            return dg.AssetCheckResult(
                passed=False, description=str(error), metadata={"tasks_that_agree": len(agreements), **task}
            )
        return dg.AssetCheckResult(
            passed=True,
            metadata={
                "tasks": len(agreements),
                "rows": sum(agreement.rows for agreement in agreements),
                "rows_by_task": {agreement.task: agreement.rows for agreement in agreements},
            },
        )

    return state_equals_changelog


def audit_jobs(supervised: Supervised) -> tuple[AssetJob, AssetJob]:
    """``<app>_verify``, the full comparison of the state alone, and ``<app>_audit``, every other check."""
    full = dg.AssetSelection.checks(dg.AssetCheckKey(supervised.ingest, FULL_CHECK))
    every = dg.AssetSelection.checks_for_assets(supervised.ingest, *supervised.tables.values())
    return (
        dg.define_asset_job(
            f"{supervised.name}_verify",
            description="Compare every store with its changelog and with the commit log.",
            selection=full,
            tags=supervised.tags,
        ),
        dg.define_asset_job(
            f"{supervised.name}_audit",
            description="Every check but the full comparison of the state; beside a running driver too.",
            selection=every - full,
            tags=supervised.tags,
        ),
    )


def audit_schedule(supervised: Supervised, job: AssetJob) -> dg.ScheduleDefinition:
    """Once switched on, the checks see a driver that runs for weeks every hour and not at its end alone."""
    return dg.ScheduleDefinition(
        name=f"{supervised.name}_hourly_audit",
        cron_schedule=HOURLY,
        job=job,
        execution_timezone="UTC",
        tags=supervised.tags,
        description="Runs the audit at half past every hour.",
    )


def _offsets(supervised: Supervised, window: "CommitWindow | None") -> dg.AssetCheckResult:
    from weir.state.commit.audit import offset_breaks

    breaks = list(offset_breaks(window)) if window else []
    wrong = [found for found in breaks if found.is_wrong]
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name="offsets_continuous",
        passed=not breaks,
        severity=dg.AssetCheckSeverity.ERROR if wrong else dg.AssetCheckSeverity.WARN,
        description=(wrong or breaks)[0].sentence if breaks else None,
        metadata={
            "commits": len(window.commits) if window else 0,
            "breaks": len(breaks),
            **({"first": [found.sentence for found in breaks[:SHOWN_BREAKS]]} if breaks else {}),
        },
    )


def _rates(supervised: Supervised, window: "CommitWindow | None") -> Iterator[dg.AssetCheckResult]:
    now, then = (
        committed_totals(commit) for commit in ((window.newest, window.counted_from) if window else (None, None))
    )
    read = now.get("records_in", 0) - then.get("records_in", 0)
    thresholds = supervised.thresholds
    for key, check, count, limit in (
        (supervised.ingest, "late_record_rate", "late_records", thresholds.late_max_share),
        (supervised.tables[DEAD_LETTERS.name], "dead_letter_rate", "dead_letters", thresholds.dead_letter_max_share),
    ):
        dropped = now.get(count, 0) - then.get(count, 0)
        share = dropped / read if read > 0 else 0.0
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=check,
            passed=share <= limit,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={count: dropped, "records_in": read, "share": share, "max_share": limit},
        )


def _uncommitted(supervised: Supervised, settings: Settings) -> dg.AssetCheckResult:
    status = ControlDatabase(settings.control_database_url).application_status(supervised.id)
    size = sum(task.uncommitted_bytes for task in status.tasks) if status and status.is_running else 0
    limit = supervised.thresholds.uncommitted_max_bytes
    return dg.AssetCheckResult(
        asset_key=supervised.ingest,
        check_name="uncommitted_bytes",
        passed=size <= limit,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{size_text(size)} uncommitted, the limit is {size_text(limit)}",
        metadata={"uncommitted_bytes": size, "max_bytes": limit},
    )
