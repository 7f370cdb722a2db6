"""What a publisher needs of an outside system: how far it has come, and a way to send rows together with that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import polars as pl

from weir.state.commit.outbox import Mark


class SinkError(Exception):
    """The outside system does not answer or refuses: connect again later, and ask it for the mark."""

    def __init__(self, reason: str, *, wait_s: float = 0.0) -> None:
        """``wait_s`` is how long the outside system wants to be left alone."""
        super().__init__(reason)
        self.wait_s = wait_s


class SinkFencedError(SinkError):
    """Another publisher has connected for this sink."""


class RefusedRowsError(SinkError):
    """The outside system will never take these rows."""

    def __init__(self, reason: str, *, is_batch: bool = False) -> None:
        """``is_batch`` says that the rows are one message, which is refused as a whole; otherwise it may be one row."""
        super().__init__(reason)
        self.is_batch = is_batch


class Published(NamedTuple):
    """What an outside system keeps of what it has got."""

    outbox: str
    """The id of the outbox that the rows came from."""
    mark: Mark


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """What one batch takes at most; a single row may be larger."""

    rows: int
    size_bytes: int
    one_epoch: bool = False
    """Whether it has rows of one epoch only, and is therefore the same whenever it is sent again."""


class Connection(Protocol):
    """One connection for one sink. The one made last is the only one that can publish. After a ``SinkError`` close it
    and make another."""

    @property
    def limits(self) -> BatchLimits: ...

    def published(self) -> Published | None:
        """What the outside system has got for good; None if it has no record of any.

        Raises:
            SinkError: It does not say.
        """
        ...

    def publish(self, rows: pl.DataFrame, published: Published) -> None:
        """Send rows, and how far they reach: both or neither.

        Raises:
            RefusedRowsError: It did not happen, and never will.
            SinkError: It is unknown whether that happened.
        """
        ...

    def close(self) -> None:
        """Let go; it never fails."""
        ...
