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
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event, Thread

import msgspec

from weir.infra.process import end_with
from weir.pipelines.application import load_application, load_step_hook
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.connection import SinkFencedError
from weir.pipelines.publishing.publisher import Publisher, UnknownMarkError
from weir.pipelines.publishing.state import Decision, SinkState
from weir.state.commit.log import newest_generation
from weir.state.commit.outbox import Outbox
from weir.state.commit.refused import Refused

log = logging.getLogger("weir.publisher")

TELL_EVERY_S = 0.25


class PublishingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told."""

    reference: str
    """The program, ``MODULE:APP``."""
    warehouse: str
    kafka: dict[str, str]
    """librdkafka's properties."""
    generation: int
    """The driver's."""
    on_step: str | None = None
    """As for a run."""


def main() -> int:
    """Publish until standard input ends; the exit code is 1 if rows are left."""
    parent = os.getppid()
    if not end_with(parent, signal.SIGKILL):
        return 1
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=PublishingSettings)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    application = load_application(settings.reference)
    folder = Path(settings.warehouse, application.id)
    publishers = [
        Publisher(
            Outbox(folder, sink.name, application.id),
            sink.name,
            partial(connect, application.id, sink, settings.kafka),
            application=application.id,
            target=str(sink),
            refused=Refused(folder, sink.name, application.id),
            is_newest=lambda: newest_generation(Path(settings.warehouse), application.id) == settings.generation,
            on_step=load_step_hook(settings.on_step),
        )
        for sink in application.topology.outside_sinks
    ]
    stop, drain = Event(), Event()
    threads = [Thread(target=_run, args=(publisher, stop, drain), daemon=True) for publisher in publishers]
    for thread in threads:
        thread.start()
    Thread(target=_listen, args=(publishers, drain), daemon=True).start()
    while any(thread.is_alive() for thread in threads):
        _tell(publishers)
        time.sleep(TELL_EVERY_S)
    _tell(publishers)
    return int(any(publisher.state.waiting_rows for publisher in publishers))


def _run(publisher: Publisher, stop: Event, drain: Event) -> None:
    try:
        publisher.run(stop, drain)
    except (UnknownMarkError, SinkFencedError) as error:
        log.error("%s", error)


def _listen(publishers: Sequence[Publisher], drain: Event) -> None:
    for line in sys.stdin.buffer:
        decision = msgspec.json.decode(line, type=Decision)
        for publisher in publishers:
            if publisher.state.sink == decision.sink:
                publisher.decide(decision.action)
    drain.set()


def _tell(publishers: Sequence[Publisher]) -> None:
    states: list[SinkState] = [publisher.state for publisher in publishers]
    sys.stdout.buffer.write(msgspec.json.encode(states) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
