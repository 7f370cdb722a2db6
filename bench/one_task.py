"""One task of a program on its own, with its stores on disk: without Spark, and without a broker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weir import StreamsBuilder
from weir.pipelines.tasks.order import Turns
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.tasks.processor import TaskProcessor
from weir.state.engine.task_store import TaskStore
from weir.state.errors import MapFullError
from weir.state.types import StateId


class Task:
    """The task of a program's first sub-topology, and its store."""

    def __init__(self, folder: str, builder: StreamsBuilder) -> None:
        sub_topology = builder.build().sub_topologies[0]
        self.processor, self.clocks, self.epoch = TaskProcessor(sub_topology), dict[str, int](), 0
        self.instances: dict[str, object] = {}
        self.store = TaskStore.create(Path(folder, "store"), "0_0", [spec.name for spec in sub_topology.stores])

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
    """In a folder that is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="one-task-") as folder:
        made = Task(folder, builder)
        yield made
        made.store.close()
