"""What an executor of a cluster says as a run begins: its rack, and which tasks' stores it has. Executors load this,
drivers' parts they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from weir.infra.environment import rack_here
from weir.pipelines.spark.worker import WorkerSettings
from weir.state.engine.instances import instance_folder


class Held(NamedTuple):
    """The answer of an executor."""

    rack: str | None
    names: Sequence[str]
    """Of the tasks whose instance it has."""


def run_look(worker: WorkerSettings, instances: Mapping[str, str], rows: Iterable[object]) -> Iterator[Held]:
    """Inside a Spark task: what there is on this host."""
    list(rows)
    state_folder = Path(worker.here().tasks.state_folder)
    here = [name for name, instance in instances.items() if instance_folder(state_folder / name, instance).is_dir()]
    yield Held(rack_here(), here)
