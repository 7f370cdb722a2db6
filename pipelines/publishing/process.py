"""The process that publishes an application's outboxes, one thread for each sink (run by ``python -m``).

It is apart from the driver's, so that publishing and epochs do not wait for one interpreter. Its parent gives it a
``PublishingSettings`` on the first line of standard input and people's decisions on later ones, and reads from standard
output, line by line, how the sinks are doing. When standard input ends, it publishes what is still committed and ends;
it never outlives its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any

import msgspec

from weir.infra.process import end_with
from weir.pipelines.application import Application, load_application, load_step_hook
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.connection import SinkFencedError
from weir.pipelines.publishing.publisher import Publisher, UnknownMarkError
from weir.pipelines.publishing.retry import Retry
from weir.pipelines.publishing.state import Decision, SinkState
from weir.pipelines.sinks.sink import Sink
from weir.state.commit.log import newest_generation
from weir.state.commit.outbox import Outbox
from weir.state.commit.refused import Refused
from weir.state.storage.places import folder_at

log = logging.getLogger("weir.publisher")

TELL_EVERY_S = 0.25


class PublishingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told."""

    driver: int
    """The driver's process id. It may have died before this process could ask who its parent is."""
    reference: str
    """The program, ``MODULE:APP``."""
    warehouse: str
    kafka: dict[str, str]
    """librdkafka's properties."""
    sql_url: str
    """The URL of the database for SQL sinks without one."""
    generation: int
    """The driver's."""
    on_step: str | None = None
    """As for a run."""


_SETTINGS, _DECISIONS = msgspec.json.Decoder(PublishingSettings), msgspec.json.Decoder(Decision)


def main() -> int:
    """Publish until standard input ends; the exit code is 1 if the driver is gone already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the driver ends this process
    settings = _SETTINGS.decode(sys.stdin.buffer.readline())
    if not end_with(settings.driver, signal.SIGKILL):
        return 1
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    application = load_application(settings.reference)
    publishing = [_Publishing(sink, application, settings) for sink in application.topology.outside_sinks]
    drain = Event()
    threads = [Thread(target=each.run, args=(drain,), daemon=True) for each in publishing]
    for thread in threads:
        thread.start()
    Thread(target=_listen, args=(publishing, drain), daemon=True).start()
    while alive := [thread for thread in threads if thread.is_alive()]:
        _tell(publishing)
        alive[0].join(TELL_EVERY_S)
    _tell(publishing)
    return 0


class _Publishing:
    """One sink's publisher, and one for its refused rows whenever they are to be sent again."""

    def __init__(self, sink: Sink, application: Application, settings: PublishingSettings) -> None:
        folder = folder_at(settings.warehouse) / application.id
        connected = partial(connect, application.id, kafka=settings.kafka, sql_url=settings.sql_url)
        options: dict[str, Any] = {
            "target": str(sink),
            "is_newest": lambda: (
                newest_generation(folder_at(settings.warehouse), application.id) == settings.generation
            ),
            "on_step": load_step_hook(settings.on_step),
        }
        outbox = Outbox(folder, sink.name, application.id)
        self._publisher = Publisher(
            outbox,
            sink.name,
            partial(connected, sink, outbox),
            application=application.id,
            shown_key=sink.shown_key,
            refused=Refused(folder, sink.name, application.id),
            skips=application.on_delivery_error == "dead_letter",
            **options,
        )
        self._again = Retry(folder, sink, application.id, connected, **options)

    @property
    def state(self) -> SinkState:
        return self._publisher.state

    def run(self, drain: Event) -> None:
        if self._publisher.answered(lambda: self._again.is_interrupted, Event()):
            Thread(target=self._retry, args=("",), daemon=True).start()
        try:
            self._publisher.run(Event(), drain)
        except (UnknownMarkError, SinkFencedError) as error:
            log.error("%s", error)

    def decide(self, decision: Decision) -> None:
        if decision.action == "retry":
            self._retry(decision.id)
        else:
            self._publisher.decide(decision.action)

    def _retry(self, id: str) -> None:
        resent = self._publisher.answered(partial(self._again.run, id), Event())
        if resent is not None:
            self._publisher.answered(lambda: self._publisher.retried(resent), Event())


def _listen(publishing: Sequence[_Publishing], drain: Event) -> None:
    for line in sys.stdin.buffer:
        decision = _DECISIONS.decode(line)
        for each in publishing:
            if each.state.sink == decision.sink:
                Thread(target=each.decide, args=(decision,), daemon=True).start()
    drain.set()


def _tell(publishing: Sequence[_Publishing]) -> None:
    with suppress(BrokenPipeError):  # the driver has died, and this process is about to
        sys.stdout.buffer.write(msgspec.json.encode([each.state for each in publishing]) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # to take the interpreter down takes 0.3 s, and the driver waits for the end
