"""What an epoch has read of one store's snapshot: the before-images of what it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

_UNKNOWN: Any = object()
Fetch = Callable[[Sequence[bytes]], list[bytes | None]]

FEW = 64
"""Reads of up to this many keys are in the dictionary."""
MOST_RUNS = 8
"""With more reads than this, all are put into the dictionary."""


class Images:
    """Values by key, None where the snapshot has none.

    Most epochs read the keys that they write in order: those that they change at once, and those of windows that close
    in one scan. Such a read stays as it was given, as a run of keys, and what is asked for is mostly one run, or some,
    one after another: no dictionary is made unless other keys are asked for.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        """What was read but is in no run; what a short scan finds may be put here."""
        self._runs: list[tuple[Sequence[bytes], list[bytes | None]]] = []
        """Ascending keys and their values."""

    def add_run(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Keep what was read of ``keys``, which are in order, ascending or descending; at least one."""
        if len(self._runs) == MOST_RUNS:
            self._merge_runs()
        if keys[0] > keys[-1]:
            keys, values = keys[::-1], values[::-1]
        self._runs.append((keys, list(values)))

    def of(self, keys: Sequence[bytes], fetch: Fetch) -> list[bytes | None]:
        """Values aligned with ``keys``; those that were not read before are fetched, in order."""
        if self._runs:
            is_long = len(keys) > FEW
            if is_long and (of_runs := self._of_runs(keys)) is not None:
                return of_runs
            if not (is_long and self._is_apart(keys)):
                self._merge_runs()
        rows = self.rows
        if len(keys) == 1:
            if keys[0] not in rows:
                rows[keys[0]] = fetch(keys)[0]
            return [rows[keys[0]]]
        if rows:
            known = list(map(rows.get, keys, repeat(_UNKNOWN)))
            if _UNKNOWN not in known:
                return known
            missing = sorted([key for key, value in zip(keys, known, strict=True) if value is _UNKNOWN])
        else:
            missing = sorted(keys)  # fast for keys in order
        found = fetch(missing)
        if len(missing) > FEW and missing == keys:
            self.add_run(missing, found)
            return found
        rows.update(zip(missing, found, strict=True))
        return list(map(rows.__getitem__, keys))

    def once(self, keys: Sequence[bytes], fetch: Fetch) -> list[bytes | None]:
        """``of`` for keys in order that are not asked for again: nothing more is kept."""
        if self._runs:
            if (of_runs := self._of_runs(keys)) is not None:
                return of_runs
            self._merge_runs()
        known = list(map(self.rows.get, keys, repeat(_UNKNOWN)))
        missing = [key for key, value in zip(keys, known, strict=True) if value is _UNKNOWN]
        if not missing:
            return known
        found = iter(fetch(missing))
        return [next(found) if value is _UNKNOWN else value for value in known]

    def _of_runs(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """The values if ``keys`` are those of runs, one after another."""
        found: list[bytes | None] = []
        for of_run, values in sorted(self._runs, key=itemgetter(0)):
            begin, end = len(found), len(found) + len(of_run)
            if begin < len(keys) and keys[begin] == of_run[0] and keys[begin:end] == of_run:
                found += values
        return found if len(found) == len(keys) else None

    def _is_apart(self, keys: Sequence[bytes]) -> bool:
        """Whether ``keys`` are all before or all after those of each run."""
        first, last = min(keys), max(keys)
        return all(last < of_run[0] or of_run[-1] < first for of_run, _ in self._runs)

    def _merge_runs(self) -> None:
        for of_run, values in self._runs:
            self.rows.update(zip(of_run, values, strict=True))
        self._runs = []
