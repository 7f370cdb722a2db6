"""One asset check per expectation of the program: how many of the newest records violated it.

They are part of the op that reads the newest commits, in ``commits``.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from weir.orchestration.supervised import Supervised
from weir.pipelines.expectations import ExpectationCounts, expectation_counts
from weir.pipelines.operations.positions import committed_totals
from weir.state.commit.audit import CommitWindow


def check_name(expectation: str) -> str:
    return f"expectation_{expectation}"


def expectation_specs(supervised: Supervised) -> list[dg.AssetCheckSpec]:
    """The checks of an application, on its ingest."""
    limit, epochs = supervised.thresholds.expectation_max_share, supervised.thresholds.audited_epochs
    allowed = f"At most {limit:.1%} of the records" if limit else "None of the records"
    return [
        dg.AssetCheckSpec(
            check_name(name),
            asset=supervised.ingest,
            description=f"{allowed} of {epochs:,} epochs violated the expectation {name!r} ({node.on_violation}).",
        )
        for name, node in supervised.application.topology.expectations.items()
    ]


def expectation_results(supervised: Supervised, window: CommitWindow | None) -> Iterator[dg.AssetCheckResult]:
    """One result for each of ``expectation_specs``."""
    now, then = (
        expectation_counts(committed_totals(commit))
        for commit in ((window.newest, window.counted_from) if window else (None, None))
    )
    limit = supervised.thresholds.expectation_max_share
    for name, node in supervised.application.topology.expectations.items():
        total = now.get(name, ExpectationCounts())
        found = total.since(then.get(name, ExpectationCounts()))
        yield dg.AssetCheckResult(
            asset_key=supervised.ingest,
            check_name=check_name(name),
            passed=found.failed_share <= limit,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "passed": found.passed,
                "failed": found.failed,
                "dropped": found.dropped,
                "failed_share": found.failed_share,
                "max_share": limit,
                "total_passed": total.passed,
                "total_failed": total.failed,
                "total_dropped": total.dropped,
                "on_violation": node.on_violation,
            },
        )
