"""The process that publishes an application's outboxes, one thread for each sink (run by ``python -m``).

It is apart from the driver's, so that publishing and epochs do not wait for one interpreter. Its parent gives it a
``PublishingSettings`` on the first line of standard input, and reads from standard output, line by line, how the sinks
are doing. When standard input ends, it publishes what is still committed and ends; it never outlives its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import msgspec

from weir.infra.process import end_with
from weir.pipelines.application import load_application, load_step_hook
from weir.pipelines.publishing.connection import SinkFencedError
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.publisher import MarkLostError, OtherOutboxError, Publisher, SinkState
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.sinks.sink import Sink
from weir.state.commit.log import newest_generation
from weir.state.commit.outbox import Outbox

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
    sinks = {sink.table: sink.sink for sink in application.topology.sinks if sink.sink is not None}
    publishers = [
        Publisher(
            Outbox(folder, sink.name, application.id),
            sink.name,
            lambda sink=sink: _connection(application.id, sink, settings),  # type: ignore[misc]
            is_newest=lambda: newest_generation(Path(settings.warehouse), application.id) == settings.generation,
            on_step=load_step_hook(settings.on_step),
        )
        for sink in sinks.values()
    ]
    stop, drain = Event(), Event()
    threads = [Thread(target=_run, args=(publisher, stop, drain), daemon=True) for publisher in publishers]
    for thread in threads:
        thread.start()
    Thread(target=_wait_for_the_end, args=(drain,), daemon=True).start()
    while any(thread.is_alive() for thread in threads):
        _tell(publishers)
        time.sleep(TELL_EVERY_S)
    _tell(publishers)
    return int(any(publisher.state.waiting_rows for publisher in publishers))


def _connection(application: str, sink: Sink, settings: PublishingSettings) -> KafkaConnection:
    assert isinstance(sink, KafkaTopic)
    return KafkaConnection(application, sink, settings.kafka)


def _run(publisher: Publisher, stop: Event, drain: Event) -> None:
    try:
        publisher.run(stop, drain)
    except (MarkLostError, OtherOutboxError, SinkFencedError) as error:
        log.error("%s", error)


def _wait_for_the_end(drain: Event) -> None:
    sys.stdin.buffer.read()
    drain.set()


def _tell(publishers: Sequence[Publisher]) -> None:
    states: list[SinkState] = [publisher.state for publisher in publishers]
    sys.stdout.buffer.write(msgspec.json.encode(states) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
