"""What an application does with records that fail (KIP-1033): stop, leave them out, put them aside, or try again.

Finding the record that fails belongs to ``weir.pipelines.tasks.attempts``, the table of those put aside to
``weir.pipelines.tasks.dead_letters``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from weir.pipelines.arguments import positive_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.source import BadRecord
from weir.state.own_code import failures

Decision = Literal["fail", "continue", "dead_letter"]
DECISIONS: tuple[str, ...] = get_args(Decision)


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Try a record that could not be processed again, each time after twice the wait, and then decide.

    Its task waits with it, so that records keep their order; other tasks go on.
    """

    attempts: int = 5
    """How often it is tried in all; a driver that is started again counts from one."""
    wait: timedelta = timedelta(seconds=1)
    """How long to wait before the second attempt."""
    max_wait: timedelta = timedelta(minutes=1)
    """No wait is longer."""
    then: Decision = "fail"
    """What happens to a record of which the last attempt fails."""

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or isinstance(self.attempts, bool) or self.attempts < 2:
            raise TopologyError(
                f"Retry(attempts={self.attempts!r}) tries nothing again; write a whole number, 2 or more"
            )
        positive_ms(self.wait, "wait of Retry")
        positive_ms(self.max_wait, "max_wait of Retry")
        if self.wait > self.max_wait:
            raise TopologyError(f"Retry(wait={self.wait!r}, max_wait={self.max_wait!r}): max_wait is shorter than wait")
        if self.then not in DECISIONS:
            raise TopologyError(f'Retry(then={self.then!r}): write "fail", "continue" or "dead_letter"')

    def wait_ms(self, tried: int) -> int:
        """How long to wait once a record has been tried ``tried`` times."""
        wait_ms: int = min(self.max_wait, self.wait * 2 ** min(tried - 1, 20)) // timedelta(milliseconds=1)
        return wait_ms


OnError = Decision | Retry | Callable[[BadRecord], Decision | Retry]
"""One decision for all records, or a function that makes one for each. It is called again when an epoch is repeated, so
it should decide by the record alone."""


@dataclass(frozen=True, kw_only=True)
class ErrorHandling:
    """An application's decisions."""

    deserialization: OnError = "fail"
    processing: OnError = "fail"
    """Also for results that a sink cannot serialize."""
    overrules_expectations: bool = False
    """Whether it also decides about records that violate an expectation; otherwise the expectation does."""

    def decide(self, record: BadRecord) -> Decision | Retry:
        """What to do with ``record``; one that could not be read is never tried again.

        Raises:
            TopologyError: A handler returned something else.
        """
        handler = self.deserialization if record.stage == "deserialization" else self.processing
        try:
            decision = handler(record) if callable(handler) else handler
        except failures() as error:
            name = getattr(handler, "__qualname__", type(handler).__qualname__)
            raise TopologyError(
                f"the handler {name} failed on the record at {_place(record)}: {type(error).__name__}: {error}; "
                "correct the handler",
                places=(),
            ) from error
        if isinstance(decision, Retry):
            if record.stage == "deserialization":
                raise TopologyError(
                    "the handler returned a Retry for a record that cannot be read: it is tried once; return "
                    '"fail", "continue" or "dead_letter" where record.stage is "deserialization"',
                    places=(),
                )
        elif decision not in DECISIONS:
            raise TopologyError(
                f"the handler returned {decision!r} for the record at {_place(record)}; return "
                '"fail", "continue", "dead_letter" or a Retry',
                places=(),
            )
        return decision


def _place(record: BadRecord) -> str:
    return f"{record.topic}, partition {record.partition}, offset {record.offset}"


FAIL = ErrorHandling()
"""Every record that fails stops the run."""


def checked(handler: Any, name: str) -> OnError:
    """``handler`` if it is a decision or may make some, else a ``TopologyError`` for the argument ``name``."""
    if isinstance(handler, Retry):
        if name == "on_error":
            raise TopologyError(
                "on_error decides about records that cannot be read, which no second attempt changes; give the Retry "
                "to on_processing_error"
            )
    elif not callable(handler) and handler not in DECISIONS:
        raise TopologyError(
            f'{name} is {handler!r}; it must be "fail", "continue", "dead_letter", a Retry (on_processing_error only) '
            "or a function of a record that returns one of these"
        )
    found: OnError = handler
    return found
