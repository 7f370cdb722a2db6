"""A schedule has a run for each application that has committed something."""

from dataclasses import replace

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS, clicks
from weir.orchestration.application import SCHEDULES, definitions, supervise
from weir.orchestration.resources import WeirResource

CLICKS = supervise(clicks("clicking"), "nowhere:app")


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_asks_for_one_run_per_application_unless_it_is_left_alone(
    settings, instance, committer, commit_of, name
):
    def requests(*applications):
        repository = definitions(*applications).get_repository_def()
        context = dg.build_schedule_context(
            instance=instance, repository_def=repository, resources={"weir": WeirResource(dir=str(settings.dir))}
        )
        return repository.get_schedule_def(f"weir_{name}").evaluate_tick(context)

    assert requests(FLIGHTS, CLICKS).skip_message == "no application has committed anything yet"
    committer.commit(commit_of(1))
    [request] = requests(FLIGHTS, CLICKS).run_requests
    assert request.partition_key == "flights"
    assert request.tags["weir/application"] == "flights"
    assert not requests(replace(FLIGHTS, unwatched=[name]), CLICKS).run_requests
