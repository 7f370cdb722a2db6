"""How grouped and cogrouped streams are put into windows: bounds, retention, emission, silence, and where late ones go.

What the windows are is in ``weir.pipelines.operators.windows`` and beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from weir.pipelines.arguments import duration_text, positive_ms, to_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.windows import UnlimitedWindows
from weir.pipelines.topology.nodes import RecordType, Windows
from weir.state.types import StoreKind, StoreSpec

if TYPE_CHECKING:
    from weir.pipelines.dsl.stream import KStream

LateTo = Callable[["KStream"], object]


@dataclass(frozen=True)
class EmitStrategy:
    """When a windowed aggregation forwards a window."""

    is_final: bool

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """At every update, which is how it is without a strategy."""
        return cls(is_final=False)

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Once, when stream time closes the window; whatever the wall clock says."""
        return cls(is_final=True)


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """How records are put into windows."""

    windows: Windows
    retention_ms: int | None = None
    late_to: LateTo | None = None
    idle_after_ms: int | None = None
    is_final: bool = False

    @classmethod
    def of(
        cls,
        windows: Windows,
        record: RecordType,
        retention: timedelta | None,
        idle_after: timedelta | None,
        late_to: LateTo | None = None,
    ) -> Windowing:
        """What ``windowed_by`` was given for records like ``record``.

        Raises:
            TopologyError: Something of it is none of its kind, the key is windowed already, or the retention is
                shorter than the least that they can have.
        """
        if not isinstance(windows, Windows):
            raise TopologyError(
                f"windowed_by got {windows!r}; pass TimeWindows.of_size_and_grace(...), "
                "SlidingWindows.of_time_difference_and_grace(...), "
                "SessionWindows.of_inactivity_gap_and_grace(...) or UnlimitedWindows.of()"
            )
        if record.is_windowed:
            raise TopologyError("the key is windowed already; choose a new key with group_by(...) before windowed_by")
        if late_to is not None and not callable(late_to):
            raise TopologyError(
                f"late_to is {late_to!r}; pass a function of the late records' stream, "
                'as lambda late: late.to_delta("late")'
            )
        return cls(
            windows=windows,
            retention_ms=_retention_ms(windows, retention),
            late_to=late_to,
            idle_after_ms=idle_ms(idle_after),
        )

    def emitting(self, strategy: EmitStrategy) -> Windowing:
        """The same under ``strategy``; raises ``TopologyError`` for one that the windows cannot have."""
        if not isinstance(strategy, EmitStrategy):
            raise TopologyError(
                f"emit_strategy got {strategy!r}; pass EmitStrategy.on_window_close() or "
                "EmitStrategy.on_window_update()"
            )
        if strategy.is_final and isinstance(self.windows, UnlimitedWindows):
            raise TopologyError("unlimited windows never close; use EmitStrategy.on_window_update()")
        return replace(self, is_final=strategy.is_final)

    def store(self, spec: StoreSpec) -> StoreSpec:
        """``spec`` as this windowing needs it, a millisecond or two longer than the least retention perhaps."""
        if isinstance(self.windows, (SessionWindows, SlidingWindows)):
            return replace(spec, kind=StoreKind.SESSION, retention_ms=max(self.windows.kept_ms, self.retention_ms or 0))
        return replace(spec, kind=StoreKind.WINDOW, retention_ms=self.retention_ms)


def idle_ms(idle_after: timedelta | None) -> int | None:
    """How much silence lets time pass; raises ``TopologyError`` when it is not above zero."""
    return None if idle_after is None else positive_ms(idle_after, "idle_after")


def _retention_ms(windows: Windows, retention: timedelta | None) -> int | None:
    if retention is None:
        return None
    retention_ms, least_ms = to_ms(retention, "retention"), windows.least_retention_ms
    if least_ms is None:
        raise TopologyError("unlimited windows are kept for ever; leave the retention out")
    if retention_ms < least_ms:
        raise TopologyError(
            f"retention is {duration_text(retention)}, but the windows need "
            f"{timedelta(milliseconds=least_ms)}; keep them for that long at least"
        )
    return retention_ms
