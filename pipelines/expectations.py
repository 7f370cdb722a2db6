"""What is counted of a program's expectations, in the counts of tasks and commits. Judging records belongs to
``weir.pipelines.operators.expect``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from weir.pipelines.serdes.source import BadRecord

OnViolation = Literal["count", "drop", "dead_letter", "fail"]
ON_VIOLATION: tuple[str, ...] = get_args(OnViolation)
Outcome = Literal["passed", "failed", "dropped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
PREFIX = "expectation/"
"""How the names of their counts begin; the expectation and the outcome follow."""


@dataclass(frozen=True, kw_only=True)
class ExpectationCounts:
    """How the records met one expectation."""

    passed: int = 0
    failed: int = 0
    """Those that violated it, whatever became of them."""
    dropped: int = 0
    """Of these, those that were dropped or put aside."""

    @property
    def failed_share(self) -> float:
        """The share of the records that violated it; 0 without records."""
        judged = self.passed + self.failed
        return self.failed / judged if judged else 0.0

    def since(self, before: ExpectationCounts) -> ExpectationCounts:
        """What was counted after ``before``; counts that began anew meanwhile give no less than 0."""
        return ExpectationCounts(
            passed=max(0, self.passed - before.passed),
            failed=max(0, self.failed - before.failed),
            dropped=max(0, self.dropped - before.dropped),
        )


def count_name(expectation: str, outcome: Outcome) -> str:
    """The name of a count among those of a task."""
    return f"{PREFIX}{expectation}/{outcome}"


def expectation_counts(counts: Mapping[str, int]) -> dict[str, ExpectationCounts]:
    """The counts of a task, a commit or an application that are of expectations, by expectation, sorted."""
    found: dict[str, dict[str, int]] = {}
    for name, count in counts.items():
        if name.startswith(PREFIX):
            expectation, _, outcome = name.removeprefix(PREFIX).partition("/")
            found.setdefault(expectation, {})[outcome] = count
    return {name: ExpectationCounts(**found[name]) for name in sorted(found)}


def other_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that are of no expectation."""
    return {name: count for name, count in counts.items() if not name.startswith(PREFIX)}


def counts_of_dead_letters(dead: Iterable[BadRecord]) -> Counter[str]:
    """What records count that were put aside because they violated an expectation."""
    return Counter(
        count_name(record.expectation, outcome)
        for record in dead
        if record.expectation is not None
        for outcome in ("failed", "dropped")
    )
