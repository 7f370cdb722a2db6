"""The processors of the plain model, each with its state in one task.

``take`` gives what a processor forwards for a record, ``due`` what it forwards once that record, and all that it has
caused above, is through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from tests.pipelines.order.description import RESOLUTION, Batch, Loose, Process, Record, Totals, Value
from tests.pipelines.order.functions import chained, time_of


class ModelProcessor(Protocol):
    def take(self, item: Any) -> Iterator[Any]: ...

    def due(self) -> Iterator[Record]: ...


def processor_of(step: Any) -> ModelProcessor:
    """A new one, for one task."""
    match step:
        case Process():
            return Gathering(step)
        case Totals(by_columns=True):
            return TotallingByColumns(step)
        case Totals():
            return Totalling(step)
        case Batch():
            return Batching(step)
        case Loose():
            return Holding()
    raise NotImplementedError(step)


class Timers:
    """One time for each key."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def set(self, key: str, at: int) -> None:
        self._times[key] = at

    def cancel(self, key: str) -> None:
        self._times.pop(key, None)

    def take(self, time: int) -> Iterator[tuple[str, int]]:
        """Those up to ``time``, by time, then key, each once."""
        due = sorted((at, key.encode(), key) for key, at in self._times.items() if at <= time)
        for at, _, key in due:
            del self._times[key]
            yield key, at


class Gathering:
    """Of a step ``Process``."""

    def __init__(self, step: Process) -> None:
        self._wait, self._time = step.wait, -1
        self._open: dict[str, Value] = {}
        self._timers = Timers()

    def take(self, item: Any) -> Iterator[Any]:
        self._time = max(self._time, item.ts)
        if item.value is None:
            return
        chain = chained(self._open.pop(item.key, Value(0, "")), item.value)
        if chain.num % 3 == 0:
            self._timers.cancel(item.key)
            yield item._replace(value=chain)
        else:
            self._open[item.key] = chain
            self._timers.set(item.key, item.ts + self._wait)

    def due(self) -> Iterator[Record]:
        for key, at in self._timers.take(self._time):
            yield Record(key, self._open.pop(key), at)


class Totalling:
    """Of a step ``Totals``."""

    def __init__(self, step: Totals) -> None:
        self._wait, self._every = step.wait, step.every
        self._time = -1
        self._next_report = 0
        self._totals: dict[str, int] = {}
        self._timers = Timers()

    def take(self, item: Any) -> Iterator[Any]:
        self._time = max(self._time, item.ts)
        total = self._totals[item.key] = self._totals.get(item.key, 0) + item.value.num
        self._timers.set(item.key, item.ts + self._wait)
        yield item._replace(value=Value(total, item.value.word))

    def due(self) -> Iterator[Record]:
        yield from self._report()
        yield from self._quiet()

    def _report(self) -> Iterator[Record]:
        if self._next_report <= self._time:
            self._next_report = (self._time // self._every + 1) * self._every
            for key in sorted(self._totals, key=str.encode):
                yield Record(key, Value(self._totals.pop(key), "all"), self._time)

    def _quiet(self) -> Iterator[Record]:
        for key, at in self._timers.take(self._time):
            if key in self._totals:
                yield Record(key, Value(self._totals.pop(key), "quiet"), at)


class TotallingByColumns(Totalling):
    """Calls its timers with the record that takes stream time to the next multiple of ``RESOLUTION``."""

    _called: int | None = None
    """Stream time after the record before."""

    def take(self, item: Any) -> Iterator[Any]:
        if self._called is None:
            self._called = item.ts
        return super().take(item)

    def due(self) -> Iterator[Record]:
        yield from self._report()
        before, self._called = self._called or 0, self._time
        if self._time // RESOLUTION > before // RESOLUTION:
            yield from self._quiet()


class Batching:
    """Of a step ``Batch``; a value has the bytes of its word and eight for its number."""

    def __init__(self, step: Batch) -> None:
        self._records, self._size = step.records, step.size
        self._open: dict[str, list[Any]] = {}

    def take(self, item: Any) -> Iterator[Any]:
        held = self._open.setdefault(item.key, [])
        if held and self._is_above([*held, item]):
            yield self._leave(item.key)
            held = self._open.setdefault(item.key, [])
        held.append(item)
        if self._is_full(held):
            yield self._leave(item.key)

    def due(self) -> Iterator[Record]:
        yield from ()

    def _is_above(self, held: list[Any]) -> bool:
        return self._size is not None and _size(held) > self._size

    def _is_full(self, held: list[Any]) -> bool:
        return len(held) == self._records or (self._size is not None and _size(held) >= self._size)

    def _leave(self, key: str) -> Record:
        held, chain = self._open.pop(key), Value(0, "")
        for item in held:
            chain = chained(chain, item.value)
        return Record(key, chain, max(item.ts for item in held))


def _size(held: list[Any]) -> int:
    return sum(8 + len(item.value.word.encode()) for item in held)


class Holding:
    """Of a step ``Loose``: it does not matter when a record leaves."""

    def take(self, item: Any) -> Iterator[Any]:
        yield item._replace(ts=time_of(item.value))

    def due(self) -> Iterator[Record]:
        yield from ()
