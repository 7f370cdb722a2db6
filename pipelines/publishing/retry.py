"""Sends again what a sink has put aside, with a mark of its own, up to the first that is refused once more.

Somebody asks for it. What is interrupted, by the end of a run or by a crash, the next run goes on with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Event, Lock
from typing import Any

from weir.pipelines.publishing.connection import Connection, RefusedRowsError, SinkFencedError
from weir.pipelines.publishing.publisher import Publisher, UnknownMarkError
from weir.pipelines.publishing.state import Resent
from weir.pipelines.sinks.sink import Sink
from weir.state.commit.outbox import Outbox, refused_name
from weir.state.storage.places import Place, folder_at

NAME = "_retrying"
"""In the folder of the refused rows, which takes no notice of it: they are being sent again."""


class Retry:
    """Of one sink's refused rows; any thread may run it, and one does at a time."""

    def __init__(
        self,
        app_folder: Place,
        sink: Sink,
        application: str,
        connect: Callable[[Sink, Outbox], Connection],
        **options: Any,
    ) -> None:
        """``options`` are those of the publisher that sends them."""
        self._app_folder, self._sink, self._application = app_folder, sink, application
        self._connect, self._options, self._running = connect, options, Lock()
        self._refused = folder_at(app_folder) / refused_name(sink.name)

    @property
    def is_interrupted(self) -> bool:
        """Whether one has begun that has not ended; ask before the first ``run``."""
        return self._refused.find(NAME) is not None

    def run(self, id: str = "") -> Resent:
        """Send them, however long the outside system is away; ``id`` is that of the decision."""
        with self._running:
            with suppress(OSError):  # without the note, what is interrupted waits until somebody asks again
                self._refused.put(NAME, b"")
            publisher, error, is_over = self._publisher(), "", True
            try:
                publisher.run(Event(), _drained())
            except SinkFencedError as found:
                error, is_over = str(found), False  # a newer run goes on with it
            except (RefusedRowsError, UnknownMarkError) as found:
                error = str(found)
            if is_over:
                with suppress(OSError):
                    self._refused.delete([NAME])
            return Resent(id=id, delivered_rows=publisher.state.published_rows, error=error)

    def _publisher(self) -> Publisher:
        outbox = Outbox(self._app_folder, self._sink.name, self._application, is_of_refused=True)
        sink = replace(self._sink, name=f"{self._sink.name}.refused")  # type: ignore[type-var]
        made = Publisher(
            outbox,
            sink.name,
            lambda: self._connect(sink, outbox),
            application=self._application,
            shown_key=self._sink.shown_key,
            **self._options,
        )
        made.decide("resume")
        return made


def _drained() -> Event:
    drained = Event()
    drained.set()
    return drained
