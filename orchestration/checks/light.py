"""The checks that are light enough for a sensor: those of commits and of the quarantine."""

import dagster as dg

from weir.infra.settings import Settings
from weir.orchestration.checks.commits import commit_results
from weir.orchestration.checks.evaluations import Check, evaluations_of
from weir.orchestration.checks.quarantine import CHECK as QUARANTINE_CHECK
from weir.orchestration.checks.quarantine import quarantine_result
from weir.orchestration.supervised import Supervised

COMMIT_CHECKS = "the checks of commits"


def light_checks(supervised: Supervised, settings: Settings) -> dict[str, Check]:
    """By what to call those that cannot be made."""
    return {
        COMMIT_CHECKS: lambda: commit_results(supervised, settings),
        QUARANTINE_CHECK: lambda: [quarantine_result(supervised, settings)],
    }


def light_evaluations(supervised: Supervised, settings: Settings) -> tuple[list[dg.AssetCheckEvaluation], str]:
    """Of those that can be made; and which cannot, with the reasons, as the rest of a sentence."""
    errors: list[str] = []
    evaluations = list(
        evaluations_of(
            light_checks(supervised, settings),
            lambda name, error: errors.append(f"; {name} could not be made: {error}"),
        )
    )
    return evaluations, "".join(errors)
