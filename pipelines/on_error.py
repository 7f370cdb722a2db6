"""What an application does with records that fail (KIP-1033): stop, leave them out, or put them aside.

Finding the record that fails belongs to ``weir.pipelines.tasks.attempts``, the table of those put aside to
``weir.pipelines.tasks.dead_letters``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.source import BadRecord

Decision = Literal["fail", "continue", "dead_letter"]
OnError = Decision | Callable[[BadRecord], Decision]
"""One decision for all records, or a function that makes one for each. It is called again when an epoch is repeated, so
it should decide by the record alone."""
DECISIONS: tuple[str, ...] = get_args(Decision)


@dataclass(frozen=True, kw_only=True)
class ErrorHandling:
    """An application's decisions."""

    deserialization: OnError = "fail"
    processing: OnError = "fail"
    """Also for results that a sink cannot serialize."""

    def decide(self, record: BadRecord) -> Decision:
        """What to do with ``record``.

        Raises:
            TopologyError: A handler returned something else than a decision.
        """
        handler = self.deserialization if record.stage == "deserialization" else self.processing
        decision = handler if isinstance(handler, str) else handler(record)
        if decision not in DECISIONS:
            raise TopologyError(
                f'the handler returned {decision!r} for a record; return "fail", "continue" or "dead_letter"', places=()
            )
        return decision


FAIL = ErrorHandling()
"""Every record that fails stops the run."""


def checked(handler: Any, name: str) -> OnError:
    """``handler`` if it is a decision or may make some, else a ``TopologyError`` for the argument ``name``."""
    if not callable(handler) and handler not in DECISIONS:
        raise TopologyError(
            f'{name} is {handler!r}; it must be "fail", "continue", "dead_letter" or a function of a record that '
            "returns one of these"
        )
    found: OnError = handler
    return found
