"""One instance of a processor at work in one task: its context, its stores, its punctuations and its timers.

It lives as long as the task goes on in one process and every epoch counts. What must survive is in the epoch: stores
in its session, and the times at which punctuations are due next among its clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.operators.functions import KeyType, Windowed
from weir.pipelines.processors.forwarding import Cause, Forwarded, ForwardedRows, forwarded_rows
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.records import FixedKeyRecord, Record, RecordMetadata
from weir.pipelines.processors.stores import OpenStore, StoreDeclaration
from weir.pipelines.processors.times import as_ms, as_time
from weir.pipelines.serdes.headers import HEADERS, checked_headers
from weir.pipelines.serdes.plain import PlainRows
from weir.state.engine.contract import StateSession
from weir.state.frames import picked
from weir.state.stores.access import StoreTime
from weir.state.stores.timers import NEVER_MS, TimerStore
from weir.state.types import StoreSpec

NO_SOURCE_OF_HEADERS = (
    "the processor forwards headers, but no topic that it gets records of is read with headers; read one with "
    "builder.stream(..., headers=True)"
)
STREAM, WALL = Punctuation.STREAM_TIME, Punctuation.WALL_CLOCK_TIME


MetadataOf = Callable[[int, int], RecordMetadata | None]
"""Where the record with this ``_partition`` and ``_offset`` was read."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is the same for all instances of a processor."""

    node: str
    supplier: Callable[[], Any]
    key: KeyType
    stores: tuple[StoreDeclaration, ...]
    timers: Mapping[Punctuation, StoreSpec]
    timer_resolution_ms: int
    """Of a batch processor; of no meaning to others."""
    is_fixed_key: bool
    is_batch: bool
    children: Sequence[str]
    sinks: Mapping[str, int]
    """Which of the children are sinks, by the names that the program gives them."""
    given: pl.Schema
    """The key and value columns of what it forwards."""
    forwards: bool
    """Whether it forwards anything at all."""
    has_headers: bool = False
    """Whether what it forwards has headers."""


@dataclass(eq=False)
class _Schedule:
    """A punctuation; ``clock`` is where its next time is kept, None if ``init`` did not schedule it."""

    punctuation: Punctuation
    call: Callable[[datetime], object]
    interval_ms: int | None
    clock: str | None
    next_ms: int
    owner: Running
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.owner.forget(self)


@dataclass(eq=False)
class Running:
    """An instance and its context; ``enter`` an epoch before each use."""

    shape: Shape
    task: str
    _schedules: list[_Schedule] = field(default_factory=list)
    _is_in_init: bool = False
    _alike: Counter[str] = field(default_factory=Counter)
    """How many punctuations ``init`` has scheduled, by what they call, or when."""

    def __post_init__(self) -> None:
        self.stores: dict[str, OpenStore] = {
            declared.name: declared.opened(lambda: self._cause.time_ms) for declared in self.shape.stores
        }
        self.processor: Any = None
        self.is_called = False
        self._batch: pl.DataFrame | None = None

    @cached_property
    def _keys(self) -> PlainRows:
        return PlainRows(self.shape.key.row_type)

    def enter(
        self, session: StateSession, clocks: dict[str, int], now_ms: int, metadata_of: MetadataOf, out: Out
    ) -> None:
        """Work on this epoch until ``leave``; what the processor forwards is appended to ``out``."""
        self.clocks, self.now_ms, self.out, self._metadata_of = clocks, now_ms, out, metadata_of
        self.wants_commit = False
        self.is_called = True
        self.cause(Cause(-1, -1, clocks.get(self.shape.node, now_ms), call="init"))
        for store in self.stores.values():
            store.enter(session, StoreTime(clocks=clocks, now_ms=now_ms))
        self._timers = {kind: TimerStore(spec, session) for kind, spec in self.shape.timers.items()}
        for schedule in self._schedules:
            if schedule.clock is not None:
                schedule.next_ms = clocks.get(schedule.clock, schedule.next_ms)
        if self.processor is None:
            self.processor = self.shape.supplier()
            self._is_in_init = True
            self.processor.init(self)
            self._is_in_init = False
            self._drop_clocks()

    def leave(self) -> dict[str, int]:
        """The epoch goes on without the processor: until the next one it has nothing but its own attributes. Returns
        how many puts each of its stores has dropped as expired."""
        self.is_called, self._batch = False, None
        return {name: store.leave() for name, store in self.stores.items()}

    # what a processor calls

    @property
    def task_id(self) -> str:
        return self.task

    @property
    def record_metadata(self) -> RecordMetadata | None:
        return self._metadata_of(*self._cause[:2]) if self.is_called and self._cause.is_record else None

    @property
    def current_stream_time(self) -> datetime | None:
        time_ms = self.clocks.get(self.shape.node)
        return None if time_ms is None else as_time(time_ms)

    @property
    def current_system_time(self) -> datetime:
        return as_time(self.now_ms)

    def forward(self, record: Any, child: str | None = None) -> None:
        self._check_call("forward")
        if self.shape.is_batch:
            raise TypeError("a batch processor forwards rows; return them, or call forward_rows(frame)")
        wanted = FixedKeyRecord if self.shape.is_fixed_key else Record
        if type(record) is not wanted:
            made = "record.with_value(...)" if self.shape.is_fixed_key else "Record(key, value, timestamp)"
            raise TypeError(f"forward takes a {wanted.__name__}, but got {record!r}; pass {made}")
        self._columns()
        if getattr(record.timestamp, "tzinfo", None) is None:
            as_ms(record.timestamp)
        if record.headers:
            self._check_headers(record.headers)
        self.out.append(Forwarded(record, self._cause, self._child(child)))

    def forward_rows(self, rows: pl.DataFrame, child: str | None = None) -> None:
        self._check_call("forward_rows")
        if not self.shape.is_batch:
            raise TypeError("forward_rows is for batch processors; call forward(record)")
        if not self.shape.has_headers and isinstance(rows, pl.DataFrame) and HEADERS in rows.columns:
            raise TypeError(NO_SOURCE_OF_HEADERS)
        found = forwarded_rows(rows, self._columns(), self._cause, self._batch, has_headers=self.shape.has_headers)
        self.out.append(ForwardedRows(found, self._child(child)))

    def schedule(self, interval: timedelta, punctuation: Punctuation, call: Callable[[datetime], object]) -> _Schedule:
        self._check_call("schedule")
        interval_ms = positive_ms(interval, "interval")
        first_ms = 0 if Punctuation(punctuation) is STREAM else self.now_ms + interval_ms
        return self._scheduled(Punctuation(punctuation), call, interval_ms, first_ms)

    def schedule_once(self, at: datetime, punctuation: Punctuation, call: Callable[[datetime], object]) -> _Schedule:
        self._check_call("schedule_once")
        return self._scheduled(Punctuation(punctuation), call, None, as_ms(at))

    def timer(self, key: Any, at: datetime, punctuation: Punctuation = STREAM) -> None:
        self._timer_store("timer", punctuation).set(self._timer_key(key), as_ms(at))

    def timers(self, rows: pl.DataFrame, at: pl.Expr, punctuation: Punctuation = STREAM) -> None:
        store = self._timer_store("timers", punctuation)
        times = rows.with_columns_seq(at.alias("_at")).get_column("_at")
        if isinstance(times.dtype, pl.Datetime) and times.dtype.time_zone is not None:
            times = times.dt.timestamp("ms")
        if not times.dtype.is_integer() or times.null_count():
            raise TypeError(
                f"timers got times of type {times.dtype} with {times.null_count()} nulls; give each row a time in ms "
                'or in UTC, for example col("_ts") + 30_000'
            )
        store.set_rows(self._timer_keys(rows), times)

    def cancel_timer(self, key: Any, punctuation: Punctuation = STREAM) -> None:
        self._timer_store("cancel_timer", punctuation).cancel(self._timer_key(key))

    def cancel_timers(self, rows: pl.DataFrame, punctuation: Punctuation = STREAM) -> None:
        self._timer_store("cancel_timers", punctuation).cancel_rows(self._timer_keys(rows))

    def commit(self) -> None:
        self.wants_commit = True

    def state_store(self, name: str) -> OpenStore:
        if name not in self.stores:
            known = (
                f"its stores are {', '.join(map(repr, self.stores))}" if self.stores else "no store is connected to it"
            )
            raise LookupError(
                f"{self.shape.node} has no store {name!r}; {known}; connect it with stores=[{name!r}] "
                "where the program adds the processor, or declare it in its class"
            )
        return self.stores[name]

    # what the operator calls

    def cause(self, cause: Cause, batch: pl.DataFrame | None = None) -> None:
        """What the processor is called for from now on, and the rows that it is given, if it takes batches."""
        self._cause, self._batch = cause, batch

    def calls(self, name: str) -> None:
        """What is called from now on, for the same cause."""
        self._cause = self._cause._replace(call=name)

    def next_ms(self, punctuation: Punctuation) -> int | None:
        """When, by this clock, the processor is to be called next; None if never."""
        due = (self.next_punctuation_ms(punctuation), self.next_timer_ms(punctuation))
        return min((each for each in due if each is not None), default=None)

    def is_due(self, punctuation: Punctuation, time_ms: int) -> bool:
        """Whether, by this clock, something is due at ``time_ms``."""
        for each in self._schedules:
            if each.next_ms <= time_ms and each.punctuation is punctuation:
                return True
        timers = self._timers.get(punctuation)
        return timers is not None and timers.is_due(time_ms)

    def next_punctuation_ms(self, punctuation: Punctuation) -> int | None:
        """When, by this clock, the first of what is scheduled is due; None if nothing is."""
        return min((each.next_ms for each in self._schedules if each.punctuation is punctuation), default=None)

    def next_timer_ms(self, punctuation: Punctuation) -> int | None:
        """When, by this clock, the first timer is due; None if there is none."""
        timers = self._timers.get(punctuation)
        return None if timers is None else timers.next_ms()

    def punctuate(
        self, punctuation: Punctuation, time_ms: int, guarded: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """Call what is scheduled up to ``time_ms``, by time, each within ``guarded`` of its name."""
        due = [each for each in self._schedules if each.punctuation is punctuation and each.next_ms <= time_ms]
        for each in sorted(due, key=lambda each: each.next_ms):
            if each.is_cancelled:
                continue
            if each.interval_ms is None:
                each.cancel()
            else:
                each.next_ms += (1 + (time_ms - each.next_ms) // each.interval_ms) * each.interval_ms
                if each.clock is not None:
                    self.clocks[each.clock] = each.next_ms
            name = _name(each.call)
            self.calls(name)
            with guarded(name):
                each.call(as_time(time_ms))

    def due_timers(self, punctuation: Punctuation, time_ms: int) -> list[tuple[Any, int]]:
        """Take out the timers up to ``time_ms``: keys and times, in order."""
        timers = self._timers.get(punctuation)
        if timers is None:
            return []
        return [
            (self._timer_item(list(key.values()) if isinstance(key, dict) else [key]), at_ms)
            for key, at_ms in timers.take(time_ms)
        ]

    def due_timer_rows(self, punctuation: Punctuation, time_ms: int) -> pl.DataFrame | None:
        """``due_timers`` as key columns and ``_ts`` (Int64, ms); None if there are none."""
        timers = self._timers.get(punctuation)
        found = None if timers is None else timers.take_rows(time_ms)
        return None if found is None or found.is_empty() else found

    def forget(self, schedule: _Schedule) -> None:
        """Call a punctuation no more, after a restart neither."""
        if schedule in self._schedules:
            self._schedules.remove(schedule)
        if schedule.clock is not None:
            self.clocks[schedule.clock] = NEVER_MS

    def _check_call(self, call: str) -> None:
        if not self.is_called:
            raise RuntimeError(
                f"{call} was called while Weir does not call the processor; call it in init, process, on_timer, close "
                "or what you schedule, not in a thread of your own"
            )

    def _check_headers(self, headers: Any) -> None:
        if not self.shape.has_headers:
            raise TypeError(NO_SOURCE_OF_HEADERS)
        checked_headers(headers)

    def _columns(self) -> pl.Schema:
        """The columns of what it forwards."""
        if not self.shape.forwards:
            raise TypeError(
                "the processor forwards, but its types say that it forwards nothing: the last ones are None; give the "
                "types of the key and value that it forwards"
            )
        return self.shape.given

    def _child(self, child: str | None) -> int | None:
        if child is None:
            return None
        if child in self.shape.children:
            return self.shape.children.index(child)
        if child in self.shape.sinks:
            return self.shape.sinks[child]
        named = {index: name for name, index in self.shape.sinks.items()}
        known = [named.get(index, name) for index, name in enumerate(self.shape.children)]
        raise LookupError(
            f"forward names the child {child!r}, but the processor is followed by "
            f'{", ".join(map(repr, known)) or "nothing"}; a processor has the name that process(..., name="...") gives '
            "it, a sink its own, or that of its table or topic"
        )

    def _scheduled(
        self, punctuation: Punctuation, call: Callable[[datetime], object], interval_ms: int | None, first_ms: int
    ) -> _Schedule:
        if not callable(call):
            raise TypeError(f"the punctuation is to call {call!r}; pass a function of the time")
        clock, next_ms = None, first_ms
        if self._is_in_init:
            clock, old_clock = self._clocks(f"{punctuation} {_name(call) if interval_ms else first_ms}")
            next_ms = self.clocks.get(clock, self.clocks.get(old_clock, first_ms))
            if interval_ms and next_ms != NEVER_MS:
                next_ms = self._in_step(punctuation, next_ms, interval_ms)
            self.clocks[clock] = next_ms
        made = _Schedule(punctuation, call, interval_ms, clock, next_ms, self)
        self._schedules.append(made)
        return made

    def _clocks(self, what: str) -> tuple[str, str]:
        """Where the next time of the punctuation that ``init`` schedules now is kept, and where earlier versions kept
        it: by its place in ``init``, in the place of what it calls, or when."""
        self._alike[what] += 1
        node = self.shape.node
        return f"_next:{what} {self._alike[what]}:{node}", f"_due:{node}:{self._alike.total() - 1}"

    def _drop_clocks(self) -> None:
        """Forget what ``init`` no longer schedules."""
        node, kept = self.shape.node, {each.clock for each in self._schedules}
        for name in list(self.clocks):
            is_own = name.startswith(f"_due:{node}:") or (name.startswith("_next:") and name.endswith(f":{node}"))
            if is_own and name not in kept:
                del self.clocks[name]

    def _in_step(self, punctuation: Punctuation, kept_ms: int, interval_ms: int) -> int:
        """When a punctuation is due next that was kept for ``kept_ms``, perhaps by a program with another interval."""
        if punctuation is WALL:
            return min(kept_ms, self.now_ms + interval_ms)
        reached_ms = self.clocks.get(self.shape.node, -1)
        return min(-(-kept_ms // interval_ms), reached_ms // interval_ms + 1) * interval_ms

    def _timer_store(self, call: str, punctuation: Punctuation) -> TimerStore:
        self._check_call(call)
        if not self.shape.timers:
            written = "on_timers(self, rows)" if self.shape.is_batch else "on_timer(self, record)"
            raise TypeError(f"the processor sets a timer, but has nothing to call when it is due; write def {written}")
        return self._timers[Punctuation(punctuation)]

    def _timer_key(self, key: Any) -> Any:
        if not self.shape.key.is_windowed:
            values = tuple(self._keys.plain(key))
            return values if len(values) > 1 else values[0]
        if not isinstance(key, Windowed):
            raise TypeError(f"timers are set by windowed key, but got {key!r}; pass a Windowed(key, start, end)")
        return (*self._keys.plain(key.key), key.window_start, key.window_end)

    def _timer_item(self, values: list[Any]) -> Any:
        """The key of a timer as the processor takes it."""
        if not self.shape.key.is_windowed:
            return self._keys.item(values)
        return Windowed(self._keys.item(values[:-2]), *values[-2:])

    def _timer_keys(self, rows: pl.DataFrame) -> pl.DataFrame:
        names = self.shape.key.names
        if missing := [name for name in names if name not in rows.columns]:
            raise TypeError(
                f"timers are set by key, which has the columns {', '.join(names)}, but the rows lack "
                f"{', '.join(missing)}"
            )
        return picked(rows, names)


def _name(call: Callable[[datetime], object]) -> str:
    while isinstance(call, partial):
        call = call.func
    return getattr(call, "__name__", type(call).__name__)


Out = list[Forwarded | ForwardedRows]
