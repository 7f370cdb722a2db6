"""One task of each of a program's sub-topologies, with its stores on disk: without Spark, and without a broker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import polars as pl

from weir import StreamsBuilder
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.engine.session import EpochSession
from weir.state.engine.task_store import TaskStore
from weir.state.errors import MapFullError
from weir.state.types import StateId


class Task:
    """The task of a sub-topology, and its store."""

    epochs_a_commit = 1

    def __init__(self, folder: str | Path, sub_topology: SubTopology) -> None:
        self.sub_topology = sub_topology
        self.processor, self.clocks, self.epoch = TaskProcessor(sub_topology), dict[str, int](), 0
        self.instances: dict[str, object] = {}
        self.committed: StateId | None = None
        name = f"{sub_topology.index}_0"
        self.store = TaskStore.create(Path(folder, name), name, [spec.name for spec in sub_topology.stores])

    def run(self, turns: Turns, now_ms: int) -> EpochOutput:
        """One epoch; every ``epochs_a_commit``-th is committed."""
        self.epoch += 1
        state, expected = StateId(1, self.epoch), StateId(1, self.epoch - 1) if self.epoch > 1 else None
        while True:
            try:
                with self.store.session() as session:
                    with self.part("operators"):
                        output = self.processor.run(turns, session, self.clocks, now_ms, instances=self.instances)
                    self.write(session, output)
                    with self.part("store's transaction"):
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
        if self.epoch % self.epochs_a_commit == 0:
            self.committed = state
        with self.part("settle"):
            self.store.settle(generation=1, expected=state, committed=self.committed)
        self.clocks = output.clocks
        return output

    def part(self, name: str) -> AbstractContextManager[None]:
        """Around each part of an epoch, for those who measure it."""
        return nullcontext()

    def write(self, session: EpochSession, output: EpochOutput) -> None:
        """Called before an epoch's writes are applied; here files are left out."""


def turns_of(users: pl.Series, first: int = 0, **values: pl.Series) -> Turns:
    """A record of the topic "in" for each of ``users``, the key, with these values; offsets and times in ms count from
    ``first``."""
    numbers = pl.int_range(first, first + len(users), dtype=pl.Int64, eager=True)
    frame = pl.DataFrame(
        {
            "user": users,
            **values,
            "_ts": numbers,
            "_partition": pl.repeat(0, len(users), dtype=pl.Int32, eager=True),
            "_offset": numbers,
            "_deleted": pl.repeat(False, len(users), dtype=pl.Boolean, eager=True),
        }
    )
    return Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(frame, 0, 0))]).turns


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
