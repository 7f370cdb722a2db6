"""The compaction job and the quarantine: what a dry run shows, and what a run removes and reports."""

import pytest

from tests.orchestration.applications import FLIGHTS
from tests.state.quarantine_folders import DAY_S, MIB, put, quarantined_while_open
from weir.orchestration.jobs.compaction import compaction_job
from weir.orchestration.resources import WeirResource
from weir.pipelines.operations.compaction import compact_application
from weir.pipelines.operations.engines import Engine
from weir.pipelines.operations.registry import register


@pytest.fixture
def compact(settings, instance, committer, commit_of):
    """``compact(**config)`` runs the job; its metadata as plain values, and its warnings."""
    register(settings, "flights", "weir.pipelines.examples.flights:app")
    committer.commit(commit_of(1))

    def run(**config: object) -> tuple[dict[str, object], list[str]]:
        result = compaction_job([FLIGHTS]).execute_in_process(
            instance=instance,
            resources={"weir": WeirResource(dir=str(settings.dir))},
            run_config={"ops": {"weir_compact": {"config": config}}},
        )
        assert result.success
        [output] = [event for event in result.all_node_events if event.is_successful_output]
        assert isinstance(output.event_specific_data.metadata, dict)
        lines = [
            entry.user_message
            for entry in instance.all_logs(result.run_id)
            if entry.level == 30  # warnings
        ]
        return {name: entry.value for name, entry in output.event_specific_data.metadata.items()}, lines

    return run


def test_a_dry_run_shows_the_folders_that_a_run_removes(compact, settings):
    state = settings.state_dir / "flights"
    old, young = put(state, "old", age_s=8 * DAY_S, mib=2), put(state, "young", age_s=6 * DAY_S)
    for config, is_there in (({"dry_run": True}, True), ({}, False)):
        metadata, _ = compact(**config)
        assert metadata["quarantine_removed"] == [str(old)]
        assert 2 * MIB <= metadata["quarantine_removed_bytes"] < 2.1 * MIB
        assert metadata["quarantine_kept"] == []
        assert old.exists() is is_there
    assert young.exists()
    assert compact()[0]["quarantine_removed"] == []


def test_a_folder_that_stays_is_a_warning(compact, settings):
    with quarantined_while_open(settings.state_dir / "flights", "used") as used:
        metadata, warnings = compact()
    assert metadata["quarantine_kept"] == [f"{used}: a process has it open"]
    assert f"{used} stays in quarantine: a process has it open" in warnings
    assert used.exists()


@pytest.mark.parametrize(("config", "engine"), [({}, None), ({"engine": "SPARK"}, Engine.SPARK)])
def test_the_job_says_what_merges(compact, monkeypatch, config, engine):
    asked: list[Engine | None] = []

    def noted(*arguments, engine: Engine | None, **options):
        asked.append(engine)
        return compact_application(*arguments, **options)

    monkeypatch.setattr("weir.orchestration.jobs.compaction.compact_application", noted)
    compact(**config)
    assert asked == [engine]
