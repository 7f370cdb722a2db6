"""Publishing in batches to a sink that keeps no mark: at least once (PROTOCOL 35)."""

from __future__ import annotations

import copy
import logging

import polars as pl

from weir.pipelines.publishing.connection import BatchLimits, Published, RefusedRowsError, SinkError
from weir.pipelines.publishing.mark_file import MarkFile
from weir.pipelines.serdes.values import as_datetimes
from weir.pipelines.sinks.batched import BatchedSink
from weir.pipelines.sinks.own import Batch, RefusedError, Sink
from weir.state.commit.outbox import Outbox
from weir.state.own_code import failures

log = logging.getLogger("weir.publisher")

_BRACKETS_BYTES = 1
"""What an array has in JSON beside its rows and as many separators."""


class BatchConnection:
    """A copy of the sink, opened, and the mark in the outbox: only after a batch is sent it moves."""

    def __init__(self, application: str, sink: BatchedSink, outbox: Outbox, sender: Sink) -> None:
        """
        Raises:
            SinkError: The sink cannot be opened.
        """
        self._application, self._sink, self._outbox = application, sink, outbox
        self.limits = BatchLimits(
            rows=sink.max_records, size_bytes=max(1, sink.max_bytes - _BRACKETS_BYTES), one_epoch=True
        )
        self._mark = MarkFile(outbox.folder)
        self._sender = copy.copy(sender)
        try:
            self._sender.open()
        except failures() as error:
            self.close()
            raise _sink_error("open", error) from error

    def published(self) -> Published | None:
        return self._mark.read()

    def publish(self, rows: pl.DataFrame, published: Published) -> None:
        if not rows.is_empty():
            refusals = self._mark.refusals()  # the batch of one who is fenced would come after those of the other
            self._send(rows, published, refusals)
        self._mark.write(published)

    def close(self) -> None:
        try:
            self._sender.close()
        except failures():
            log.warning("sink %r: close() failed", self._sink.name, exc_info=True)

    def _send(self, rows: pl.DataFrame, published: Published, refusals: int) -> None:
        mark = self._outbox.committed_as(published.mark)
        place = f"{mark.epoch}/{mark.rows - rows.height}+{rows.height}"
        batch = Batch(
            rows=pl.DataFrame(list(map(as_datetimes, self._sink.rows(rows).get_columns()))),
            idempotency_key=f"{self._application}/{self._outbox.sink}/{place}/{self._outbox.committed_id}"
            + _attempt(refusals, is_retry=self._outbox.is_of_refused),
            sink=self._outbox.sink,
            epoch=mark.epoch,
        )
        try:
            self._sender.send(batch)
        except RefusedError as error:
            self._mark.count_refusal()  # a server may answer a key that it knows as before
            raise RefusedRowsError(str(error), is_batch=True) from error
        except failures() as error:
            raise _sink_error("send", error) from error


def _attempt(refusals: int, *, is_retry: bool) -> str:
    """The end of a key that no refused batch has had yet."""
    if is_retry:
        return f"/retry-{refusals + 1}"
    return f"/{refusals}" if refusals else ""  # a crash came between a refusal and putting the rows aside


def _sink_error(what: str, error: BaseException) -> SinkError:
    if isinstance(error, SinkError):
        return error
    return SinkError(f"{what}() failed: {type(error).__name__}: {error}")
