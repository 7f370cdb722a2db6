"""The publishers of a run: a process of their own beside the driver, which hears how they are doing."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread

import msgspec

from weir.pipelines.publishing.process import PublishingSettings
from weir.pipelines.publishing.state import Action, Decision, SinkState
from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.parts import NOTHING_TO_PUBLISH

log = logging.getLogger("weir.driver")

PROCESS = "weir.pipelines.publishing.process"
_DONE: dict[Action, str] = {
    "skip": "the row is put aside ({state.error}), and those after it go on",
    "resume": "publishing goes on with the rows that wait ({state.waiting_rows:,})",
    "retry": "the refused rows ({state.refused_rows:,}) are sent again, up to the first that is refused once more",
}
CAUGHT_UP_LIMIT_S, STOP_LIMIT_S = 30.0, 5.0
"""How long a run waits for its sinks that has caught up, and one that ends otherwise; what is left is published by the
next run."""
RESTART_PAUSE_S = 5.0
TELL_EVERY_S = 0.5
_STATES = msgspec.json.Decoder(list[SinkState])


class Publishers:
    """The process that publishes; started again if it is killed."""

    def __init__(self) -> None:
        self.states: list[SinkState] = []
        """How the sinks are doing, as last heard."""
        self._tells = 0
        self._settings: PublishingSettings | None = None
        self._is_closed = False
        self._died = ""
        """How the process has died last, for sinks that have taken nothing since."""

    def start(self, settings: PublishingSettings) -> None:
        """Begin to publish; call it once the application is claimed, which creates the outboxes."""
        self._settings, self._started_s = settings, time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
        self._listener = Thread(target=self._listen, args=(self._process,), name="publishers", daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.states = self._marked(_STATES.decode(line))
            self._tells += 1

    def _marked(self, states: list[SinkState]) -> list[SinkState]:
        return [
            msgspec.structs.replace(state, error=self._died)
            if self._died and state.waiting_rows and not (state.published_rows or state.error)
            else state
            for state in states
        ]

    def keep_alive(self) -> None:
        """Start the process again if it has been killed, or, after a pause, if it has failed."""
        if self._settings is None or not self._process.poll():
            return
        self._died = f"the process that publishes has died (code {self._process.returncode}); it begins again"
        self.states = self._marked(self.states)
        if self._process.returncode < 0 or time.monotonic() - self._started_s > RESTART_PAUSE_S:
            log.warning("the publishers have died (code %s); they begin again", self._process.returncode)
            self.start(self._settings)

    @property
    def tells(self) -> float:
        """How often the process has told how the sinks are doing; see ``weir.pipelines.spark.parts.Publishing``."""
        has_ended = self._settings is None or self._process.poll() == 0
        return math.inf if has_ended else self._tells

    def decide(self, decision: Decision) -> str:
        """Tell a sink what to do; see ``weir.pipelines.spark.parts.Publishing``."""
        if self._settings is None:
            return NOTHING_TO_PUBLISH.decide(decision)
        state = next((state for state in self.states if state.sink == decision.sink), None)
        if state is None:
            known = ", ".join(state.sink for state in self.states)
            raise RunError(f"there is no sink {decision.sink!r}; the sinks are {known}")
        if decision.action == "retry":
            if not state.refused_rows:
                raise RunError(f"no rows of the sink {decision.sink!r} are aside")
        elif state.awaits != decision.action:
            waits = f"it waits for somebody to {state.awaits}" if state.awaits else "it goes on by itself"
            raise RunError(f"the sink {decision.sink!r} has nothing to {decision.action}; {waits}")
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has been killed; begun again, it asks again
            self._process.stdin.write(msgspec.json.encode(decision) + b"\n")
        return _DONE[decision.action].format(state=state)

    def close(
        self,
        limit_s: float = STOP_LIMIT_S,
        stop: Event | None = None,
        tell: Callable[[Sequence[SinkState]], None] = lambda states: None,
    ) -> None:
        """Publish what is committed, as far as that is possible within the limit, and end; once is enough.

        Once ``stop`` is set, ``STOP_LIMIT_S`` is the limit. ``tell`` hears now and then how the sinks are doing.
        """
        if self._settings is None or self._is_closed:
            return
        self._is_closed, is_stopped = True, False
        until = time.monotonic() + limit_s
        while (now_s := time.monotonic()) < until:
            if stop is not None and stop.is_set() and not is_stopped:
                until, is_stopped = min(until, now_s + STOP_LIMIT_S), True
            self.keep_alive()
            assert self._process.stdin is not None
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(min(TELL_EVERY_S, max(0.0, until - now_s)))
            tell(self.states)
            if self._process.returncode is not None and self._process.returncode >= 0:
                break
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for state in self.states:
            if state.waiting_rows:
                reason = f" ({state.error})" if state.error else ""
                log.warning(
                    "sink %r: not yet published, but left to the next run: %s%s",
                    state.sink,
                    f"{state.waiting_rows:,} row{'s' * (state.waiting_rows != 1)}",
                    reason,
                )
