"""What an epoch has read of one store's snapshot: the before-images of what it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

_UNKNOWN: Any = object()
Fetch = Callable[[Sequence[bytes]], list[bytes | None]]


class Images:
    """Values by key, None where the snapshot has none.

    Most epochs read the keys that they write at once, in order, so a first read like that stays as it was given: no
    dictionary is made of it unless other keys are asked for.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        """All but the first read; what a scan finds may be put here."""
        self._first_keys: list[bytes] = []
        self._first: list[bytes | None] = []

    def of(self, keys: Sequence[bytes], fetch: Fetch) -> list[bytes | None]:
        """Values aligned with ``keys``; those that were not read before are fetched, in order."""
        if self._first_keys and keys == self._first_keys:
            return self._first.copy()
        rows = self._all()
        if len(keys) == 1:
            if keys[0] not in rows:
                rows[keys[0]] = fetch(keys)[0]
            return [rows[keys[0]]]
        if not rows:
            missing = sorted(keys)  # fast for keys in order
            found = fetch(missing)
            if missing == keys:
                self._first_keys, self._first = missing, found
                return found.copy()
        else:
            known = list(map(rows.get, keys, repeat(_UNKNOWN)))
            if _UNKNOWN not in known:
                return known
            missing = sorted([key for key, value in zip(keys, known, strict=True) if value is _UNKNOWN])
            found = fetch(missing)
        rows.update(zip(missing, found, strict=True))
        return list(map(rows.__getitem__, keys))

    def once(self, keys: Sequence[bytes], fetch: Fetch) -> list[bytes | None]:
        """``of`` for keys in order that are not asked for again: nothing more is kept."""
        if self._first_keys and keys == self._first_keys:
            return self._first.copy()
        known = list(map(self._all().get, keys, repeat(_UNKNOWN)))
        missing = [key for key, value in zip(keys, known, strict=True) if value is _UNKNOWN]
        if not missing:
            return known
        found = iter(fetch(missing))
        return [next(found) if value is _UNKNOWN else value for value in known]

    def _all(self) -> dict[bytes, bytes | None]:
        if self._first_keys:
            self.rows.update(zip(self._first_keys, self._first, strict=True))
            self._first_keys, self._first = [], []
        return self.rows
