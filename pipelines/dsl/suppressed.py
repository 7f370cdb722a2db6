"""How a suppression holds updates back, and within which buffer (KIP-328)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StrictBufferConfig:
    """A buffer that never lets an update go early."""


class BufferConfig:
    """Makes buffer configurations."""

    @staticmethod
    def unbounded() -> StrictBufferConfig:
        """A buffer that grows with the number of open windows, on disk, not in memory."""
        return StrictBufferConfig()


@dataclass(frozen=True, kw_only=True)
class Suppressed:
    """What ``KTable.suppress`` takes."""

    buffer: StrictBufferConfig

    @classmethod
    def until_window_closes(cls, buffer: StrictBufferConfig) -> Suppressed:
        """Forward a window's result once, when stream time reaches its end plus grace; tombstones never."""
        return cls(buffer=buffer)
