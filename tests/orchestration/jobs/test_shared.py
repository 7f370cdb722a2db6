"""Jobs that all applications of a code location share: a run's partition says which application it is for."""

import dagster as dg
import pytest

from tests.orchestration.applications import clicks
from weir.orchestration.application import definitions, supervise
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import BACKFILLS, TASKS
from weir.pipelines.operations.registry import register

APPLICATIONS = [supervise(clicks(name), "nowhere:app") for name in ("first", "second-one")]
SHARED = [job for job in definitions(*APPLICATIONS).get_repository_def().get_all_jobs() if job.name[:5] == "weir_"]


@pytest.fixture
def pause(settings, instance):
    """``pause(applications, partition)`` runs ``weir_pause``, which fails as no driver runs; what it says, and the
    run's tag."""

    def run(applications, partition: str | None) -> tuple[str, str | None]:
        for each in applications:
            register(settings, each.id, each.reference)
        defs = definitions(*applications, weir=WeirResource(dir=str(settings.dir)))
        result = defs.resolve_job_def("weir_pause").execute_in_process(
            instance=instance, partition_key=partition, raise_on_error=False
        )
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        tags = instance.get_run_by_id(result.run_id).tags
        return failed.user_failure_data.description, tags.get("weir/application")

    return run


def test_the_partition_names_the_application_and_its_run_has_its_tag(pause):
    said, tag = pause(APPLICATIONS, "second-one")
    assert ("second-one" in said, tag) == (True, "second-one")


def test_a_run_without_a_partition_is_for_the_only_application_and_otherwise_asks_for_one(pause):
    said, tag = pause(APPLICATIONS[:1], None)
    assert ("first" in said, tag) == (True, "first")
    assert pause(APPLICATIONS, None) == ("choose the application as the partition of the run", None)


@pytest.mark.parametrize("name", ["weir_restore", "weir_swap_backfill", "weir_discard_backfill"])
def test_a_task_or_a_backfill_of_another_code_location_is_refused(settings, instance, name):
    for partitions in (TASKS, BACKFILLS):
        instance.add_dynamic_partitions(partitions.name, ["elsewhere:0_1"])
    job = definitions(*APPLICATIONS, weir=WeirResource(dir=str(settings.dir))).resolve_job_def(name)
    for partition, expected in (("elsewhere:0_1", "elsewhere is not an application of this"), (None, "choose the ")):
        result = job.execute_in_process(instance=instance, partition_key=partition, raise_on_error=False)
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        assert failed.user_failure_data.description.startswith(expected)


def test_further_applications_add_one_job_each():
    names = [{job.name for job in definitions(*APPLICATIONS[:n]).jobs} for n in (1, 2)]
    assert names[1] - names[0] == {"second_one_run"}
    assert {job.name for job in SHARED} | {"first_run"} == names[0]


@pytest.mark.parametrize("job", SHARED, ids=lambda job: job.name)
def test_each_job_opens_on_a_valid_form_which_a_partition_fills_in(job):
    assert dg.validate_run_config(job, {})
    form = job.partitioned_config.get_run_config_for_partition_key("first")
    assert dg.validate_run_config(job, form)
    assert set(form.get("ops", {})) <= {node.name for node in job.nodes}
    assert job.partitioned_config.get_tags_for_partition_key("first")["weir/application"] == "first"
