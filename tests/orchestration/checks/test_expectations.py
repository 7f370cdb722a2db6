"""One check per expectation: shares of what the newest commits counted, as a plain count of their records says."""

from __future__ import annotations

import dagster as dg
import pytest

from tests.pipelines.spark import counted_numbers
from weir.orchestration.application import definitions
from weir.orchestration.checks.commits import commit_results
from weir.orchestration.drivers.metadata import ingest_metadata
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds
from weir.state.commit.protocol import newest_commit

NAME = "expectation_not_negative"


def supervised(**limits) -> Supervised:
    return Supervised(
        application=counted_numbers.app,
        reference="tests.pipelines.spark.counted_numbers:app",
        topics={"numbers": dg.AssetKey(["kafka", "numbers"])},
        thresholds=Thresholds(**limits),
    )


def result(settings, **limits) -> dg.AssetCheckResult:
    results = commit_results(supervised(**limits), settings)
    (found,) = (each for each in results if each.check_name == NAME)
    return found


def shown(found: dg.AssetCheckResult) -> dict[str, object]:
    return {name: entry.value for name, entry in found.metadata.items()}


def share_of(numbers: list[int]) -> float:
    return sum(n < 0 for n in numbers) / len(numbers)


def test_the_check_fails_with_rates_once_records_violate_the_expectation(settings):
    assert result(settings).passed, "nothing is committed yet"
    counted_numbers.place(settings.dir).run()
    found = result(settings)
    assert (found.passed, found.severity, found.asset_key) == (
        False,
        dg.AssetCheckSeverity.WARN,
        dg.AssetKey(["numbers", "ingest"]),
    )
    failed = sum(n < 0 for n in counted_numbers.NUMBERS)
    passed = len(counted_numbers.NUMBERS) - failed
    assert shown(found) == {
        "passed": passed,
        "failed": failed,
        "dropped": failed,
        "failed_share": failed / 100,
        "max_share": 0.0,
        "total_passed": passed,
        "total_failed": failed,
        "total_dropped": failed,
        "on_violation": "drop",
    }


@pytest.mark.parametrize(("allowed", "passes"), [(0.14, False), (0.16, True)])
def test_a_share_of_violations_may_be_allowed(settings, allowed, passes):
    counted_numbers.place(settings.dir).run()
    assert share_of(counted_numbers.NUMBERS) == 0.15
    assert result(settings, expectation_max_share=allowed).passed is passes


def test_only_the_newest_epochs_count_and_the_totals_are_shown_beside_them(settings):
    counted_numbers.place(settings.dir).run()
    commits = counted_numbers.commits(settings.warehouse)
    base = next(record for record in reversed(commits) if record.epoch <= commits[-1].epoch - 3)
    window = counted_numbers.NUMBERS[len(counted_numbers.read_by(base)) :]
    metadata = shown(result(settings, audited_epochs=4))
    assert 0 < len(window) < 100
    assert metadata["failed_share"] == share_of(window)
    assert (metadata["passed"] + metadata["failed"], metadata["total_failed"]) == (len(window), 15)


def test_dagster_shows_the_check_and_the_ingest_has_the_counts(settings):
    shown = definitions(counted_numbers.app)
    (spec,) = (spec for checks in shown.asset_checks for spec in checks.check_specs if spec.name == NAME)
    assert spec.description == "None of the records of 10,000 epochs violated the expectation 'not_negative' (drop)."
    counted_numbers.place(settings.dir).run()
    metadata = ingest_metadata(newest_commit(settings.warehouse, "numbers"), ["numbers"])
    assert metadata["expectations"]["raw_value"] == {"not_negative": {"passed": 85, "failed": 15, "dropped": 15}}
    assert not [name for name in metadata if "/" in name]
