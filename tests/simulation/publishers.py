"""The processes that publish, as processes of a world: the real ``_Publishing`` of each sink, in simulated threads.

What ``weir.pipelines.spark.publishing`` does by pipes and signals is done here by calls: the process is begun again if
it is killed, ends with its driver or a while later, and tells now and then how its sinks do.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import tenacity

from tests.simulation.outside import Admin, Database, Outside, Writer, batches
from tests.simulation.place import SimulatedPlace
from tests.simulation.scheduler import EndlessError, Process, Scheduler
from tests.simulation.substitutes import Event
from weir.pipelines.publishing.process import PublishingSettings, _Publishing
from weir.pipelines.publishing.state import Decision, SinkState
from weir.pipelines.spark.publishing import RESTART_PAUSE_S, STOP_LIMIT_S

TELL_EVERY_S = 0.5
SETTLED_LIMIT_S = 600.0
"""How long a sink that is well may take until it has all rows."""


def is_publisher(process: Process) -> bool:
    """Whether a process is one that publishes, or a thread of one."""
    return "/p" in process.name


class Thread:
    """``threading.Thread``, which ends with its process."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        target: Callable[..., object],
        args: Sequence[Any] = (),
        daemon: bool = True,
        of: Process | None = None,
    ) -> None:
        self._scheduler, self._work, self._of = scheduler, partial(target, *args), of

    def start(self) -> Process:
        current = self._of or self._scheduler.current
        assert current is not None
        process = current.thread_of or current
        thread = self._scheduler.spawn(f"{process.name}.{len(process.threads)}", self._work)
        thread.started_by, thread.thread_of = process, process
        process.threads.append(thread)
        return thread


class Lock:
    """``threading.Lock`` for simulated processes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._is_held = scheduler, False

    def __enter__(self) -> None:
        while self._is_held:
            self._scheduler.sleep(0.1)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class SimulatedPublishers:
    """``Publishers`` of one driver."""

    def __init__(self, place: SimulatedPlace, require: Callable[[bool, str], None]) -> None:
        """``require`` notes what breaks a rule."""
        self._place, self._require, self._scheduler = place, require, place.scheduler
        self.states: Sequence[SinkState] = ()
        self._tells = self._begun = 0
        self._process: Process | None = None
        self._publishing: list[_Publishing] = []

    def start(self, generation: int) -> None:
        """Begin to publish, beside the driver that runs, if there are sinks."""
        if not self._place.application.topology.outside_sinks:
            return
        self._driver, self._generation = self._scheduler.current, generation
        self._drain = Event(self._scheduler)
        self._begin()

    @property
    def is_alive(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.is_alive

    @property
    def tells(self) -> float:
        """As of ``Publishing``."""
        has_ended = self._process is None or (not self._process.is_alive and self._process.result == 0)
        return math.inf if has_ended else self._tells

    def keep_alive(self) -> None:
        """Begin the process again if it was killed, or, after a pause, if it has failed."""
        process = self._process
        if process is None or process.is_alive or process.result == 0:
            return
        if process.error is None or self._scheduler.now_s - self._began_s > RESTART_PAUSE_S:
            self._begin()

    def decide(self, decision: Decision) -> str:
        """Tell a sink what to do."""
        for each in self._publishing if self.is_alive else ():
            if each.state.sink == decision.sink:
                self._thread(each.decide, decision).start()
        return decision.action

    def settle(self) -> None:
        """Wait until nothing waits and nothing is aside; what is aside is sent again.

        Raises:
            EndlessError: That takes too long.
        """
        until_s, retrying = self._scheduler.now_s + SETTLED_LIMIT_S, dict[str, Process]()
        told = self._tells
        while self.is_alive and (self._tells == told or not self._has_settled()):
            if self._scheduler.now_s > until_s:
                raise EndlessError(f"sinks have not caught up: {self.states}")
            for each, state in zip(self._publishing, self.states, strict=False):
                if state.refused_rows and not (state.sink in retrying and retrying[state.sink].is_alive):
                    decision = Decision(sink=state.sink, action="retry")
                    retrying[state.sink] = self._thread(each.decide, decision).start()
            self._scheduler.sleep(TELL_EVERY_S)

    def close(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Publish what is committed, within the limit, and end."""
        if self._process is None:
            return
        self._drain.set()
        until_s = self._scheduler.now_s + limit_s
        while self._process.result != 0 and self._scheduler.now_s < until_s:
            self.keep_alive()
            self._scheduler.sleep(0.1)
        if self._process.is_alive:
            self._scheduler.kill(self._process)
        self._process = None

    def _has_settled(self) -> bool:
        return bool(self.states) and not any(state.waiting_rows or state.refused_rows for state in self.states)

    def _begin(self) -> None:
        self._begun += 1
        self._publishing = []
        self._began_s = self._scheduler.now_s
        name = self._driver.name if self._driver else "d"
        self._process = self._scheduler.spawn(f"{name}/p{self._begun}", self._main)

    def _main(self) -> int:
        scheduler, place = self._scheduler, self._place
        settings = PublishingSettings(
            driver=0,
            reference="",
            warehouse=str(place.warehouse),
            kafka={"bootstrap.servers": "outside:9092"},
            sql_url=f"sqlite:///{place.folder / 'outside.sqlite'}",
            generation=self._generation,
        )
        application = place.application
        self._publishing = [_Publishing(sink, application, settings) for sink in application.topology.outside_sinks]
        process = scheduler.current
        assert process is not None
        threads = [Thread(scheduler, target=each.run, args=(self._drain,)).start() for each in self._publishing]
        lingers_s = scheduler.rng.choice([0.0, 0.5, 5.0, 20.0])
        while any(thread.is_alive for thread in threads):
            self._tell()
            if self._driver is not None and not self._driver.is_alive:
                if lingers_s <= 0:
                    break
                lingers_s -= TELL_EVERY_S
            scheduler.sleep(TELL_EVERY_S)
        self._tell()
        for thread in process.threads:
            if thread.is_alive:
                scheduler.kill(thread)
            self._require(thread.error is None, f"24: what publishes has ended: {thread.error!r}")
        return 0

    def _thread(self, work: Callable[..., object], *arguments: Any) -> Thread:
        return Thread(self._scheduler, target=work, args=arguments, of=self._process)

    def _tell(self) -> None:
        self.states = [each.state for each in self._publishing]
        self._tells += 1
        for state in self.states:
            self._require(state.awaits != "resume", f"24: it is not known what a sink has: {state.error}")


@contextmanager
def publishing_substitutes(scheduler: Scheduler, outside: Outside) -> Iterator[None]:
    """Within the block what publishes lives in the simulated world."""
    rng, loaded = scheduler.rng, sys.modules
    rows = rng.choice([1, 3, 20])
    with ExitStack() as stack:
        replaced = lambda module, **members: stack.enter_context(
            patch.multiple(loaded[f"weir.pipelines.publishing.{module}"], **members)
        )
        event, thread = partial(Event, scheduler), partial(Thread, scheduler)
        replaced("process", Event=event, Thread=thread, load_step_hook=lambda reference: scheduler.point)
        replaced("retry", Event=event, Lock=partial(Lock, scheduler))
        replaced("publisher", LOOK_EVERY_S=0.25, REMOVE_EVERY_S=0.5, LONGEST_WAIT_S=5.0)  # fewer looks, shorter worlds
        replaced("connect", SqlConnection=partial(Database, outside), BatchConnection=partial(batches, outside))
        kafka, sql = (loaded[f"weir.pipelines.publishing.{name}"] for name in ("kafka", "sql"))
        writer = partial(Writer, outside)
        replaced("kafka", KafkaAdmin=Admin, TransactionalWriter=writer, LIMITS=replace(kafka.LIMITS, rows=rows))
        replaced("sql", LIMITS=replace(sql.LIMITS, rows=rows))
        stack.enter_context(patch.object(tenacity.wait, "random", random.Random(rng.random())))
        yield
