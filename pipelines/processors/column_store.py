"""Key-value stores as columns alone, for the processors that Weir itself brings along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weir.pipelines.serdes.row_type import RowType
from weir.state.engine.contract import StateSession
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.types import StoreSpec


@dataclass(frozen=True)
class ColumnStore:
    """One row per key, over a spec that is made elsewhere."""

    of: StoreSpec

    @property
    def name(self) -> str:
        return self.of.name

    def types(self) -> tuple[RowType, RowType]:
        return RowType(self.of.key), RowType(self.of.value)

    def spec(self) -> StoreSpec:
        return self.of

    def opened(self, now_ms: Callable[[], int | None]) -> OpenColumnStore:
        return OpenColumnStore(self.of)


class OpenColumnStore:
    """The store in a processor's hands: ``rows`` while Weir calls the processor."""

    rows: KeyValueStore

    def __init__(self, spec: StoreSpec) -> None:
        self._spec = spec

    def enter(self, session: StateSession, time: StoreTime) -> None:
        self.rows = KeyValueStore(self._spec, session, time)

    def leave(self) -> int:
        del self.rows
        return 0
