"""How a suppression holds updates back, and within which buffer (KIP-328)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, Self

from weir.pipelines.arguments import not_negative_ms, positive_ms, whole_number
from weir.pipelines.dsl.graph import check_name
from weir.pipelines.errors import TopologyError


@dataclass(frozen=True, kw_only=True)
class BufferConfig:
    """What a suppression may hold: at most so many keys, or so many bytes of keys and rows; full is above the limit.

    Whatever the limits, the buffer is on disk with the rest of the state; memory does not grow with it.
    """

    record_limit: int | None = None
    byte_limit: int | None = None

    @staticmethod
    def max_records(limit: int) -> EagerBufferConfig:
        """At most ``limit`` keys; the oldest go early when it is full."""
        return EagerBufferConfig().with_max_records(limit)

    @staticmethod
    def max_bytes(limit: int) -> EagerBufferConfig:
        """At most ``limit`` bytes; the oldest go early when it is full."""
        return EagerBufferConfig().with_max_bytes(limit)

    @staticmethod
    def unbounded() -> StrictBufferConfig:
        """As much as there is until its time comes."""
        return StrictBufferConfig()

    def with_max_records(self, limit: int) -> Self:
        """The same with at most ``limit`` keys."""
        return replace(self, record_limit=whole_number(limit, "max_records", 0))

    def with_max_bytes(self, limit: int) -> Self:
        """The same with at most ``limit`` bytes."""
        return replace(self, byte_limit=whole_number(limit, "max_bytes", 0))

    def with_no_bound(self) -> StrictBufferConfig:
        """Without limits."""
        return StrictBufferConfig()

    def shut_down_when_full(self) -> StrictBufferConfig:
        """Stop the run when a limit is passed; what was committed before stays."""
        return StrictBufferConfig(record_limit=self.record_limit, byte_limit=self.byte_limit)

    def spill_to_disk_when_full(self) -> StrictBufferConfig:
        """Go on beyond the limits, on disk, where the buffer is in any case."""
        return StrictBufferConfig(record_limit=self.record_limit, byte_limit=self.byte_limit, when_full="spill_to_disk")

    def emit_early_when_full(self) -> EagerBufferConfig:
        """Forward the oldest when a limit is passed, so that a key's updates may be more than one."""
        return EagerBufferConfig(record_limit=self.record_limit, byte_limit=self.byte_limit)

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Of records and of bytes, as far as they have an effect."""
        return self.record_limit, self.byte_limit


@dataclass(frozen=True, kw_only=True)
class StrictBufferConfig(BufferConfig):
    """A buffer that never lets an update go early."""

    when_full: Literal["shut_down", "spill_to_disk"] = "shut_down"

    @property
    def limits(self) -> tuple[int | None, int | None]:
        return (None, None) if self.when_full == "spill_to_disk" else (self.record_limit, self.byte_limit)


@dataclass(frozen=True, kw_only=True)
class EagerBufferConfig(BufferConfig):
    """A buffer that keeps its limits and lets the oldest updates go early for that."""


@dataclass(frozen=True, kw_only=True)
class Suppressed:
    """What ``KTable.suppress`` takes."""

    buffer: BufferConfig
    limit_ms: int | None = None
    """None until the window closes."""
    name: str | None = None
    idle_after_ms: int | None = None

    @classmethod
    def until_window_closes(cls, buffer: StrictBufferConfig) -> Suppressed:
        """Forward a window's result once, when stream time closes it; tombstones never.

        Raises:
            TopologyError: The buffer is not strict: a result that goes early is not final.
        """
        if not isinstance(buffer, StrictBufferConfig):
            raise TopologyError(
                f"until_window_closes got {buffer!r}; final results need a strict buffer: "
                "BufferConfig.unbounded(), or a limit with shut_down_when_full() or "
                "spill_to_disk_when_full()"
            )
        return cls(buffer=buffer)

    @classmethod
    def until_time_limit(cls, limit: timedelta, buffer: BufferConfig) -> Suppressed:
        """Forward a key's newest update once stream time is ``limit`` beyond the first one that was held back.

        Further updates replace what is held and do not start the time anew. Tombstones are forwarded.
        """
        if not isinstance(buffer, BufferConfig):
            raise TopologyError(
                f"until_time_limit got {buffer!r}; pass BufferConfig.unbounded(), .max_records(...) or .max_bytes(...)"
            )
        return cls(buffer=buffer, limit_ms=not_negative_ms(limit, "time limit"))

    def with_idle_after(self, idle_after: timedelta) -> Suppressed:
        """The same, but the wall clock lets updates go while nothing arrives; see ``KGroupedStream.windowed_by``.

        Until windows close, it closes them for their aggregation too: a result is final once, and what comes is late.
        """
        return replace(self, idle_after_ms=positive_ms(idle_after, "idle_after"))

    def with_name(self, name: str) -> Suppressed:
        """The same under a name of its own, so that the numbers in other names stay as they are without it."""
        return replace(self, name=check_name("suppression", name))
