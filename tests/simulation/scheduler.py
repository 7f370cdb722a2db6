"""A scheduler of simulated processes: one runs at a time, and a seed decides who is next and how the time passes.

A process is a greenlet. It hands over at points that the code under test passes, and while it sleeps. One that is
killed is never resumed, so that not even a ``finally`` of it runs, as after kill -9.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from traceback import walk_stack
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

STEP_S = 0.004
"""How long the way from one point to the next takes at most."""
LOOK_S = 0.05
"""How often somebody who waits looks."""


class EndlessError(AssertionError):
    """What was waited for did not happen within so many steps."""


def _place(process: Process) -> str:
    """Where a process is, from its innermost function outwards."""
    names = [frame.f_code.co_name for frame, _ in walk_stack(process.gr_frame)]
    return f"{process.name} is in {' < '.join(names)}"


class Process(greenlet):  # type: ignore[misc]
    """One process of the world."""

    def __init__(self, scheduler: Scheduler, name: str, parent: Process | None, work: Callable[[], object]) -> None:
        super().__init__(self._work, scheduler.hub)
        self.name, self.started_by, self._run, self._scheduler = name, parent, work, scheduler
        self.wakes_s = scheduler.now_s
        self.threads: list[Process] = []
        """Processes that end with it, as threads do."""
        self.thread_of: Process | None = None
        self.is_alive, self.error, self.result = True, None, None
        self.error: BaseException | None
        self.result: Any
        self.is_excused = self.has_failed = self.has_seen_wrong = False
        """Of a driver: whether an error may end it, whether a call has failed, and whether a topic has gone wrong."""

    def _work(self) -> None:
        try:
            self.result = self._run()
        except GreenletExit:
            return
        except BaseException as error:
            self.error = error
        self.is_alive = False
        self._scheduler.note(f"ends: {type(self.error).__name__}" if self.error else "ends")


class Scheduler:
    """Runs processes in turns."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.now_s, self.steps = rng, 0.0, 0
        self.wall_ahead_s = 0.0
        """How far the wall clock is ahead of the one that only goes forward; negative if it was set back."""
        self.history: list[str] = []
        self.processes: list[Process] = []
        self.on_point: Callable[[Process, str], None] = lambda process, label: None
        """Called at each point; may kill the process or put it to sleep."""
        self.hub = getcurrent()
        self._dead: list[Process] = []
        """Referred to until the end, since a greenlet that nobody refers to is unwound."""

    @property
    def current(self) -> Process | None:
        """The process that runs, if it is not the world itself."""
        found = getcurrent()
        return found if isinstance(found, Process) and found.is_alive else None

    def spawn(self, name: str, work: Callable[[], object]) -> Process:
        """A new process, a child of the one that runs."""
        process = Process(self, name, self.current, work)
        self.processes.append(process)
        return process

    def note(self, text: str) -> None:
        """Add a line to the history."""
        process = self.current or getcurrent()
        self.history.append(f"{self.now_s:9.3f} {getattr(process, 'name', 'world'):12} {text}")

    def point(self, label: str) -> None:
        """A point at which others may run, and at which the process may die."""
        process = self.current
        if process is None:
            return
        self.note(label)
        self.now_s += self.rng.random() * STEP_S
        self.on_point(process, label)
        self.hub.switch()

    def sleep(self, seconds: float) -> None:
        """Let others run for so long at least."""
        process = self.current
        if process is None:
            self.now_s += max(0.0, seconds)
            return
        process.wakes_s = self.now_s + max(0.0, seconds)
        self.hub.switch()

    def wait(self, is_so: Callable[[], bool], most_s: float) -> None:
        """Let others run until ``is_so`` is true, or for so long."""
        end_s = self.now_s + most_s
        while not is_so() and self.now_s < end_s:
            self.sleep(min(LOOK_S, end_s - self.now_s))

    def kill(self, process: Process) -> None:
        """The process never runs again; the caller hands over if it is the process itself."""
        self.note(f"kill {process.name}")
        for each in (process, *process.threads):
            each.is_alive = False
            self._dead.append(each)

    def run(self, until: Callable[[], bool], most_steps: int) -> None:
        """Give turns until ``until`` is true.

        Raises:
            EndlessError: That has not happened after ``most_steps`` turns, or no process is left.
        """
        for _ in range(most_steps):
            if until():
                return
            self.processes = [process for process in self.processes if process.is_alive]
            if not self.processes:
                raise EndlessError("no process is left")
            ready = [process for process in self.processes if process.wakes_s <= self.now_s]
            if not ready:
                self.now_s = min(process.wakes_s for process in self.processes)
                continue
            self.steps += 1
            (ready[0] if len(ready) == 1 else self.rng.choice(ready)).switch()
        raise EndlessError(f"nothing ended within {most_steps} steps; " + "; ".join(map(_place, self.processes)))

    def end(self) -> None:
        """Unwind what is left of all processes; nothing that they do then is part of the history."""
        history = list(self.history)
        for process in (*self.processes, *self._dead):
            process.is_alive = False
            if not process.dead:
                with suppress(BaseException):  # it is dead in any case
                    process.throw(GreenletExit)
        self.history = history
