"""One task of each of a program's sub-topologies, with its stores on disk: without Spark, and without a broker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weir import StreamsBuilder
from weir.pipelines.tasks.order import Turns
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.engine.task_store import TaskStore
from weir.state.errors import MapFullError
from weir.state.types import StateId


class Task:
    """The task of a sub-topology, and its store."""

    def __init__(self, folder: str, sub_topology: SubTopology) -> None:
        self.sub_topology = sub_topology
        self.processor, self.clocks, self.epoch = TaskProcessor(sub_topology), dict[str, int](), 0
        self.instances: dict[str, object] = {}
        name = f"{sub_topology.index}_0"
        self.store = TaskStore.create(Path(folder, name), name, [spec.name for spec in sub_topology.stores])

    def run(self, turns: Turns, now_ms: int) -> EpochOutput:
        """One epoch, committed."""
        self.epoch += 1
        state, expected = StateId(1, self.epoch), StateId(1, self.epoch - 1) if self.epoch > 1 else None
        while True:
            try:
                with self.store.session() as session:
                    output = self.processor.run(turns, session, self.clocks, now_ms, instances=self.instances)
                    self.store.apply(
                        session,
                        state=state,
                        expected=expected,
                        generation=1,
                        plan_hash=str(state),
                        make_receipt=lambda _: b"",
                    )
                break
            except MapFullError:
                self.store.grow()
                self.instances.clear()
        self.store.settle(generation=1, expected=state, committed=state)
        self.clocks = output.clocks
        return output


@contextmanager
def task_of(builder: StreamsBuilder) -> Iterator[Task]:
    """That of the program's first sub-topology, in a folder that is removed at the end of the block."""
    with tasks_of(builder) as made:
        yield made[0]


@contextmanager
def tasks_of(builder: StreamsBuilder) -> Iterator[list[Task]]:
    """One of each sub-topology, by its index."""
    with tempfile.TemporaryDirectory(prefix="one-task-") as folder:
        made = [Task(folder, sub_topology) for sub_topology in builder.build().sub_topologies]
        yield made
        for task in made:
            task.store.close()
