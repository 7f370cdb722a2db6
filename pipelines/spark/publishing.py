"""The publishers of a run: a process of their own beside the driver, which hears how they are doing."""

from __future__ import annotations

import logging
import subprocess
import sys
from threading import Thread

import msgspec

from weir.pipelines.publishing.process import PublishingSettings
from weir.pipelines.publishing.publisher import SinkState

log = logging.getLogger("weir.driver")

PROCESS = "weir.pipelines.publishing.process"
DRAIN_LIMIT_S = 30.0
"""How long a run that ends waits for its sinks; what is left is published by the next run."""
_STATES = msgspec.json.Decoder(list[SinkState])


class Publishers:
    """The process that publishes; started again if it is killed."""

    def __init__(self) -> None:
        self.states: list[SinkState] = []
        """How the sinks are doing, as last heard."""
        self._settings: PublishingSettings | None = None

    def start(self, settings: PublishingSettings) -> None:
        """Begin to publish; call it once the application is claimed, which creates the outboxes."""
        self._settings = settings
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
            self.states = _STATES.decode(line)

    def keep_alive(self) -> None:
        """Start the process again if it has been killed."""
        if self._settings is not None and self._process.poll() is not None and self._process.returncode < 0:
            log.warning("the publishers were ended by signal %s; they begin again", -self._process.returncode)
            self.start(self._settings)

    @property
    def waiting_bytes(self) -> int:
        """What waits for all sinks together."""
        return sum(state.waiting_bytes for state in self.states)

    def close(self) -> None:
        """Publish what is committed, as far as that is possible within the limit, and end."""
        if self._settings is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(DRAIN_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        for state in self.states:
            if state.waiting_rows:
                reason = f" ({state.error})" if state.error else ""
                log.warning(
                    "%s rows still wait for sink %r%s; the next run publishes them",
                    state.waiting_rows,
                    state.sink,
                    reason,
                )
