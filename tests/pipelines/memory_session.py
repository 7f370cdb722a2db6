"""A session over dictionaries, for tests of operators that need no store on disk."""

from collections.abc import Iterator, Sequence

from weir.state.engine.task_store import EXPIRIES
from weir.state.stores.expiry import keys_of


class MemorySession:
    """Implements ``weir.state.engine.contract.StateSession``; writes are visible at once."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[bytes, bytes]] = {}

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self.rows.get(store, {})
        return [rows.get(key) for key in keys]

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = sorted(self.rows.get(store, {}).items(), reverse=reverse)
        return iter([(key, value) for key, value in rows if key >= lower and (upper is None or key < upper)])

    def first(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> tuple[bytes, bytes] | None:
        return next(self.scan(store, lower, upper, reverse=reverse), None)

    def count(self, store: str) -> int:
        return len(self.rows.get(store, {}))

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.rows.setdefault(store, {}).update(zip(keys, values, strict=True))

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.rows.get(store, {}).pop(key, None)

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        return dict(self.rows.get(store, {}))

    def stored(self) -> dict[str, object]:
        """The rows of stores that have any; of the index of expiries, times and keys, however entries share them."""
        found: dict[str, object] = {name: rows for name, rows in self.rows.items() if rows}
        if EXPIRIES in found:
            entries = self.rows[EXPIRIES].items()
            found[EXPIRIES] = {
                (entry[:8], *expiry) for entry, value in entries for expiry in zip(*keys_of(entry, value), strict=True)
            }
        return found
