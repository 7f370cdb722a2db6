"""One task of the topology test driver: its operators, its store and its clocks, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from weir.pipelines.expectations import counts_of_dead_letters
from weir.pipelines.on_error import ErrorHandling
from weir.pipelines.serdes.source import BadRecord, RawRecords
from weir.pipelines.tasks.attempts import Attempts
from weir.pipelines.tasks.global_tables import GlobalTables
from weir.pipelines.tasks.order import Arrivals, Part, Turns
from weir.pipelines.tasks.output import EpochOutput, joined
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology.sub_topology import SubTopology
from weir.state.engine.backing import opened_stores, suppliers_of
from weir.state.engine.memory import MemoryStore
from weir.state.types import StateId

GENERATION = 1
__tracebackhide__ = True  # pytest shows the test's own lines


class Task:
    """One sub-topology over partition 0, with its store and clocks."""

    def __init__(
        self,
        sub_topology: SubTopology,
        global_tables: GlobalTables,
        handling: ErrorHandling,
        with_headers: Callable[[Sequence[BadRecord]], list[BadRecord]],
    ) -> None:
        self.sub_topology, self._handling, self._with_headers = sub_topology, handling, with_headers
        self._make_processor = partial(TaskProcessor, sub_topology, global_tables.by_store, is_debug=True)
        self._processor = self._make_processor()
        suppliers = suppliers_of(sub_topology.stores)
        self._folder = TemporaryDirectory(prefix="weir-own-stores-") if suppliers else None
        self.store = MemoryStore(
            f"{sub_topology.index}_0",
            [store.name for store in sub_topology.stores],
            {} if self._folder is None else opened_stores(Path(self._folder.name), suppliers),
        )
        self._state: StateId | None = None
        self.clocks: Mapping[str, int] = {}
        self._instances: dict[str, object] = {}

    def close(self) -> None:
        """Close the users' stores and remove their files."""
        self.store.close()
        if self._folder is not None:
            self._folder.cleanup()

    def restart(self) -> None:
        """Go on with new processors, and with the stores and clocks of the last epoch."""
        self._processor, self._instances = self._make_processor(), {}

    def run(
        self,
        parts: Sequence[Part],
        now_ms: int,
        raws: Mapping[str, RawRecords],
        *,
        end_time_ms: int | None = None,
        stops: bool = False,
    ) -> tuple[EpochOutput, list[BadRecord]]:
        """Run one epoch, apply and commit it; also the records that it puts aside. ``raws`` are those piped, by topic,
        as a consumer delivers them. After the rows stream time advances to ``end_time_ms``, and processors are closed
        if the task ``stops``."""
        state = StateId(GENERATION, self._state.epoch + 1 if self._state else 1)
        instances, self._instances = self._instances, {}  # after an error they have seen what the stores have not
        with self.store.session() as session:

            def run(
                turns: Turns,
                clocks: Mapping[str, int],
                *,
                is_last: bool,
                time_ms: int | None = None,
                begins_time: bool = False,
            ) -> EpochOutput:
                return self._processor.run(
                    turns,
                    session,
                    clocks,
                    now_ms,
                    lets_idle=is_last,
                    end_time_ms=end_time_ms if is_last else time_ms,
                    moves_clocks=is_last,
                    begins_time=begins_time,
                    instances=instances,
                    stops=stops and is_last,
                )

            attempts = Attempts(
                run=run,
                handling=self._handling,
                session=session,
                instances=instances,
                raws=raws,
                edges=self.sub_topology.edges_in,
                partition=0,
                stops_records=self.sub_topology.stops_records,
                with_headers=self._with_headers,
            )
            retries, first, turns = 0, 0, Arrivals(parts).turns
            outputs = attempts.process(turns, self.clocks, is_last=True)
            while (waiting := attempts.waiting) is not None:  # a retry comes at once
                retries += 1
                turns, first = turns[waiting.place - first :], waiting.place
                attempts.tried, attempts.tried_place, attempts.waiting = waiting.tried, first, None
                outputs += attempts.process(turns, outputs[-1].clocks, first=first, is_last=True)
            if attempts.stopped is not None:
                raise attempts.stopped.error
            output = joined(outputs, self.sub_topology.sinks)
            output.counts.update(counts_of_dead_letters(attempts.dead))
            output.counts["dead_letters"] = len(attempts.dead)
            output.counts["failed_records"] = len(attempts.left_out)
            output.counts["retries"] = retries
            applied = self.store.apply(
                session,
                state=state,
                expected=self._state,
                generation=GENERATION,
                plan_hash=str(state),
                make_receipt=lambda _: b"done",
            )
        if applied is None:
            raise RuntimeError(f"task {self.store.task_id}: its store is not at {self._state}")
        self.store.settle(generation=GENERATION, expected=state, committed=state)
        self._state, self.clocks, self._instances = state, dict(output.clocks), instances
        return output, attempts.dead
