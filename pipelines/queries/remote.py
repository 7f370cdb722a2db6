"""The stores of tasks on an executor of a cluster: a server there is asked over Arrow Flight."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from pyarrow import flight

from weir.pipelines.errors import QueryError
from weir.pipelines.queries.contract import AwayError, Question, TaskAnswer, packed
from weir.pipelines.queries.login import ClientLogin
from weir.state.types import Positions

LOGIN_LIMIT_S = 3.0
"""How long it may take to reach a server and to log in."""
ANSWER_LIMIT_S = 60.0
"""How long an answer may take, with all its rows."""
ANSWERS, END = b"weir.answers", "end"
"""Where a table has what its tasks have answered beside rows; and the action that ends a server."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ``TaskAnswer`` without its rows, which are the next ``height`` of the table; -1 for none."""

    task: str
    height: int = -1
    reached: Positions | None = None
    behind: str = ""
    has_state: bool = True
    error: str = ""


_PARTS = msgspec.json.Decoder(list[Part])


def address(host: str, port: int) -> str:
    """As Flight writes it."""
    return f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}"


def to_table(answers: Sequence[TaskAnswer]) -> pa.Table:
    """Answers as one table: the rows of all tasks, and the rest in the metadata of its schema."""
    parts = [
        Part(
            task=answer.task,
            height=-1 if answer.rows is None else answer.rows.height,
            reached=answer.reached,
            behind=answer.behind,
            has_state=answer.has_state,
            error=answer.error,
        )
        for answer in answers
    ]
    rows = [answer.rows for answer in answers if answer.rows is not None]
    table = pl.concat(rows).to_arrow() if rows else pa.table({})
    return table.replace_schema_metadata({**(table.schema.metadata or {}), ANSWERS: msgspec.json.encode(parts)})


def from_table(table: pa.Table) -> list[TaskAnswer]:
    """The inverse of ``to_table``."""
    parts, at = _PARTS.decode(table.schema.metadata[ANSWERS]), 0
    rows = pl.DataFrame(pl.from_arrow(table))
    found = []
    for part in parts:
        found.append(
            TaskAnswer(
                task=part.task,
                rows=None if part.height < 0 else rows.slice(at, part.height),
                reached=part.reached,
                behind=part.behind,
                has_state=part.has_state,
                error=part.error,
            )
        )
        at += max(0, part.height)
    return found


class RemoteStores:
    """The stores of an executor, whose server is at ``host:port``; implements ``TaskStores``. Threads may share it."""

    def __init__(self, executor: str, host: str, port: int, token: str) -> None:
        self._who = f"executor {executor} at {host}:{port}"
        self._address, self._token = address(host, port), token
        self._turn = Lock()
        self._client: Any = None

    def answer(self, question: Question, tasks: Sequence[str]) -> list[TaskAnswer]:
        """See ``TaskStores``.

        Raises:
            QueryError: As on the executor's own host.
        """
        try:
            reader = self._live().do_get(flight.Ticket(packed(question, tasks)), _within(ANSWER_LIMIT_S))
            answers = from_table(reader.read_all())
        except flight.FlightUnauthenticatedError as error:
            self.close()
            raise AwayError(f"{self._who} has another token than the control database has for it") from error
        except flight.FlightServerError as error:
            reason = str(error).splitlines()[0]
            raise QueryError(f"{self._who} has failed, and its stderr says why: {reason}") from error
        except (pa.ArrowException, OSError) as error:
            self.close()
            why = "has not answered in time" if isinstance(error, flight.FlightTimedOutError) else "does not answer"
            raise AwayError(f"{self._who} {why}") from error
        for answer in answers:
            if answer.error:
                raise QueryError(answer.error)
        return answers

    def end(self) -> None:
        """Have the server end, if it is there."""
        with suppress(pa.ArrowException, OSError):
            list(self._live().do_action(flight.Action(END, b""), _within(LOGIN_LIMIT_S)))
        self.close()

    def close(self) -> None:
        """Give the connection back; the next question makes another one."""
        with self._turn:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _live(self) -> Any:
        """A client that has logged in just now: a host that is gone would be waited for without an end otherwise."""
        with self._turn:
            if self._client is None:
                self._client = flight.FlightClient(self._address)
            self._client.authenticate(ClientLogin(self._token), _within(LOGIN_LIMIT_S))
            return self._client


def _within(limit_s: float) -> Any:
    return flight.FlightCallOptions(timeout=limit_s)
