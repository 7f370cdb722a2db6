"""Backfills of a world: an operator makes one of the same program, beside live drivers, and swaps it in.

Its processes may be killed at any of their steps, and are begun again as docs/backfill.md says: what is not complete is
discarded, and a complete one goes on where it is. Outputs and stores afterwards are those of the model all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from functools import partial
from random import Random

from tests.simulation.brokers import Brokers
from tests.simulation.invariants import Invariants
from tests.simulation.outcome import DifferenceError
from tests.simulation.place import SimulatedPlace
from tests.simulation.scheduler import Process
from tests.simulation.shadows import Cluster, run_shadow
from weir.pipelines.application import Application
from weir.pipelines.backfill.begin import begin_everything, begin_from_kafka
from weir.pipelines.backfill.errors import BeginningLostError, HistoryLostError, NoCutError
from weir.pipelines.backfill.everything import commit_of, is_behind, require_all_arrived, swap_everything
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.backfill.ranges import whole_ranges
from weir.pipelines.backfill.shadow import EVERYTHING, Days, Shadow, shadows
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.spark.errors import TaskFailedError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.errors import FencedError, SwapRefusedError

FOLDER = "shadows"
"""Where the local state of shadows is, in the folder of a world."""
DAYS = Days(first=date(1970, 1, 1), end=date(1970, 1, 2))
"""All records are of this day."""
TRIES, SWAPS = 3, 4
"""How many backfills are begun at most, and how often each is tried to be swapped in."""
PATIENCE_S = 20.0
"""So long a backfill waits for a commit, and one of everything until no driver runs."""


class Backfills:
    """The operator, and the processes that it starts."""

    def __init__(
        self, place: SimulatedPlace, invariants: Invariants, rng: Random, are_drivers_alive: Callable[[], bool]
    ) -> None:
        self._place, self._invariants, self._rng = place, invariants, rng
        self._brokers: Brokers = place.topics
        self._are_drivers_alive = are_drivers_alive
        self._scheduler = place.scheduler
        self._made: Shadow | None = None
        """The newest backfill."""

    def live(self) -> None:
        """Make a backfill and swap it in; if that is refused too often, discard it and make another one."""
        for _ in range(TRIES):
            self._scheduler.wait(lambda: bool(self._invariants.commits), PATIENCE_S)
            self._scheduler.sleep(self._rng.uniform(0.0, 1.0))
            if self._is_done("make", self._make) and self._is_swapped_in():
                return
            self._is_done("discard", self._discard)

    def require_removed(self) -> None:
        """Raise ``DifferenceError`` if the folder of a backfill that is swapped in is still there."""
        commit = self._newest()
        left = {shadow.id for shadow in self._shadows()}
        for note in commit.swapped if commit else ():
            if note.backfill in left:
                raise DifferenceError(f"backfill {note.backfill} is swapped in, and its folder is still there")

    def _shadows(self) -> list[Shadow]:
        return list(shadows(self._place.warehouse, self._place.folder / FOLDER, self._place.application.id))

    def _newest(self) -> CommitRecord | None:
        return newest_commit(self._place.warehouse, self._place.application.id)

    @property
    def _program(self) -> Application:
        return self._place.application.over(self._newest())

    def _is_noted(self) -> bool:
        """Whether a commit has swapped the backfill in: that is once, however often it is asked for."""
        commit, made = self._newest(), self._made
        return bool(commit and made) and made.id in {note.backfill for note in commit.swapped}

    def _is_done(self, name: str, work: Callable[[], bool]) -> bool:
        """Whether a process of its own has done some work; it may be killed meanwhile, or be refused."""
        process = self._scheduler.spawn(f"{name} backfill", work)
        lasts_s = self._rng.choice([math.inf, math.inf, self._rng.uniform(0.0, 0.2), self._rng.uniform(0.0, 2.0)])
        self._scheduler.wait(lambda: not process.is_alive, lasts_s)
        if process.is_alive:
            self._kill(process)
        if process.error is not None and not self._may_end_in(process.error):
            raise process.error
        return bool(process.result)

    def _kill(self, process: Process) -> None:
        self._scheduler.kill(process)
        for worker in list(self._scheduler.processes):
            if worker.started_by is process:
                self._scheduler.kill(worker)

    def _may_end_in(self, error: BaseException) -> bool:
        """Whether a backfill is rightly refused: nothing can be made of what retention has taken, nor be compared with
        rows that are under way, or with what another driver is changing."""
        self._scheduler.note(f"refused: {error}")
        if self._is_noted():
            return True
        if isinstance(error, BeginningLostError | HistoryLostError | TaskFailedError):
            return any(self._brokers.oldest.values())
        return isinstance(error, NoCutError | SwapRefusedError | FencedError)

    def _is_swapped_in(self) -> bool:
        """Whether one of several tries has swapped in the complete backfill."""
        shadow = self._made
        assert shadow is not None
        is_whole = shadow.backfill.days == EVERYTHING
        swap = partial(self._swap_everything if is_whole else self._swap_days, shadow)
        for _ in range(SWAPS):
            self._scheduler.sleep(self._rng.uniform(0.0, 0.5))
            if is_whole and self._rng.random() < 0.7:
                self._scheduler.wait(lambda: not self._are_drivers_alive(), PATIENCE_S)
            if self._is_done("swap", swap):
                return True
        return False

    # The work of its processes

    def _make(self) -> bool:
        place, program = self._place, self._program
        of_days = bool(day_outputs(program.topology).swapped) and self._rng.random() < 0.5
        begin = partial(begin_from_kafka, days=DAYS) if of_days else begin_everything
        shadow = self._made = begin(program, place.warehouse, place.folder / FOLDER, Cluster(self._brokers))
        run_shadow(place, self._brokers, shadow, shadow.backfill.ranges)
        return True

    def _discard(self) -> bool:
        for shadow in self._shadows():
            self._scheduler.point(f"discards {shadow.id}")
            shadow.remove()
        return True

    def _swap_everything(self, shadow: Shadow) -> bool:
        """Catch up, and swap at rest; a driver that runs all the same is fenced."""
        place, program, live = self._place, self._program, self._newest()
        assert live is not None
        if self._is_noted():
            return True
        require_all_arrived(program, shadow, live)
        if is_behind(program, live, commit_of(program, shadow)):
            run_shadow(place, self._brokers, shadow, whole_ranges(program, Cluster(self._brokers), live))
        epoch = swap_everything(place.warehouse, program, shadow, self._scheduler.point)
        self._scheduler.note(f"{shadow.id} is swapped in by the commit of epoch {epoch}")
        return True

    def _swap_days(self, shadow: Shadow) -> bool:
        """Ask the driver that runs, or swap at rest."""
        place = self._place
        if self._is_noted():
            return True
        prepare(shadow, self._scheduler.point)
        if not self._are_drivers_alive():
            epoch = swap_at_rest(place.warehouse, self._program, shadow.id, self._scheduler.point)
            self._scheduler.note(f"{shadow.id} is swapped in by the commit of epoch {epoch}")
            return True
        number = place.desk.ask("swap", backfill=shadow.id)
        self._scheduler.wait(lambda: number in place.desk.answers or not self._are_drivers_alive(), math.inf)
        answer, is_refused = place.desk.answers.get(number, ("no answer", True))
        self._scheduler.note(answer)
        return not is_refused
