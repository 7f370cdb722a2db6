"""What stores held when a batch of records began, while its operators write to them.

An operator that looks into another operator's table needs this, since that operator has already processed the whole
batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from weir.state.engine.contract import StateSession, StateView
from weir.state.engine.ordered import OrderedRows
from weir.state.engine.views import overlaid

Row = tuple[bytes, bytes]
FEW = 8
"""How many rows written by the batch ``first`` skips one by one before it scans."""


class BatchSession:
    """A ``weir.state.engine.contract.StateSession`` that remembers what ``stores`` held before this batch."""

    def __init__(self, session: StateSession, stores: Collection[str]) -> None:
        self._session = session
        self._held: dict[str, OrderedRows[bytes | None]] = {store: OrderedRows() for store in stores}

    @property
    def before(self) -> StateView:
        """``stores`` as they were when the batch began."""
        return _Before(self._session, self._held)

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._keep(store, keys)
        self._session.put_many(store, keys, values)

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        self._keep(store, keys)
        self._session.delete_many(store, keys)

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._session.get_many(store, keys)

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        return self._session.scan(store, lower, upper, reverse=reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        return self._session.first(store, lower, upper, reverse=reverse)

    def count(self, store: str) -> int:
        return self._session.count(store)

    def before_images(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._session.before_images(store, keys)

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        return self._session.changes(store)

    def _keep(self, store: str, keys: Sequence[bytes]) -> None:
        held = self._held.get(store)
        if held is not None:
            new = list(dict.fromkeys(keys))
            if held.rows:
                new = [key for key in new if key not in held.rows]
            held.put_many(new, self._session.get_many(store, new))


class _Before:
    """A ``StateView`` that overlays what the stores hold now with what they held before the batch."""

    def __init__(self, session: StateSession, held: dict[str, OrderedRows[bytes | None]]) -> None:
        self._session, self._held = session, held

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self._held[store].rows if store in self._held else {}
        if held.keys().isdisjoint(keys):
            return self._session.get_many(store, keys)
        if all(map(held.__contains__, keys)):
            return list(map(held.__getitem__, keys))
        others = [key for key in keys if key not in held]
        found = dict(zip(others, self._session.get_many(store, others), strict=True))
        return [held[key] if key in held else found[key] for key in keys]

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        rows = self._session.scan(store, lower, upper, reverse=reverse)
        held = self._held.get(store)
        return rows if held is None else overlaid(rows, held.between(lower, upper, reverse), reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        held = self._held.get(store)
        if held is None:
            return self._session.first(store, lower, upper, reverse=reverse)
        for _ in range(FEW):  # the batch has usually written few rows in between
            found = self._session.first(store, lower, upper, reverse=reverse)
            if found is None:
                break
            passed = held.between(*((found[0], upper) if reverse else (lower, found[0] + b"\0")), reverse)
            if (row := next(((key, value) for key, value in passed if value is not None), None)) is not None:
                return row
            if found[0] not in held.rows:
                return found
            lower, upper = (lower, found[0]) if reverse else (found[0] + b"\0", upper)
        return next(self.scan(store, lower, upper, reverse=reverse), None)

    def count(self, store: str) -> int:
        return sum(1 for _ in self.scan(store))
