"""Standbys that follow a commit without a driver."""

from __future__ import annotations

from tests.pipelines.spark.inline import Place
from weir.pipelines.spark.standby_jobs import FollowRequest, bring
from weir.state.commit.record import CommitRecord


def follow_to(place: Place, newest: CommitRecord, name: str) -> None:
    """Build the standby of a task, given by its stored name, as of a commit."""
    request = FollowRequest(
        task=place.application.topology.task_of(name),
        executor="1",
        commit=newest.tasks[name],
        through=newest.state_id,
        generation=newest.generation,
        at_ms=newest.at_ms,
        at_s=0.0,
        logged=0,
        anew=True,
        distrusts=0,
    )
    assert bring(place.application, place.settings, request).error == ""
