"""The process that answers queries of an executor's stores (run by ``python -m``): it reads, and writes nothing.

It gets a ``ServerSettings`` on standard input and tells its port on standard output. It ends when the executor does,
and when it is told so, which needs the token, too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from weir.infra.process import this_machine, when_ended
from weir.pipelines.application import load_application
from weir.pipelines.errors import QueryError
from weir.pipelines.queries.contract import Question, TaskAnswer, TaskStores, unpacked
from weir.pipelines.queries.local import LocalStores
from weir.pipelines.queries.login import ServerLogin
from weir.pipelines.queries.remote import END, address, to_table
from weir.pipelines.queries.started import Ready, ServerSettings
from weir.state.errors import StateError
from weir.state.storage.places import folder_at

log = logging.getLogger("weir.queries")

BATCH_ROWS = 65_536
PORTS = 16
"""How many ports are tried, from the first one on."""


_SETTINGS = msgspec.json.Decoder(ServerSettings)


class QueryServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers questions about ``stores`` to those who have ``token``."""

    def __init__(self, stores: TaskStores, token: str, host: str, port: int = 0) -> None:
        super().__init__(address(host, port), auth_handler=ServerLogin(token))
        self._stores = stores

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        try:
            question, tasks = unpacked(ticket.ticket)
            table = to_table([self._answer(question, task) for task in tasks])
        except Exception as error:
            log.exception("a query has failed")
            raise flight.FlightServerError(f"{type(error).__name__}: {error}") from error
        batches = table.to_batches(max_chunksize=BATCH_ROWS)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(table.schema, batches))

    def do_action(self, context: Any, action: flight.Action) -> list[Any]:
        if action.type != END:
            raise KeyError(action.type)
        Thread(target=self.shutdown, daemon=True).start()
        return []

    def _answer(self, question: Question, task: str) -> TaskAnswer:
        try:
            return self._stores.answer(question, [task])[0]
        except (QueryError, StateError) as error:
            return TaskAnswer(task=task, error=str(error))


def bound(stores: TaskStores, settings: ServerSettings) -> QueryServer:
    """A server at the first port that is free.

    Raises:
        OSError: There is none, or the address is not one of this host.
    """
    for port in range(settings.first_port, settings.first_port + PORTS - 1):
        try:
            return QueryServer(stores, settings.token, settings.host, port)
        except (pa.ArrowException, OSError):
            if not port:
                raise
    return QueryServer(stores, settings.token, settings.host, settings.first_port + PORTS - 1)


def main() -> int:
    """Answer until told to end; the exit code is 1 if the executor is gone already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all
    settings = _SETTINGS.decode(sys.stdin.buffer.readline())
    if not when_ended(settings.process, settings.process_start, lambda: os._exit(0)):
        return 1
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    topology = load_application(settings.reference).under(settings.names, settings.topics).topology
    stores = LocalStores(Path(settings.state_folder), folder_at(settings.application_folder), topology)
    server = bound(stores, settings)
    ready = Ready(port=server.port, machine=this_machine(), folder=settings.state_folder)
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.buffer.flush()
    log.info("queries are answered at %s:%s", settings.host, server.port)
    server.serve()
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # whoever still asks is not waited for
