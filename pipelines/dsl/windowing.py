"""How grouped and cogrouped streams are windowed: bounds, retention, emission, idleness, and where late records go.

The windows themselves are in ``weir.pipelines.operators.windows`` and the modules beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from weir.pipelines.arguments import duration_text, positive_ms, to_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.windows import UnlimitedWindows
from weir.pipelines.topology.nodes import LateRecordsNode, RecordType, Windows
from weir.state.types import StoreKind, StoreSpec


@dataclass(frozen=True)
class EmitStrategy:
    """When a windowed aggregation forwards a window."""

    is_final: bool

    @classmethod
    def on_window_update(cls) -> EmitStrategy:
        """Forward it at every update; this is the default.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> minutes = clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            >>> minutes.emit_strategy(EmitStrategy.on_window_update()).count("by_minute").to_delta("updates")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for seconds in (0, 59, 60):
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/", timestamp_ms=seconds * 1000)
            >>> driver.create_output_table("updates").read_values_to_list()
            [1, 2, 1]
        """
        return cls(is_final=False)

    @classmethod
    def on_window_close(cls) -> EmitStrategy:
        """Forward it once, when stream time closes the window, whatever the wall clock says.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> minutes = clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            >>> minutes.emit_strategy(EmitStrategy.on_window_close()).count("by_minute").to_delta("final")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for seconds in (0, 59, 60):
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/", timestamp_ms=seconds * 1000)
            >>> driver.create_output_table("final").read_values_to_list()
            [2]
        """
        return cls(is_final=True)


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """How records are windowed."""

    windows: Windows
    retention_ms: int | None = None
    late_to: Callable[[LateRecordsNode], object] | None = None
    """Called with the node of the late records."""
    idle_after_ms: int | None = None
    is_final: bool = False

    @classmethod
    def of(
        cls,
        windows: Windows,
        record: RecordType,
        retention: timedelta | None,
        idle_after: timedelta | None,
        late_to: Callable[[LateRecordsNode], object] | None = None,
    ) -> Windowing:
        """What ``windowed_by`` was given for records like ``record``.

        Raises:
            TopologyError: An argument has the wrong type, the key is windowed already, or the retention is shorter
                than the windows need.
        """
        if not isinstance(windows, Windows):
            raise TopologyError(
                f"windowed_by got {windows!r}; pass TimeWindows.of_size_and_grace(...), "
                "SlidingWindows.of_time_difference_and_grace(...), "
                "SessionWindows.of_inactivity_gap_and_grace(...) or UnlimitedWindows.of()"
            )
        if record.is_windowed:
            raise TopologyError("the key is windowed already; choose a new key with group_by(...) before windowed_by")
        return cls(
            windows=windows,
            retention_ms=_retention_ms(windows, retention),
            late_to=late_to,
            idle_after_ms=idle_ms(idle_after),
        )

    def emitting(self, strategy: EmitStrategy) -> Windowing:
        """The same with ``strategy``; raises ``TopologyError`` for one that the windows cannot have."""
        if not isinstance(strategy, EmitStrategy):
            raise TopologyError(
                f"emit_strategy got {strategy!r}; pass EmitStrategy.on_window_close() or "
                "EmitStrategy.on_window_update()"
            )
        if strategy.is_final and isinstance(self.windows, UnlimitedWindows):
            raise TopologyError("unlimited windows never close; use EmitStrategy.on_window_update()")
        return replace(self, is_final=strategy.is_final)

    def store(self, spec: StoreSpec) -> StoreSpec:
        """``spec`` as this windowing needs it, kept perhaps a millisecond or two longer than the least retention."""
        if isinstance(self.windows, (SessionWindows, SlidingWindows)):
            return replace(spec, kind=StoreKind.SESSION, retention_ms=max(self.windows.kept_ms, self.retention_ms or 0))
        return replace(spec, kind=StoreKind.WINDOW, retention_ms=self.retention_ms)


def idle_ms(idle_after: timedelta | None) -> int | None:
    """The idle time after which the wall clock advances stream time; raises ``TopologyError`` unless it is positive."""
    return None if idle_after is None else positive_ms(idle_after, "idle_after")


def _retention_ms(windows: Windows, retention: timedelta | None) -> int | None:
    if retention is None:
        return None
    retention_ms, least_ms = to_ms(retention, "retention"), windows.least_retention_ms
    if least_ms is None:
        raise TopologyError("unlimited windows are kept forever; leave the retention out")
    if retention_ms < least_ms:
        raise TopologyError(
            f"retention is {duration_text(retention)}, but the windows need "
            f"{timedelta(milliseconds=least_ms)}; keep them at least that long"
        )
    return retention_ms
