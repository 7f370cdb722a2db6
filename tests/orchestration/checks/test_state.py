"""The comparison of local state with changelogs and the commit log, as checks; sensors/test_repair.py has lost rows."""

import dagster as dg

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.checks.commits import commit_checks
from weir.orchestration.checks.state import state_checks
from weir.orchestration.resources import WeirResource


def test_a_task_without_its_store_fails_the_comparison_with_its_changelog(committer, commit_of, settings):
    committer.commit(commit_of(1))
    for check in state_checks(FLIGHTS):
        result = check(WeirResource(dir=str(settings.dir)))
        assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "wanted i, found nothing" in result.description
        assert not result.metadata["in_doubt"].value, "there is nothing to go on with"


def test_the_checks_that_find_errors_block_what_is_downstream():
    specs = [spec for check in (commit_checks(FLIGHTS), *state_checks(FLIGHTS)) for spec in check.check_specs]
    assert {spec.name for spec in specs if spec.blocking} == {
        "offsets_continuous",
        "rows_as_committed",
        "state_equals_changelog",
        "sampled_state_equals_changelog",
    }
