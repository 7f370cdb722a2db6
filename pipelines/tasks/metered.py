"""What operators ask of a task's stores, counted and timed: whole columns at a time, only if that is wanted."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from weir.state.engine.contract import StateSession
from weir.state.engine.figures import Values
from weir.state.stopwatch import Activity, during

Row = tuple[bytes, bytes]


class MeteredSession:
    """A ``StateSession`` that counts and times calls to ``stores``, and tells by how much those in ``sized`` grow."""

    def __init__(self, session: StateSession, stores: Collection[str], sized: Collection[str]) -> None:
        self._session, self._sized = session, frozenset(sized)
        self.calls: dict[str, Counter[str]] = {store: Counter() for store in stores}
        """By store: keys that were read (``get``), written (``put``) and deleted (``delete``), and how often rows were
        read in order, from all of them (``all``) or part (``range``)."""
        self.took_ms: dict[str, dict[str, Values]] = {store: defaultdict(Values) for store in stores}
        """By store and call, how long each has taken; reading in order, until whoever reads has no more or enough."""
        self.grown: Counter[str] = Counter()
        """By store in ``sized``, the bytes of keys and values that it has more than before."""

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with during(Activity.STATE), self._called(store, "get", len(keys)):
            return self._session.get_many(store, keys)

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        rows = self._session.scan(store, lower, upper, reverse=reverse)
        return self._read(store, "all" if lower == b"" and upper is None else "range", rows)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        with during(Activity.STATE), self._called(store, "range", 1):
            return self._session.first(store, lower, upper, reverse=reverse)

    def count(self, store: str) -> int:
        return self._session.count(store)

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        if store in self._sized:
            newest = dict(zip(keys, values, strict=True))
            self.grown[store] += sum(map(len, newest)) + sum(map(len, newest.values())) - self._held(store, newest)
        with during(Activity.STATE), self._called(store, "put", len(keys)):
            self._session.put_many(store, keys, values)

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        if store in self._sized:
            self.grown[store] -= self._held(store, set(keys))
        with during(Activity.STATE), self._called(store, "delete", len(keys)):
            self._session.delete_many(store, keys)

    def before_images(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._session.before_images(store, keys)

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        return self._session.changes(store)

    def _read(self, store: str, call: str, rows: Iterator[Row]) -> Iterator[Row]:
        with self._called(store, call, 1):
            while True:
                with during(Activity.STATE):
                    row = next(rows, None)
                if row is None:
                    return
                yield row

    @contextmanager
    def _called(self, store: str, call: str, count: int) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            if store in self.calls and count:
                self.calls[store][call] += count
                self.took_ms[store][call] += Values.of(1000 * (time.perf_counter() - began_s))

    def _held(self, store: str, keys: Collection[bytes]) -> int:
        """The bytes of what the store holds for ``keys``."""
        asked = list(keys)
        values = self._session.get_many(store, asked)
        return sum(len(key) + len(value) for key, value in zip(asked, values, strict=True) if value is not None)


def size_of(session: StateSession, store: str) -> int:
    """The bytes of all keys and values of a store."""
    return sum(len(key) + len(value) for key, value in session.scan(store))
