"""What operators ask of a task's stores, counted: whole columns at a time, and only if that is wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from weir.state.engine.contract import StateSession

Row = tuple[bytes, bytes]


class MeteredSession:
    """A ``StateSession`` that counts calls to ``stores``, and by how much those in ``sized`` grow."""

    def __init__(self, session: StateSession, stores: Collection[str], sized: Collection[str]) -> None:
        self._session, self._sized = session, frozenset(sized)
        self.calls: dict[str, Counter[str]] = {store: Counter() for store in stores}
        """By store: keys that were read (``get``), written (``put``) and deleted (``delete``), and how often rows were
        read in order, from all of them (``all``) or part (``range``)."""
        self.grown: Counter[str] = Counter()
        """By store in ``sized``, the bytes of keys and values that it has more than before."""

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._count(store, "get", len(keys))
        return self._session.get_many(store, keys)

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        self._count(store, "all" if lower == b"" and upper is None else "range", 1)
        return self._session.scan(store, lower, upper, reverse=reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        self._count(store, "range", 1)
        return self._session.first(store, lower, upper, reverse=reverse)

    def count(self, store: str) -> int:
        return self._session.count(store)

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._count(store, "put", len(keys))
        if store in self._sized:
            newest = dict(zip(keys, values, strict=True))
            self.grown[store] += sum(map(len, newest)) + sum(map(len, newest.values())) - self._held(store, newest)
        self._session.put_many(store, keys, values)

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        self._count(store, "delete", len(keys))
        if store in self._sized:
            self.grown[store] -= self._held(store, set(keys))
        self._session.delete_many(store, keys)

    def before_images(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._session.before_images(store, keys)

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        return self._session.changes(store)

    def _count(self, store: str, call: str, count: int) -> None:
        if store in self.calls and count:
            self.calls[store][call] += count

    def _held(self, store: str, keys: Collection[bytes]) -> int:
        """The bytes of what the store holds for ``keys``."""
        asked = list(keys)
        values = self._session.get_many(store, asked)
        return sum(len(key) + len(value) for key, value in zip(asked, values, strict=True) if value is not None)


def size_of(session: StateSession, store: str) -> int:
    """The bytes of all keys and values of a store."""
    return sum(len(key) + len(value) for key, value in session.scan(store))
