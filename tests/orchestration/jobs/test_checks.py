"""Audit and verification make all checks of an application between them."""

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.application import definitions
from weir.orchestration.checks import light
from weir.orchestration.checks.lag import unknown_lag
from weir.orchestration.jobs import checks
from weir.orchestration.resources import WeirResource

FULL = {"state_equals_changelog", "files_readable"}


@pytest.fixture
def run(settings, instance, monkeypatch):
    """``run(job)`` runs it for the flights, without a broker."""
    monkeypatch.setattr(checks, "current_lag", lambda supervised, settings: unknown_lag(supervised, OSError("down")))
    defs = definitions(FLIGHTS, weir=WeirResource(dir=str(settings.dir)))

    def execute(job: str) -> dg.ExecuteInProcessResult:
        return defs.resolve_job_def(job).execute_in_process(
            instance=instance, partition_key="flights", raise_on_error=False
        )

    return execute


@pytest.mark.usefixtures("database")
def test_the_audit_makes_every_check_but_those_that_read_everything(run):
    made = {evaluation.asset_check_key for evaluation in run("weir_audit").get_asset_check_evaluations()}
    every = {key for each in definitions(FLIGHTS).asset_checks for key in each.check_keys}
    assert made == {key for key in every if key.name not in FULL}
    verified = run("weir_verify")
    assert verified.success
    assert {each.asset_check_key for each in verified.get_asset_check_evaluations()} == every - made


def test_a_verification_that_finds_a_difference_fails_with_it_and_the_check_shows_it(run, committer, commit_of):
    committer.commit(commit_of(1))
    result = run("weir_verify")
    assert not result.success
    [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failed.user_failure_data.description.startswith("flights/ingest state_equals_changelog: ")
    evaluations = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert not evaluations["state_equals_changelog"].passed
    assert evaluations["files_readable"].passed, "the others are made all the same"


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("job", "broken", "sentence"),
    [
        ("weir_audit", "running_result", "running could not be made: the disk is gone"),
        ("weir_audit", "commit_results", "the checks of commits could not be made: the disk is gone"),
        ("weir_verify", "state_result", "state_equals_changelog could not be made: the disk is gone"),
    ],
)
def test_a_check_that_cannot_be_made_keeps_no_other_from_being_made_and_fails_the_run(
    run, monkeypatch, job, broken, sentence
):
    def made() -> tuple[dg.ExecuteInProcessResult, set[dg.AssetCheckKey]]:
        result = run(job)
        return result, {each.asset_check_key for each in result.get_asset_check_evaluations()}

    def fails(*_args) -> None:
        raise OSError("the disk is gone")

    _, every = made()
    monkeypatch.setattr(light if broken == "commit_results" else checks, broken, fails)
    result, others = made()
    assert not result.success
    [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failed.user_failure_data.description == sentence
    missing = {key.name for key in every - others}
    if broken == "commit_results":
        assert missing == {key.name for key in _audited_commits()}
    else:
        assert missing == {sentence.split()[0]}


def _audited_commits() -> set[dg.AssetCheckKey]:
    [audit] = [each for each in definitions(FLIGHTS).asset_checks if each.op.name == "flights_audit_commits"]
    return set(audit.check_keys)
