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
        [schedule] = [each for each in definitions(*applications).schedules if each.name == f"weir_{name}"]
        return schedule.evaluate_tick(
            dg.build_schedule_context(instance=instance, resources={"weir": WeirResource(dir=str(settings.dir))})
        )

    assert requests(FLIGHTS, CLICKS).skip_message == "no application has committed anything yet"
    committer.commit(commit_of(1))
    [request] = requests(FLIGHTS, CLICKS).run_requests
    assert request.partition_key == "flights"
    assert request.tags["weir/application"] == "flights"
    assert not requests(replace(FLIGHTS, unwatched=[name]), CLICKS).run_requests
