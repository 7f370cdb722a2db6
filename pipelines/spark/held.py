"""What an executor of a cluster says as a run begins: its rack, and which tasks' stores and standbys it has. Executors
load this, drivers' parts they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from weir.infra.environment import rack_here
from weir.pipelines.spark.worker import WorkerSettings
from weir.state.engine.instances import instance_folder
from weir.state.engine.standby import reached_by


class Held(NamedTuple):
    """The answer of an executor."""

    rack: str | None
    names: Sequence[str]
    """Of the tasks whose instance it has."""
    standbys: Mapping[str, int]
    """By name, the epoch of the commit that its standby of a task has reached."""


def run_look(
    worker: WorkerSettings, instances: Mapping[str, str], generation: int, rows: Iterable[object]
) -> Iterator[Held]:
    """Inside a Spark task: what there is on this host of ``instances``, which tasks have by their names as
    ``generation`` has left them."""
    list(rows)
    state_folder = Path(worker.here().tasks.state_folder)
    here = [name for name, instance in instances.items() if instance_folder(state_folder / name, instance).is_dir()]
    standbys = {
        name: reached.commit.epoch
        for name, instance in instances.items()
        if (reached := reached_by(state_folder / name)) is not None
        and (reached.commit.generation, reached.instance) == (generation, instance)
    }
    yield Held(rack_here(), here, standbys)
