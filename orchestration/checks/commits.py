"""Checks of what an application has committed: offsets, rows, drops and lag, against the commit log, the tables and the
topics.

Those that find doubtful data are errors and block what is downstream in the same run; the others warn.
"""

from collections.abc import Iterator

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.checks.expectations import expectation_results, expectation_specs
from weir.orchestration.checks.selection import selected
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.positions import committed_totals
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.state.commit.audit import CommitWindow, newest_commits, offset_breaks, row_count
from weir.state.errors import DamagedFileError
from weir.state.storage.places import folder_at

SHOWN_BREAKS = 20


def commit_checks(supervised: Supervised) -> dg.AssetChecksDefinition:
    """One op over the newest commits: continuity of offsets, shares of late records, of dead letters and of violations
    of each expectation, rows of each output, uncommitted bytes."""
    thresholds, epochs = supervised.thresholds, supervised.thresholds.audited_epochs
    ingest, dead_letters = supervised.ingest, supervised.tables[DEAD_LETTERS.name]

    @dg.multi_asset_check(
        name=f"{supervised.name}_audit_commits",
        can_subset=True,
        description=("Compare the newest commits with each other and with the tables."),
        specs=[
            dg.AssetCheckSpec(
                "offsets_continuous",
                asset=ingest,
                blocking=True,
                description=f"Over {epochs:,} epochs no offset was skipped or read twice.",
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
                    description="The table has exactly the rows that the commit log says.",
                )
                for key in supervised.outputs.values()
            ),
            *expectation_specs(supervised),
        ],
    )
    def audit(context: dg.AssetCheckExecutionContext, weir: WeirResource) -> Iterator[dg.AssetCheckResult]:
        yield from selected(context, commit_results(supervised, weir.settings()))

    return audit


def commit_results(supervised: Supervised, settings: Settings) -> Iterator[dg.AssetCheckResult]:
    """One result for each spec of ``commit_checks``."""
    window = newest_commits(folder_at(settings.warehouse), supervised.id, supervised.thresholds.audited_epochs)
    yield _offsets(supervised, window)
    yield from _rates(supervised, window)
    yield from expectation_results(supervised, window)
    yield _uncommitted(supervised, settings)
    for table, key in supervised.outputs.items():
        yield _rows(settings, supervised.id, table, key, window)


def _rows(
    settings: Settings, application: str, table: str, key: dg.AssetKey, window: CommitWindow | None
) -> dg.AssetCheckResult:
    """A file that is gone or damaged fails the check of its table alone."""
    trouble = ""
    try:
        rows = row_count(folder_at(settings.warehouse), application, table, window) if window else None
    except DamagedFileError as error:
        rows, trouble = None, in_dagster(str(error), application)
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
    return dg.AssetCheckResult(
        asset_key=key,
        check_name="rows_as_committed",
        passed=not trouble and (rows is None or rows.is_right),
        metadata=metadata,
        description=trouble or ("nothing to compare yet" if rows is None else None),
    )


def _offsets(supervised: Supervised, window: CommitWindow | None) -> dg.AssetCheckResult:
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


def _rates(supervised: Supervised, window: CommitWindow | None) -> Iterator[dg.AssetCheckResult]:
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
